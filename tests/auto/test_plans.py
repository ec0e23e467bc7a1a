"""`fleet.plan` and `fleetx plan`: the best plans as a table, as files and as pictures."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import fleetx as fleet
from fleetx import roles
from fleetx.__main__ import main
from fleetx.auto.choose import Plans
from fleetx.auto.cluster import load
from fleetx.auto.here import last_remembered, place, remember, remembered
from fleetx.auto.pictures import one_forward_one_backward
from fleetx.auto.units import seconds, size
from tests.libraries import transformers

TWO = Path(__file__).parent / "two_cpus.yaml"

SCRIPT = """
# Fine-tuning as tutorials write it, with the lines of fleetx.
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import fleetx as fleet

strategy = fleet.DistributedStrategy()
strategy.auto = True
strategy.amp = False
fleet.init(is_collective=True, strategy=strategy)
lr = float(sys.argv[1])
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
data = TensorDataset(torch.randn(256, 16), torch.randint(4, (256,)))
criterion = nn.CrossEntropyLoss()
inputs, targets = data[:8]
model = fleet.distributed_model(model, criterion=criterion, sample=inputs, targets=targets)
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9))
open("trained", "w").close()
for inputs, targets in fleet.distributed_loader(DataLoader(data, batch_size=8)):
    model.train_batch([inputs, targets], optimizer)
"""


@pytest.fixture(scope="module")
def plans() -> Plans:
    """For a model of another library that has no numbers."""
    with torch.device("meta"):
        config = transformers.LlamaConfig(
            num_hidden_layers=2,
            hidden_size=32,
            intermediate_size=64,
            num_attention_heads=2,
            num_key_value_heads=2,
            vocab_size=128,
            use_cache=False,
        )
        model: Any = transformers.LlamaForCausalLM(config)
        ids = torch.zeros(4, 16, dtype=torch.long)
    strategy = fleet.DistributedStrategy()
    strategy.gradient_merge = strategy.amp = strategy.pipeline = False
    rule = torch.optim.AdamW(model.parameters())
    sample = {"input_ids": ids, "labels": ids}
    return fleet.plan(model, sample=sample, optimizer=rule, strategy=strategy, cluster=TWO, count=5)


def test_the_best_plans_of_a_model_without_numbers(plans: Plans) -> None:
    assert len(plans) == 5
    assert plans.best is plans[0]
    assert plans.samples == 8
    fastest = min(one.expected.seconds for one in plans)
    assert plans.best.expected.seconds < 1.05 * fastest, "a simpler one may be a little slower"
    for one in plans:
        assert not one.strategy.auto
        assert not one.strategy.amp
        assert one.strategy.explain(workers=2)


def test_they_print_as_a_table(plans: Plans) -> None:
    lines = str(plans).splitlines()
    assert lines[0].startswith(f"The best 5 of {plans.looked_at} plans for 2 workers on two CPUs")
    assert lines[1].split()[:5] == ["update", "samples/s", "memory", "sent", "bubble"]
    assert [line.split()[0] for line in lines[2:7]] == ["1", "2", "3", "4", "5"]
    assert "computing" in lines[2]
    assert lines[7].startswith("Of 4 GB a rank")


def test_files_are_whole_and_the_strategy_can_be_loaded(plans: Plans, tmp_path: Path) -> None:
    files = {file.name: file for file in plans.save(tmp_path / "out")}
    assert {*files} == {"strategy.prototxt", "plans.txt", "plans.png", "plans.html"}
    loaded = fleet.DistributedStrategy()
    loaded.load_from_prototxt(files["strategy.prototxt"])
    assert loaded == plans.best.strategy
    assert files["plans.png"].read_bytes().startswith(b"\x89PNG")
    page = files["plans.html"].read_text()
    assert page.count("<tr>") == 6
    assert "<svg" in page
    assert "src=" not in page
    assert "<link" not in page
    assert files["plans.txt"].read_text() == f"{plans}\n"


def test_stages_take_turns() -> None:
    """A pipeline of equal stages is as long as theory says, and no stage does two things."""
    turns = one_forward_one_backward(4, 6)
    assert max(begin + length for stage in turns for begin, length, _ in stage) == 3 * (6 + 3)
    for stage in turns:
        assert len(stage) == 12
        assert all(a[0] + a[1] <= b[0] for a, b in pairwise(stage))


def test_a_script_is_followed_up_to_its_optimizer_and_not_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    try:
        assert main(["plan", "--cluster", str(TWO), "--count", "3", "train.py", "0.1"]) == 0
    finally:
        roles.stop()
    said = capsys.readouterr().out
    assert "The best 3 of" in said
    assert "16 samples an update" in said
    assert not Path("trained").exists()
    loaded = fleet.DistributedStrategy()
    loaded.load_from_prototxt("plan/strategy.prototxt")
    assert not loaded.auto
    assert not loaded.amp


BAD = {
    "nothing": ("print('hello')", "without a call of fleet.distributed_model"),
    "sample": (
        SCRIPT.replace(", sample=inputs, targets=targets", ""),
        "calls fleet.distributed_model() without sample=",
    ),
    "trace": (
        SCRIPT.replace("nn.ReLU()", "Odd()").replace(
            "strategy =",
            "class Odd(nn.Module):\n    def forward(self, x):\n"
            "        return x * float(x.sum())\n\n\nstrategy =",
            1,
        ),
        "cannot be followed without numbers",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_script_that_cannot_be_planned_gets_a_sentence(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, words = BAD[case]
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(script)
    try:
        assert main(["plan", "--cluster", str(TWO), "train.py", "0.1"]) == 1
    finally:
        roles.stop()
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--count", "0"], "--count and --workers must be at least 1"),
        (["--cluster", "a.yaml", "--workers", "2"], "leave --workers out"),
        (["--cluster", "a.yaml", "--measure", "2"], "leave one out"),
    ],
)
def test_flags_that_contradict_each_other(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *flags, __file__]) == 2
    assert words in capsys.readouterr().err


def test_several_workers_that_were_never_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLEETX_CACHE", str(tmp_path))
    assert main(["plan", "--workers", "3", __file__]) == 1
    assert "fleetx cluster probe --workers 3" in capsys.readouterr().err


def test_the_cluster_of_the_docs_can_be_read() -> None:
    docs = Path(__file__).parents[2] / "docs"
    file = docs / "clusters" / "h200.yaml"
    assert f"```yaml\n{file.read_text()}```" in (docs / "auto.md").read_text()
    found = load(file)
    assert found.workers == 1024
    assert found.link(8, 1) is found.inside
    assert found.link(16, 1) is found.outside


@pytest.mark.rare
def test_two_workers_are_measured_and_the_best_plans_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)

    def fleetx(*arguments: str) -> str:
        command = [sys.executable, "-m", "fleetx", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "link" in fleetx("cluster", "probe", "--workers", "2", "--output", "cluster.yaml")
    said = fleetx("plan", "--workers", "2", "--measure", "2", "train.py", "0.1")
    assert said.count(" took ") == 2
    assert "is the fastest of them" in said


def test_a_damaged_memory_is_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETX_CACHE", str(tmp_path))
    cpu, known = torch.device("cpu"), load(TWO)
    assert remembered(cpu, workers_here=2, nodes=1) is None
    remember(known, cpu)
    assert remembered(cpu, workers_here=2, nodes=1) == known
    file = place(cpu, workers_here=2, nodes=1)
    assert json.loads(file.read_text())["nodes"] == 1
    file.write_text("{")
    assert remembered(cpu, workers_here=2, nodes=1) is None
    assert last_remembered(cpu, workers_here=2, nodes=1) is None


def test_workers_are_remembered_with_whatever_threads_they_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of fleetrun have one thread each, and whoever plans for them has several."""
    monkeypatch.setenv("FLEETX_CACHE", str(tmp_path))
    cpu, known = torch.device("cpu"), load(TWO)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    remember(known, cpu)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert remembered(cpu, workers_here=2, nodes=1) is None
    assert last_remembered(cpu, workers_here=2, nodes=1) == known
    assert last_remembered(cpu, workers_here=3, nodes=1) is None


def test_sizes_and_times_are_short() -> None:
    assert [size(n) for n in (12, 3.5e6, 1.41e11)] == ["12 B", "3.5 MB", "141 GB"]
    assert size(2.5e15) == "2500 TB"
    assert [seconds(t) for t in (12.345, 0.0123, 4e-6)] == ["12.3 s", "12.3 ms", "4 us"]
