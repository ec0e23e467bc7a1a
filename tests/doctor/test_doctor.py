"""`fleetx doctor`: a line for everything, and what is wrong is wrong in its exit code."""

import json
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fleetx import __version__
from fleetx.__main__ import main
from fleetx.doctor import cards, machine, software, two_workers
from fleetx.doctor.finding import Finding, findings, note
from fleetx.launch import devices
from tests.programs import python

TOPICS = {
    "fleetx",
    "Python",
    "system",
    "torch",
    "packages",
    "gloo",
    "NCCL",
    "network",
    "shared memory",
    "ports",
    "file limits",
    "numba",
}


@pytest.fixture(autouse=True)
def prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of the doctor are forks of a process that has loaded torch."""
    monkeypatch.setattr(sys, "executable", python())


def told(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Finding]]:
    code = main(["doctor", "--json", *flags])
    report = json.loads(capsys.readouterr().out)
    found = {one["topic"]: Finding(**one) for one in report["findings"]}
    assert report["ok"] == (code == 0)
    return code, found


def test_versions_need_no_torch(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert re.fullmatch(
        rf"fleetx {__version__} \(torch \S+, Python \S+\)\n", capsys.readouterr().out
    )


def test_a_misspelt_tool_is_told_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["docter"])
    assert stop.value.code == 2
    assert "there is no tool 'docter'; did you mean 'doctor'?" in capsys.readouterr().err


def test_two_workers_sum_and_train(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = told(capsys)
    assert code == 0, found
    assert set(found) >= TOPICS
    assert found["all-reduce"].said.startswith("2 workers on the CPU (gloo): 4 MB in ")
    assert found["training step"].said.endswith("one update gives the weights of one process")
    assert {one.state for one in found.values()} <= {"ok", "note"}


@pytest.mark.rare
def test_a_job_that_fails_is_broken_with_its_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "trial.py"
    script.write_text("from fleetx.doctor import trial\ntrial.EXACT = -1.0\ntrial.main()\n")
    monkeypatch.setattr(two_workers, "TRIAL", (str(script),))
    code, found = told(capsys)
    assert code == 1
    assert found["all-reduce"].state == "ok"
    assert found["training step"].state == "broken"
    assert "from the weights of one process" in found["training step"].said
    assert "fleetrun --gpus none --nproc_per_node 2 -m fleetx.doctor.trial" in (
        found["training step"].advice
    )


def test_a_quick_look_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--quick"]) == 0
    out = capsys.readouterr().out
    assert "all-reduce" not in out
    assert out.splitlines()[0] == f"ok       fleetx        {__version__}"
    assert out.splitlines()[-1] == "fleetx doctor: ready to train"


def test_cards_that_torch_cannot_use_are_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(devices, "hardware", lambda: 8)
    monkeypatch.setattr(devices, "_torch_drives_cards", lambda: False)
    code, found = told(capsys, "--quick")
    assert code == 1
    assert found["cards"].state == "broken"
    assert "8 in this machine, but torch" in found["cards"].said


def test_a_product_is_exact_wherever_it_is_made() -> None:
    assert cards.multiplies(torch.device("cpu"))
    with torch.autocast("cpu", torch.bfloat16):  # as few digits as any card multiplies with
        assert cards.multiplies(torch.device("cpu"))


def test_too_old_a_torch_ends_the_look(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.4.1+cpu")
    code, found = told(capsys)
    assert code == 1
    assert found["torch"].advice.startswith("fleetx needs 2.11 or newer")
    assert "packages" not in found


def test_a_busy_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(machine, "FIRST_PORT", port)
        [finding] = machine.ports()
    assert finding.state == "note"
    assert str(port) in finding.said
    assert "--started_port" in finding.advice


def test_little_shared_memory_says_how_to_get_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "ENOUGH_SHARED", 1 << 62)
    [finding] = machine.shared_memory(tmp_path)
    assert finding.state == "note"
    assert "--shm-size" in finding.advice


def test_a_check_that_fails_is_a_finding() -> None:
    def fine() -> Iterator[Finding]:
        yield note("a", "b", "c")

    def fails() -> Iterator[Finding]:
        raise OSError("no such thing")
        yield

    first, second = findings([("one", fine), ("two", fails)])
    assert first == Finding("a", "note", "b", "c")
    assert (second.topic, second.state, second.said) == ("two", "broken", "OSError: no such thing")


def test_the_releases_of_torch_are_those_of_the_project() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'"torch>={".".join(map(str, software.OLDEST))}"' in text
