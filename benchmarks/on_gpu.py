"""Runs every example, every page's code and every benchmark once on this machine's GPU.

    python benchmarks/on_gpu.py                          # all of them, in less than eight minutes
    python benchmarks/on_gpu.py --only examples docs     # some kinds
    python benchmarks/on_gpu.py --match ctr --logs logs  # some names; what they printed is kept

Prints a list for README.md: whether each ended well, and how long it took. Settings are small: this
says that things run on a GPU, not how fast. What lacks a package or a second card is not run, and
says so. The status is 1 if anything failed. ``--any_device`` runs it without a GPU, to try it.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
JOB = (PYTHON, "-m", "fleetx.launch", "--server_num=1", "--worker_num=2")
TOGETHER = 4
"""Examples and pages that run at the same time; benchmarks have the machine to themselves."""
FLOWERS = "fleetx data make flowers --classes 4 --train_images 16 --val_images 5 --size 36"
RESNET = (
    "--model=ResNet18 --width=8 --image_shape=3,32,32 --lower_scale=0.5 --batch_size=8 "
    "--warm_up_epochs=0.5 --data_dir=flowers --num_epochs=1 --fp16=True --use_recompute=True "
    "--use_lars=True --reader_thread=2 --export_format=torch"
)

SCENE = '''
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import fleetx as fleet


class Net(nn.Module):
    """What pages take for granted: a model of yours, with layers of these names."""

    def __init__(self):
        super().__init__()
        self.layer1, self.layer2, self.layer3 = (nn.Linear(8, 8) for _ in range(3))
        self.conv = nn.Conv1d(1, 2, 3, padding=1)
        self.layer_norm, self.batch_norm = nn.LayerNorm(8), nn.BatchNorm1d(8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(x)).relu())
        x = self.batch_norm(self.layer_norm(x))
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(self.conv(x[:, None]).flatten(1))


torch.manual_seed(0)
model = net = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
loss_fn = F.cross_entropy
strategy = fleet.DistributedStrategy()
data = TensorDataset(torch.randn(16, 8), torch.randint(0, 4, (16,)))
loader = DataLoader(data, batch_size=8)
batches = list(loader)
x, y = (part.to("cuda" if torch.cuda.is_available() else "cpu") for part in data.tensors)
'''
"""Before the code of pages that say "your model"; they only change a few lines of a script."""
AFTER = """
from fleetx.roles import started
from fleetx.api import session
if not started():
    fleet.init(is_collective=True, strategy=strategy)
if not session.engines():
    model = fleet.distributed_model(Net(), criterion=loss_fn, sample=x[:2])
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
if not hasattr(optimizer, "minimize"):
    optimizer = fleet.distributed_optimizer(optimizer)
for batch in fleet.distributed_loader(DataLoader(data, batch_size=8)):
    if session.engines()[0].job.criterion is None:
        optimizer.minimize(loss_fn(model(batch[0]), batch[1]))
    else:
        model.train_batch(batch)
assert {p.device for p in model.parameters()} == {fleet.device()}
"""
"""Behind it: train, with whatever the page has set."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """Something that is run once."""

    kind: str
    name: str
    commands: Sequence[Sequence[str]]
    code: str = ""
    """What ``test_page.py`` holds."""
    cards: int = 1
    limit: int = 150
    """Seconds."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How it went."""

    item: Item
    verdict: str
    seconds: float

    def line(self) -> str:
        """For the list."""
        return f"- {self.verdict}: {self.item.name} ({self.seconds:.0f} s)"


def examples() -> list[Item]:
    """All of them, servers in all modes."""

    def item(name: str, *line: str, cards: int = 1, limit: int = 150) -> Item:
        commands = [[*line]]
        return Item(kind="examples", name=name, commands=commands, cards=cards, limit=limit)

    def script(name: str, *options: str) -> tuple[str, ...]:
        return str(ROOT / "examples" / name), *options

    small = ("--files", "2", "--lines", "5000", "--epochs", "1", "--save", "model")
    found = [
        item(f"examples/ctr, {mode}", *JOB, *script("ctr/train.py", "--mode", mode, *small))
        for mode in ("sync", "async", "half", "geo")
    ]
    found += [
        item("examples/word2vec", *JOB, *script("word2vec/train.py", "--batches", "100")),
        item("examples/quickstart", PYTHON, *script("quickstart/train_fleet.py")),
        item("examples/quickstart in plain torch", PYTHON, *script("quickstart/train_torch.py")),
        item("examples/static", PYTHON, *script("static/static_mlp.py")),
        item("examples/static with fleet", PYTHON, *script("static/static_mlp_fleet.py")),
        item("examples/transformer", PYTHON, *script("transformer/train.py", "--amp")),
        item(
            "examples/transformer, recompute, bfloat16",
            *(PYTHON, *script("transformer/train.py", "--amp", "--recompute", "--epochs", "1")),
        ),
        item(
            "examples/quickstart, two workers",
            *(PYTHON, "-m", "fleetx.launch", "--nproc_per_node", "2"),
            *script("quickstart/train_fleet.py"),
            cards=2,
        ),
        item(
            "examples/transformer, two stages",
            *(PYTHON, "-m", "fleetx.launch", "--nproc_per_node", "2"),
            *script("transformer/train.py", "--pp", "2", "--epochs", "1"),
            cards=2,
        ),
        Item(
            kind="examples",
            name="examples/resnet, float16, recompute, lars",
            commands=[
                [PYTHON, "-m", *FLOWERS.split()],
                [PYTHON, *script("resnet/train_with_fleet.py", *RESNET.split())],
            ],
        ),
    ]
    return found


PAGE = "test_page.py"
WHOLE = {"applications", "data", "metrics", "saving", "static", "strategy", "testing"}
"""Pages whose code stands by itself."""
BEGIN = {"parameter_server", "roles"}
"""Pages whose first code is a script; the rest needs what is not here."""
RUNNERS = {"parameter_server": JOB, "testing": (PYTHON, "-m", "pytest", "-q", "--noconftest")}
CARDS = {"pipeline": 4, "tensor_parallel": 2}
"""Pages whose layouts need more cards than one."""


def docs() -> list[Item]:
    """The code of README and of all pages, page by page."""
    found: list[Item] = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        title = str(page.relative_to(ROOT))
        if page.stem == "README":  # a script, what is added to it, and a layout of 8 workers
            found += [_page(f"{title}, {at}", trained(b)) for at, b in enumerate(blocks[:2], 1)]
        elif page.stem == "clip":  # two ways of saying it
            found += [_page(f"{title}, {at}", trained(b)) for at, b in enumerate(blocks, 1)]
        elif blocks:
            runner, cards = RUNNERS.get(page.stem, (PYTHON,)), CARDS.get(page.stem, 1)
            found.append(_page(title, script_of(page.stem, blocks), runner, cards))
    return found


def script_of(page: str, blocks: list[str]) -> str:
    """The code of a page with what it takes for granted."""
    if page in BEGIN:
        return blocks[0]
    if page in WHOLE:
        return "\n".join(blocks)
    return SCENE + blocks[0] if page == "checking" else trained(blocks[0])


def trained(block: str) -> str:
    """A script around some lines of it."""
    begin = "fleet.init(is_collective=True, strategy=strategy)\n"
    if "fleet.distributed_" in block and "fleet.init(" not in block:
        if "distributed_model(" not in block:
            begin += "model = fleet.distributed_model(model)\n"
        block = block.replace("...\n", begin, 1) if "...\n" in block else begin + block
    return SCENE + block + AFTER


def _page(title: str, code: str, runner: Sequence[str] = (PYTHON,), cards: int = 1) -> Item:
    return Item(kind="docs", name=title, commands=[[*runner, PAGE]], code=code, cards=cards)


def benchmarks() -> list[Item]:
    """All of them with small settings."""
    lines = {
        "ctr.py": "--workers 2 --steps 20 --rounds 1",
        "dgc.py": "--rounds 3",
        "fp8.py": "--job 256x4 --turns 2 --seconds 0.5",
        "memory.py": "--device cuda",
        "optim.py": "--rounds 3",
        "overhead.py": "--rounds 2",
        "ps.py": "--rows 100000 --workers 1 --bursts 2",
        "ps_step.py": "--steps 20 --rounds 1",
        "reader.py": "--rounds 2 --size 300",
        "resnet_files.py": "--files 2048 --drawn 64 --batch 64 --epochs 2 --parts",
        "resnet_gpu.py": "--job 32 --turns 2 --seconds 0.5",
        "static.py": "--device cuda --rounds 3 --models tiny MLP transformer",
    }
    here = ROOT / "benchmarks"
    return [
        Item(
            kind="benchmarks",
            name=f"benchmarks/{name} {options}",
            commands=[[PYTHON, str(here / name), *options.split()]],
            limit=200,
        )
        for name, options in lines.items()
    ]


KINDS = {"examples": examples, "docs": docs, "benchmarks": benchmarks}


def run(item: Item, logs: Path | None, cards: int) -> Outcome:
    """Run its commands in a folder of their own."""
    if item.cards > cards:
        return Outcome(item=item, verdict=f"not run, needs {item.cards} GPUs", seconds=0.0)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        verdict, text = "OK", ""
        (Path(folder) / PAGE).write_text(item.code)
        for command in item.commands:
            status, said = call(command, Path(folder), item.limit)
            text += said
            if status != 0:
                verdict = why(status, said, item.limit)
                break
    if logs is not None:
        name = re.sub(r"\W+", "_", item.name)[:60]
        (logs / f"{name}.log").write_text(text)
    return Outcome(item=item, verdict=verdict, seconds=time.monotonic() - began)


def call(command: Sequence[str], folder: Path, limit: int) -> tuple[int | None, str]:
    """Exit status (None: too slow) and output of a command and of all that it starts."""
    with (folder / "output.txt").open("w+b") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=surroundings(),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        said = out.read().decode(errors="replace")
    logs = sorted(folder.glob("log/*log.*")) if status != 0 else []
    return status, said + "".join(path.read_text(errors="replace")[-4000:] for path in logs)


def surroundings() -> dict[str, str]:
    """Let this checkout be imported, and processes of one machine share its cores."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return dict(os.environ) | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "2"}


def why(status: int | None, said: str, limit: int) -> str:
    """Why it did not end well."""
    if missing := re.search(r"No module named '(\w+)", said):
        return f"not run, needs {missing[1]}"
    if status is None:
        return f"FAILED, took more than {limit} s"
    errors = [line for line in said.splitlines() if re.search(r"\b\w*(Error|Exit)\b.*: ", line)]
    last = (errors or said.strip().splitlines() or ["nothing was said"])[-1]
    return f"FAILED ({last.strip()[:300]})"


def machine() -> str:
    """What it ran on."""
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{card}, torch {torch.__version__}, Python {sys.version.split()[0]}"


def main() -> int:
    """Run what was asked for and print the list."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--match", default="", help="a part of the names")
    parser.add_argument("--logs", type=Path, help="a folder for what each printed")
    parser.add_argument("--together", type=int, default=TOGETHER)
    parser.add_argument("--any_device", action="store_true", help="also without a GPU")
    given = parser.parse_args()
    cards = torch.cuda.device_count()
    if not cards and not given.any_device:
        raise SystemExit("this machine has no GPU that torch can use; --any_device runs it anyway")
    if given.logs is not None:
        given.logs.mkdir(parents=True, exist_ok=True)
    items = [item for kind in given.only for item in KINDS[kind]() if given.match in item.name]
    print(f"Run on {datetime.now(UTC):%Y-%m-%d} on {machine()}:\n", flush=True)
    outcomes: list[Outcome] = []

    def go(item: Item) -> None:
        outcomes.append(run(item, given.logs, cards or 1))
        print(outcomes[-1].line(), flush=True)

    with ThreadPoolExecutor(given.together) as pool:
        list(pool.map(go, [item for item in items if item.kind != "benchmarks"]))
    for item in items:
        if item.kind == "benchmarks":
            go(item)
    verdicts = [outcome.verdict for outcome in outcomes]
    well, failed = verdicts.count("OK"), sum(v.startswith("FAILED") for v in verdicts)
    print(f"\n{well} of {len(verdicts)} ran well, {failed} failed, the others were not run.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
