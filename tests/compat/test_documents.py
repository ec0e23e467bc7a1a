"""Every Python block and every command of the five documents runs, in a process of Paddle's names.

A whole script runs as it stands. A fragment runs behind the fewest lines that define the names it
assumes (``FRAMES``), or behind other blocks of its page. ``CORRECTED`` has each line that is no
Python, or calls what never was, with its reason (../shared/facts/semantics.md, section 11).
"""

import hashlib
import shlex
import socket
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from fleetx.compat.fleetx_1 import models
from fleetx.data.downloads import downloader
from fleetx.data.downloads.sources import source_of
from fleetx.data.making.layouts import Recipe, make
from tests.compat.documents import FOLDER, python_blocks, shell_blocks
from tests.programs import fleetrun, python

pytestmark = pytest.mark.skipif(
    not FOLDER.exists(), reason=f"the documents lie in {FOLDER}, beside a developer's clone alone"
)
COUNTS = {0: 8, 1: 15, 2: 5, 3: 4, 4: 22}

CORRECTED: dict[tuple[int, int], list[tuple[str, str, str]]] = {
    (1, 5): [
        ("str(fleet.worker_index())\n", "str(fleet.worker_index()))\n", "a parenthesis is missing"),
    ],
    (1, 8): [
        (
            "    else:\n    return warm",
            "    else:\n        return warm",
            "the line is not indented",
        ),
    ],
    (1, 10): [
        (
            "                toutdata = main",
            "        toutdata = main",
            "the line is indented twice",
        ),
    ],
    (3, 3): [
        ("= \\ \n", "= \\\n", "a blank follows the sign that the line goes on"),
    ],
}
"""Document, block -> what is wrong, what is meant, and why."""

FLUID = """
import math, os
import numpy as np
import paddle
import paddle.fluid as fluid
import paddle.fluid.core as core
from paddle.fluid.incubate.fleet.collective import fleet, DistributedStrategy
from paddle.fluid.incubate.fleet.base import role_maker
x = fluid.layers.data(name="x", shape=[4], dtype="float32")
y = fluid.layers.data(name="y", shape=[1], dtype="int64")
prediction = fluid.layers.fc(input=x, size=2, act="softmax")
cost = fluid.layers.mean(fluid.layers.cross_entropy(input=prediction, label=y))
acc = fluid.layers.accuracy(input=prediction, label=y)
optimizer = fluid.optimizer.SGD(learning_rate=0.01)
"""
TRAINED = f"""{FLUID}
fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))
optimizer = fleet.distributed_optimizer(optimizer, strategy=DistributedStrategy())
optimizer.minimize(cost, fluid.default_startup_program())
gpu_id = 0
exe = train_exe = fluid.Executor(fluid.CUDAPlace(gpu_id))
exe.run(fleet.startup_program)
reader = fluid.io.DataLoader.from_generator(feed_list=[x, y], capacity=4, iterable=False)
reader.set_batch_generator(
    lambda: iter([(np.ones((4, 4), "float32"), np.ones((4, 1), "int64"))] * 8))
reader.start()
"""
LOOP = """
lr = fluid.layers.assign(np.array([0.01], "float32"))
train_fetch_list = [cost.name, acc.name, acc.name, cost.name]
pass_id, local_sgd_steps, local_sgd_is_warm_steps, step_cnt, num_trainers = 5, 4, 1, 3, 1
ini_loss, ini_lr, cur_loss, cur_lr, base_step, pre_step = 2.0, 0.1, 1.5, 0.1, 4, 1
train_loss = np.ones((1, 1), "float32")
"""
STATIC = """
import os
import numpy as np
import paddle
import paddle.fluid as fluid
class_dim = 10


class resnet:
    class ResNet:
        def __init__(self, layers):
            assert layers == 50

        def net(self, input, class_dim):
            pool = fluid.layers.pool2d(input, pool_type="avg", global_pooling=True)
            return fluid.layers.fc(pool, size=class_dim, act="softmax")


def get_train_loader(feed_list, place):
    def reader():
        for label in range(4):
            image = np.full((3, 224, 224), label / 8, "float32")
            yield image, np.array([label], "int64")

    loader = fluid.io.DataLoader.from_generator(feed_list=feed_list, capacity=4, iterable=True)
    loader.set_sample_generator(reader, batch_size=2, places=[place])
    return loader


def optimizer_setting():
    return fluid.optimizer.Momentum(learning_rate=0.1, momentum=0.9)

"""
PAGE_3 = """
import numpy as np
import paddle
import paddle.fluid as fluid
from paddle.fluid.incubate.fleet.base import role_maker
from paddle.fluid.incubate.fleet.base.role_maker import Role, UserDefinedRoleMaker
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
from paddle.fluid.transpiler.distribute_transpiler import DistributeTranspilerConfig


def model():
    global x, y, auc, auc_batch
    x = fluid.layers.data(name="x", shape=[4], dtype="float32")
    y = fluid.layers.data(name="y", shape=[1], dtype="int64")
    prediction = fluid.layers.fc(input=x, size=2, act="softmax")
    auc, auc_batch, _ = fluid.layers.auc(input=prediction, label=y)
    return fluid.layers.mean(fluid.layers.cross_entropy(input=prediction, label=y))


def fake_reader():
    def reader():
        for number in range(72):
            yield np.full(4, number / 72, "float32"), number % 2
    return reader


place = fluid.CPUPlace()
exe = fluid.Executor(place)
"""
UNDER_A_ROLE = "fleet.init(role_maker.PaddleCloudRoleMaker())\n"

FRAMES: dict[tuple[int, int], tuple[str, str]] = {
    (1, 3): (FLUID, "assert fleet.worker_num() == 1"),
    (1, 4): (f"{TRAINED}\nmodel_path = './m'\nos.mkdir(model_path)\n", "assert os.listdir('m')"),
    (1, 5): (f"{TRAINED}\nmodel_path = './m'\nos.mkdir(model_path)\n", "assert os.listdir('m/0')"),
    (1, 7): (FLUID, "assert dist_strategy.use_local_sgd"),
    (1, 8): ("", "assert [get_local_sgd_steps(i, 4, 1) for i in range(5)] == [1, 1, 2, 4, 4]"),
    (1, 9): (f"{TRAINED}{LOOP}{{8}}", "assert current_prog is fleet._origin_program"),
    (1, 10): (TRAINED, "assert result.name == 'outofallreduce'"),
    (1, 11): (FLUID, "assert adaptive_local_step(2.0, 0.1, 1.5, 0.1, 4, 1) == 3"),
    (1, 12): (f"{TRAINED}{LOOP}{{10}}{{11}}", "assert reduce_loss == 1.0 and cur_local_sgd == 3"),
    (1, 13): (
        f"{FLUID}\nclass args:\n    fp16 = True\n",
        "optimizer.minimize(cost)",
    ),
    (1, 14): (FLUID, "assert strategy.mode == 'collective'"),
    (2, 0): (STATIC, "train_resnet()"),
    (2, 2): ("{1}", "assert fleet.worker_num() == 1"),
    (2, 3): (f"{STATIC}{{1}}{{2}}optimizer = optimizer_setting()\n", ""),
    (2, 4): (STATIC, "train_resnet()"),
    (3, 1): (PAGE_3, "assert fleet.worker_num() == 3 and not fleet.is_first_worker() is None"),
}
"""Document, block -> what stands before it, and a line behind; ``{8}`` is block 8 of the page."""

TOGETHER = {0: [0, 1, 2, 3, 4, 5, 6, 7], 3: [2, 3]}
"""Blocks that run in tests of their own, below."""


def corrected(document: int, number: int) -> str:
    """A block, with its one-line corrections."""
    text = textwrap.dedent(python_blocks(document)[number])
    for wrong, meant, _ in CORRECTED.get((document, number), []):
        assert text.count(wrong) == 1
        text = text.replace(wrong, meant)
    return text


def framed(document: int, number: int) -> str:
    before, after = FRAMES.get((document, number), ("", ""))
    for other in range(number):
        before = before.replace(f"{{{other}}}", corrected(document, other))
    return f"{before}\n{corrected(document, number)}\n{after}\n"


def run(text: str, **names: Any) -> dict[str, Any]:
    """Run a script in this process, which finds ``paddle``."""
    space = {"__name__": "__main__", **names}
    exec(compile(text, "<document>", "exec", dont_inherit=True), space)
    return space


@pytest.fixture
def free_port() -> int:
    """One that nobody uses, with room behind it and before it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        found: int = server.getsockname()[1]
    return found


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, and a command line without options of pytest."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    return tmp_path


def test_all_blocks_are_known() -> None:
    assert {document: len(python_blocks(document)) for document in COUNTS} == COUNTS


ALONE = [
    (document, number)
    for document in (1, 2, 3)
    for number in range(COUNTS[document])
    if number not in TOGETHER.get(document, []) and (document, number) != (1, 6)
]


@pytest.mark.parametrize(("document", "number"), ALONE)
def test_block(document: int, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    run(framed(document, number))
    if (document, number) in {(1, 0), (1, 1)}:
        assert "step1000 cost = 0." in capsys.readouterr().out
    if (document, number) in {(2, 0), (2, 4)}:
        assert "[Epoch 9, batch 1]" in capsys.readouterr().out


def test_the_page_about_strategies() -> None:
    # One block after the other in one folder: the second reads the file that the first wrote.
    for number in range(COUNTS[4]):
        run(framed(4, number))


def _pictures(folder: Path, number: int) -> None:
    """A small data set as the address of document 000 has it."""
    data = folder / "images"
    make(data, Recipe(layout="imagenet", classes=2, train_images=number, val_images=1, size=64))
    lines = []
    files = folder / "bos"
    files.mkdir()
    subprocess.run(["tar", "czf", str(files / "set.tar.gz"), "-C", str(data), "."], check=True)
    for file in files.iterdir():
        lines.append(f"{file.name} {hashlib.md5(file.read_bytes()).hexdigest()}")
    (files / "filelist.txt").write_text("\n".join(lines) + "\n")
    (files / "small_imagenet.yaml").write_text(f"bos_path: {files}\n")


def _page_0(monkeypatch: pytest.MonkeyPatch, folder: Path, strategy: int, batch: int) -> None:
    _pictures(folder, batch // 2)
    address = "https://fleet.bj.bcebos.com/test/loader"
    monkeypatch.setattr(
        downloader,
        "source_of",
        lambda where: source_of(str(folder / "bos") if where.rstrip("/") == address else where),
    )
    parts = [corrected(0, number) for number in (0, 1, 2)]
    # A processor takes minutes for 32 pictures, the page's batch, through the whole network.
    assert "batch_size = 32\n" in parts[2]
    parts[2] = parts[2].replace("batch_size = 32\n", f"batch_size = {batch}\n")
    # The listing uses dist_strategy without making it.
    parts += ["dist_strategy = fleet.DistributedStrategy()\n", corrected(0, strategy)]
    run("".join([*parts, corrected(0, 4)]))


def _small(image: Any, class_dim: int, layout: str) -> tuple[Any, list[Any]]:
    """Instead of ResNet-50, which is slow on a processor."""
    from paddle import fluid

    pooled = fluid.layers.pool2d(image, pool_type="avg", global_pooling=True)
    hidden = fluid.layers.fc(fluid.layers.batch_norm(pooled), size=8, act="relu")
    return fluid.layers.fc(hidden, size=class_dim), [hidden]


@pytest.mark.parametrize("strategy", [3, 6])
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.rare)])
def test_the_page_about_compositions(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    strategy: int,
    whole: bool,
) -> None:
    if not whole:
        monkeypatch.setattr(models.Resnet50, "network", staticmethod(_small))
    _page_0(monkeypatch, place, strategy, 2 if whole else 32)
    assert "worker_index: 0, step0 cost = " in capsys.readouterr().out


FLEET_1_FILES: Mapping[str, str] = {
    "utils/__init__.py": "",
    "utils/utility.py": """
def add_arguments(argname, type, default, help, argparser, **kwargs):
    argparser.add_argument("--" + argname, default=default, type=type, help=help, **kwargs)
""",
    "utils/reader_cv2.py": """
import os
import cv2


def train(settings, data_dir, pass_id_as_seed=0):
    size = int(settings.image_shape.split(",")[1])

    def reader():
        for line in open(os.path.join(data_dir, "train.txt")):
            name, label = line.split()
            image = cv2.resize(cv2.imread(os.path.join(data_dir, "train", name)), (size, size))
            yield image.transpose(2, 0, 1).astype("float32") / 255, int(label)
    return reader
""",
    "models/__init__.py": "",
    "models/resnet.py": """
import paddle.fluid as fluid


class ResNet50:
    def net(self, input, class_dim=1000):
        conv = fluid.layers.conv2d(input, num_filters=4, filter_size=7, stride=4, act="relu")
        pool = fluid.layers.pool2d(conv, pool_type="avg", global_pooling=True)
        return fluid.layers.fc(pool, size=class_dim)
""",
}
"""Files of the Fleet repository that the offline evaluation imports, as small as can be."""


def _evaluation(place: Path) -> Path:
    for name, text in FLEET_1_FILES.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)
    folder = place / "data" / "train"
    folder.mkdir(parents=True)
    for number in range(3):
        cv2.imwrite(str(folder / f"{number}.png"), np.full((8, 8, 3), 40 * number, np.uint8))
    (place / "data" / "train.txt").write_text("0.png 0\n1.png 1\n2.png 2\n")
    script = place / "evaluation.py"
    script.write_text(python_blocks(1)[6])
    return script


def test_the_offline_evaluation_and_its_command(place: Path) -> None:
    _evaluation(place)
    command = "python evaluation.py --data_dir ./data"
    assert f"$ {command}\n" in shell_blocks(1)
    done = ran(command, place)
    assert "batch: 0" in done


def ran(command: str, folder: Path, flags: str = "") -> str:
    """What a command of a document prints, in a shell in which ``paddle`` can be imported."""
    words = shlex.split(command)
    if words[0] == "fleetrun":
        words = [*fleetrun("--paddle"), *shlex.split(flags), *words[1:]]
    elif words[:3] == ["python", "-m", "paddle.distributed.launch"]:
        words = [python(), *words[1:3], *shlex.split(flags), *words[3:]]
    else:
        words = [python(), *words[1:]]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_servers_and_workers_of_the_page_about_fleet_1(place: Path) -> None:
    script = place / "train.py"
    setting = PAGE_3 + UNDER_A_ROLE + corrected(3, 2)
    script.write_text(f"{setting}\n{corrected(3, 3)}")
    told = ran("fleetrun --server_num 1 --worker_num 2 train.py", place)
    logs = "".join(path.read_text() for path in (place / "log").glob("workerlog.*"))
    assert "Pass 9, cost = " in told + logs


def launches() -> list[str]:
    """Every command of the documents that starts a job, on one line."""
    everything = [text for document in COUNTS for text in shell_blocks(document)]
    joined = [text.replace("\\\n", " ").strip().removeprefix("$ ") for text in everything]
    lines = [text.partition("\n")[0] for text in joined]
    return [line for line in lines if line.startswith(("fleetrun", "python -m paddle.distr"))]


def at_home(command: str) -> str:
    """The same command with two addresses that this machine has."""
    return command.replace("192.168.1.2", "127.0.0.1").replace("192.168.1.3", "127.0.0.2")


def test_commands_that_start_jobs(place: Path) -> None:
    # There are no eight cards and no 192.168.1.2 here: who would run where is printed.
    for name in ("train.py", "train_with_fleet.py", "train_fleet_static.py"):
        (place / name).write_text("import paddle\n")
    commands = launches()
    assert len(commands) == 8
    for command in {at_home(command) for command in commands}:
        assert ran(command, place, "" if "--help" in command else "--dry_run")


def test_the_two_commands_of_a_job_on_two_nodes(place: Path, free_port: int) -> None:
    # The addresses are replaced by this machine's own, and the four cards by a CPU worker.
    script = place / "train_with_fleet.py"
    script.write_text(corrected(1, 1).replace("step = 1001", "step = 3"))
    commands = []
    for node in ("192.168.1.2", "192.168.1.3"):
        line = next(line for line in launches() if f"--node_ip={node}" in line)
        line = line.replace("--selected_gpus=0,1,2,3", f"--selected_gpus=none --log_dir={node}")
        commands.append(at_home(line).replace("6170", str(free_port)).split())
    jobs = [subprocess.Popen([python(), *words[1:]], cwd=place) for words in commands]
    assert [job.wait() for job in jobs] == [0, 0]
    logs = "".join(path.read_text() for path in place.glob("*/workerlog.*"))
    assert "worker_index: 0, step2 cost = " in logs
    assert "worker_index: 1, step2 cost = " in logs
