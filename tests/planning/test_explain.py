"""`fleetx explain`: the strategy of a script in words, before anything is trained."""

from pathlib import Path

import pytest

from fleetx import roles
from fleetx.__main__ import main

SCRIPT = """
import sys
import torch
from torch import nn
import fleetx as fleet

strategy = fleet.DistributedStrategy()
strategy.amp = True
strategy.sharding = True
strategy.gradient_merge = True
strategy.gradient_merge_configs = {"k_steps": int(sys.argv[1])}
fleet.init(is_collective=True, strategy=strategy)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 4))
model = fleet.distributed_model(model, criterion=nn.CrossEntropyLoss(), sample=torch.randn(8, 256))
optimizer = fleet.distributed_optimizer(torch.optim.AdamW(model.parameters(), lr=0.1))
open("trained", "w").close()
"""

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def explain(*arguments: str, script: str = SCRIPT) -> int:
    Path("train.py").write_text(script)
    try:
        return main(["explain", *arguments])
    finally:
        roles.stop()


@pytest.mark.parametrize("flags", [[], ["--meta"]])
def test_a_script_is_followed_up_to_its_optimizer_and_told(
    flags: list[str], capsys: Output
) -> None:
    assert explain("--workers", "4", *flags, "train.py", "3") == 0
    said = capsys.readouterr().out
    assert said.startswith("Plan for 4 workers: pp 1 x dp 1 x sharding 4 x tp 1\n")
    assert "3 batches per update" in said
    assert "k_steps=3" in said
    assert "all-gather of parameters" in said
    assert "0 to 3" in said
    assert not Path("trained").exists()


def test_a_script_without_an_optimizer_is_told_without_its_state(capsys: Output) -> None:
    script = SCRIPT.replace("optimizer = ", "raise RuntimeError('no rule')\noptimizer = ")
    assert explain("--workers", "2", "train.py", "2", script=script) == 0
    out, err = capsys.readouterr()
    assert "no optimizer was distributed (RuntimeError: no rule)" in err
    assert "Plan for 2 workers" in out


def test_the_number_of_workers_is_that_of_fleetrun(capsys: Output) -> None:
    assert explain("train.py", "2") == 0
    assert "Plan for 1 worker" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("strategy.amp = True", "strategy.auto = True"), "strategy.auto"),
        (("fleet.distributed_model(", "(lambda model, **_: model)("), "without a call of"),
        (("strategy.sharding = True", "strategy.sharding = strategy.dgc = True"), "dgc"),
    ],
)
def test_what_cannot_be_planned_is_a_sentence(
    change: tuple[str, str], words: str, capsys: Output
) -> None:
    assert explain("--workers", "2", "train.py", "2", script=SCRIPT.replace(*change)) == 1
    error = capsys.readouterr().err
    assert error.startswith("fleetx explain: error: ")
    assert words in error


def test_flags_that_cannot_be_meant(capsys: Output) -> None:
    assert main(["explain", "missing.py"]) == 2
    assert explain("--workers", "0", "train.py") == 2
    error = capsys.readouterr().err
    assert "there is no script 'missing.py'" in error
    assert "--workers must be at least 1, not 0" in error


@pytest.mark.parametrize("tool", ["check", "explain", "plan", "profile"])
def test_a_command_that_lacks_its_script_asks_for_nothing_else(tool: str, capsys: Output) -> None:
    with pytest.raises(SystemExit) as ended:
        main([tool])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("the following arguments are required: script\n")
