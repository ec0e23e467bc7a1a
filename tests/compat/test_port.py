"""``fleetx compat port`` writes native scripts, which compute what the old ones did."""

import ast
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fleetx import roles, static
from fleetx.__main__ import main
from fleetx.compat import imports, modes, parameters, unique_names
from fleetx.compat.ported import HEADS, RULES
from fleetx.compat.porting import MARK, port
from fleetx.static.run import executor
from tests.compat.documents import FOLDER, python_blocks


def ported(text: str) -> str:
    found = port(text).text
    ast.parse(found)
    return found


def lines(text: str) -> list[str]:
    return [line for line in ported(text).splitlines() if line and "import" not in line]


def test_names_of_the_table_are_there() -> None:
    from torch import nn
    from torch.nn import functional

    import fleetx
    from fleetx import io

    rooms = {"fleet": fleetx, "static": static, "io": io, "torch": torch, "nn": nn, "F": functional}
    assert {*rooms} == {*HEADS}
    for rule in RULES.values():
        for name in filter(None, (rule.to, rule.first)):
            head, *rest = name.split(".")
            found: Any = rooms[head]
            for part in rest:
                found = getattr(found, part)


@pytest.mark.parametrize(
    ("old", "native"),
    [
        ("fluid.layers.data('x', [3])", "static.data('x', [None, 3])"),
        (
            "fluid.layers.data('x', shape=size, append_batch_size=True)",
            "static.data('x', shape=[None, *size])",
        ),
        (
            "fluid.layers.data(name='x', shape=[-1, 3], append_batch_size=False, dtype='int64')",
            "static.data(name='x', shape=[-1, 3], dtype='int64')",
        ),
        ("fluid.layers.mean(x=cost)", "torch.mean(input=cost)"),
        ("fluid.layers.concat([a, b], 1)", "torch.cat([a, b], dim=1)"),
        ("fluid.layers.conv2d(x, 3, 5, use_cudnn=True, bias_attr=False)",
         "static.nn.conv2d(x, num_filters=3, filter_size=5, bias_attr=False, "
         "weight_attr=torch.nn.init.kaiming_normal_)"),
        (
            "fluid.optimizer.MomentumOptimizer(0.1, momentum=0.9,\n"
            "    regularization=fluid.regularizer.L2Decay(1e-4))",
            "static.Optimizer(torch.optim.SGD, lr=0.1, momentum=0.9,\n    weight_decay=1e-4)",
        ),
        ("paddle.optimizer.SGD(learning_rate=0.1, parameters=net.parameters())",
         "torch.optim.SGD(lr=0.1, params=net.parameters())"),
        ("fluid.Executor(fluid.CPUPlace())", "static.Executor(static.CPUPlace())"),
    ],
)  # fmt: skip
def test_calls_are_written_natively(old: str, native: str) -> None:
    text = f"import paddle\nimport paddle.fluid as fluid\nfound = {old}\n"
    assert "\n".join(lines(text)) == f"found = {native}"


@pytest.mark.parametrize(
    "call",
    [
        "fluid.layers.nonsense(x)",
        "fluid.layers.fc(x, 3, param_attr=fluid.ParamAttr(name='w'))",
        "fluid.layers.reshape(x, [0, 3])",
        "fluid.layers.fc(*arguments)",
        "fluid.optimizer.SGD(0.1, regularization=fluid.regularizer.L1Decay(0.1))",
    ],
)
def test_what_cannot_be_moved_is_left_and_says_why(call: str) -> None:
    text = f"import paddle.fluid as fluid\nif True:\n    y = {call}\n"
    found = port(text)
    assert found.left
    assert f"    y = {call}\n" in found.text
    assert f"    {MARK} paddle.fluid." in found.text
    assert "import paddle.fluid as fluid" in found.text
    ast.parse(found.text)


def test_only_imports_that_are_needed_stay() -> None:
    text = "import paddle\nimport paddle.fluid as fluid\nfrom paddle.nn import ReLU, Sigmoid\n"
    found = ported(f"{text}paddle.enable_static()\nf = ReLU()\ng = fluid.nonsense()\n")
    assert "import paddle.fluid as fluid" in found
    assert "from paddle.nn" not in found
    assert "paddle.enable_static()" in found  # what is left needs it
    found = ported(f"{text}paddle.enable_static()\nf = ReLU()\n")
    assert "paddle" not in found


def test_names_of_the_script_are_respected() -> None:
    text = "import io\nimport paddle.fluid as fluid\nfluid.io.save_params(exe, 'm')\n"
    found = port(text)
    assert "the script has another 'io'" in found.left[0]
    text = "from paddle.distributed import fleet\nprog = fleet.main_program\nprint(prog)\n"
    assert ported(text).endswith("prog = fleet.main_program\nprint(prog)\n")


def test_text_that_is_not_ascii_stays_in_place() -> None:
    text = "import paddle.fluid as fluid\nfound = ('损失', fluid.layers.mean(x))  # 损失\n"
    assert lines(text) == ["found = ('损失', torch.mean(x))  # 损失"]


def test_the_command_prints_a_diff_or_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    before = "import paddle.fluid as fluid\nexe = fluid.Executor()\n"
    script.write_text(before)
    assert main(["compat", "port", str(script)]) == 0
    told = capsys.readouterr()
    assert "+exe = static.Executor()" in told.out
    assert "1 uses of Paddle moved, 0 left" in told.err
    assert script.read_text() == before
    assert main(["compat", "port", "--write", str(script)]) == 0
    assert script.read_text() == "from fleetx import static\nexe = static.Executor()\n"
    script.write_text("print 'x'\n")
    assert main(["compat", "port", str(script)]) == 2


def pattern(shape: torch.Size) -> torch.Tensor:
    """First values that do not change when a matrix is turned over, as Paddle's are to torch's."""
    if len(shape) != 2:
        return torch.zeros(shape)
    rows, columns = torch.arange(shape[0])[:, None], torch.arange(shape[1])[None]
    return torch.sin(rows * columns + (rows + columns).float()) / 8


def losses(text: str, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Those that a script of document 001 prints, from first values that are given."""
    static.reset()
    modes.forget()
    before = unique_names.switch()
    np.random.seed(0)
    found: list[float] = []
    run = executor.Executor.run

    def patched(self: Any, *args: Any, **options: Any) -> Any:
        values = run(self, *args, **options)
        if values:
            found.append(float(np.asarray(values[0]).reshape(-1)[0]))
        else:
            with torch.no_grad():
                for value in static.default_main_program().parameters():
                    value.copy_(pattern(value.shape))
        return values

    with monkeypatch.context() as patch, parameters.scope_of_its_own():
        patch.setattr(executor.Executor, "run", patched)
        exec(compile(text, "<document>", "exec"), {"__name__": "__main__"})
    unique_names.switch(before)
    return found


@pytest.mark.skipif(not FOLDER.exists(), reason="a clone has no documents beside it")
@pytest.mark.parametrize("number", [0, 1])
def test_native_scripts_of_the_documents_give_the_same_losses(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    text = python_blocks(1)[number].replace(
        "exe.run(startup_program())", "exe.run(startup_program)"
    )
    text = text.replace("step = 1001", "step = 30")
    native = ported(text)
    assert "paddle" not in native.replace("PaddlePaddle", "").lower().replace(
        "paddlecloudrolemaker", ""
    )
    # A native CUDAPlace wants a card, where one of Paddle's names takes the CPU and says so.
    native = native.replace("static.CUDAPlace(gpu_id)", "static.CPUPlace()")
    old = losses(text, monkeypatch)
    imports.uninstall()
    roles.stop()
    new = losses(native, monkeypatch)
    assert len(old) == 30
    np.testing.assert_allclose(new, old, rtol=1e-4)
