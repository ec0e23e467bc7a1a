"""What users write is checked as they check it: mypy in strict mode, and pyright."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OLD = {"migrating"}
"""Pages whose snippets are of Paddle."""

TYPED = """
from typing import assert_type

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fleetx as fleet


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)


strategy = fleet.DistributedStrategy()
assert_type(strategy.amp_configs["init_loss_scaling"], float)
strategy.amp_configs = {"init_loss_scaling": 2.0}
strategy.amp_configs["dtype"] = "bfloat16"
other = fleet.DistributedStrategy()
other.amp_configs = strategy.amp_configs
fleet.init(is_collective=True, strategy=strategy, trackers=["tensorboard"], on_nan="stop")

model = fleet.distributed_model(Net())
assert_type(model, Net)
assert_type(model.layer, nn.Linear)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


again = Net()
again = fleet.distributed_model(again, criterion=loss)
assert_type(again.train_batch((torch.ones(2), torch.ones(2))), Tensor)


def takes_the_class(net: Net) -> None: ...


def takes_what_is_returned(net: fleet.DistributedModel[Net]) -> Tensor:
    return net.train_batch((torch.ones(2), torch.ones(2)))


takes_the_class(again)
takes_what_is_returned(fleet.distributed_model(Net(), criterion=loss))
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
assert_type(optimizer, fleet.DistributedOptimizer)
assert_type(fleet.launch(lambda: 1, workers=2), list[int])
"""

WRONG = [
    'strategy.amp_configs["init_loss_scalin"]',
    'strategy.amp_configs["init_loss_scalin"] = 2.0',
    'strategy.amp_configs = {"init_loss_scalin": 2.0}',
    'strategy.amp_configs = {"init_loss_scaling": "much"}',
    'strategy.amp_configs["dtype"] = "float8"',
    "strategy.ampp = True",
    'fleet.init(on_nan="go")',
    "fleet.init(trackers=[7])",
    'fleet.seed("1")',
    "fleet.distributed_optimizer(7)",
]


SETTINGS = f"""[mypy]
strict = true
mypy_path = {ROOT}
untyped_calls_exclude = torch
cache_dir = {ROOT}/.mypy_cache/of_pages
[mypy-torchvision.*,transformers.*]
follow_imports = skip
ignore_missing_imports = true
"""
"""As a user would have it, and half typed libraries taken for untyped ones."""


def pages() -> list[Path]:
    """Those in English; the Chinese ones have the same snippets (test_docs_zh.py)."""
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return [
        page for page in found if page.stem not in OLD and "zh" not in page.relative_to(ROOT).parts
    ]


def write_pages(folder: Path) -> list[Path]:
    """The snippets of each page, one after the other, as a file."""
    files = []
    for page in pages():
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        if blocks:
            name = "_".join(page.relative_to(ROOT).with_suffix("").parts)
            files.append(folder / f"page_{name.lower().replace('.', '_')}.py")
            files[-1].write_text("\n".join(blocks))
    return files


def mypy(files: Sequence[Path], *options: str) -> list[str]:
    folder = files[0].parent
    (folder / "mypy.ini").write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *options, *map(str, files)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if ": error:" in line]
    # Users have fleetx installed, where its own lines are not looked at.
    return [line for line in told if not line.startswith(("..", str(ROOT)))]


def pyright(files: Sequence[Path], folder: Path) -> list[str]:
    settings = {
        "include": [str(file) for file in files],
        "extraPaths": [str(ROOT)],
        "pythonVersion": f"{sys.version_info.major}.{sys.version_info.minor}",
        "typeCheckingMode": "standard",
        "reportPossiblyUnboundVariable": "warning",  # as in pyright itself
    }
    project = folder / "pyrightconfig.json"
    project.write_text(json.dumps(settings))
    command = ["basedpyright", "--pythonpath", sys.executable, "-p", str(project), "--outputjson"]
    tool = [sys.executable, "-m", *command]
    done = subprocess.run(tool, cwd=folder, capture_output=True, text=True, check=False)
    told = json.loads(done.stdout)
    assert told["summary"]["filesAnalyzed"] == len(files), done.stdout[:2000]
    return [
        f"{one['file']}:{one['range']['start']['line'] + 1}: {one['message']} [{one.get('rule')}]"
        for one in told["generalDiagnostics"]
        if one["severity"] == "error"
    ]


def of_pages(told: list[str]) -> list[str]:
    """Snippets of one page may use a name again."""
    return [line for line in told if "[reportRedeclaration]" not in line]


@pytest.mark.rare
def test_pages_and_examples_type_check(tmp_path: Path) -> None:
    files = write_pages(tmp_path)
    assert len(files) > 20
    assert mypy(files, "--disable-error-code=no-redef") == []
    examples = sorted((ROOT / "examples").rglob("*.py"))
    assert of_pages(pyright([*files, *examples], tmp_path)) == []


@pytest.mark.rare
def test_a_wrong_line_is_found_by_both(tmp_path: Path) -> None:
    good = tmp_path / "good.py"
    good.write_text(TYPED)
    wrong = [tmp_path / f"wrong_{number}.py" for number in range(len(WRONG))]
    for file, line in zip(wrong, WRONG, strict=True):
        file.write_text(
            f"import fleetx as fleet\n\nstrategy = fleet.DistributedStrategy()\n{line}\n"
        )
    for told in (mypy([good, *wrong]), pyright([good, *wrong], tmp_path)):
        found = {Path(line.partition(":")[0]).name: line for line in told}
        assert "good.py" not in found, found
        assert found.keys() == {file.name for file in wrong}
