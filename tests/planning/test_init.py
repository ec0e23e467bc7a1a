"""`fleetx init`: four answers become a strategy that loads, and a line that starts the job."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fleetx as fleet
from fleetx.__main__ import main
from fleetx.launch.arguments import parse
from fleetx.testing.limits import stretched
from tests.launch.conftest import heed_signals
from tests.programs import python

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(path: str = "strategy.prototxt") -> fleet.DistributedStrategy:
    strategy = fleet.DistributedStrategy()
    strategy.load_from_prototxt(path)
    return strategy


def line_of(said: str) -> list[str]:
    [line] = [line.strip() for line in said.splitlines() if line.startswith("    fleetrun ")]
    return line.split()


def test_flags_answer_everything(capsys: Output) -> None:
    flags = ["--machines=2", "--workers=8", "--model=large", "--precision=bfloat16"]
    assert main(["init", *flags, "tune.py"]) == 0
    said = capsys.readouterr().out
    strategy = loaded()
    assert strategy.amp
    assert strategy.amp_configs["dtype"] == "bfloat16"
    assert strategy.sharding
    assert strategy.sharding_configs["stage"] == 3
    assert "Plan for 16 workers" in said
    program, *arguments = line_of(said)
    assert program == "fleetrun"
    given = parse(arguments)
    assert (given.nnodes, given.nproc_per_node, given.script) == ("2", 8, "tune.py")
    assert given.master == "FIRST_MACHINE:6379"


def test_addresses_are_a_list_for_fleetrun(capsys: Output) -> None:
    flags = ["--machines=a, b", "--workers=4", "--model=tight", "--precision=float16"]
    assert main(["init", *flags]) == 0
    assert parse(line_of(capsys.readouterr().out)[1:]).ips == "a,b"
    assert loaded().sharding_configs["stage"] == 2


def test_usual_answers_say_what_is_off() -> None:
    assert main(["init", "--yes", "--output", "folder/new.prototxt"]) == 0
    text = Path("folder/new.prototxt").read_text()
    assert "amp: " in text
    assert "sharding: false" in text
    assert text.startswith("# Made by fleetx init; start with: fleetrun --nproc_per_node ")
    assert not loaded("folder/new.prototxt").sharding


def test_nothing_is_written_over(capsys: Output) -> None:
    Path("strategy.prototxt").write_text("lamb: true\n")
    assert main(["init", "--yes"]) == 2
    assert "add --force" in capsys.readouterr().err
    assert loaded().lamb
    assert main(["init", "--yes", "--force"]) == 0
    assert not loaded().lamb


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--machines=0", "not a whole number of at least 1"),
        ("--machines=a,,b", "neither a number of machines nor a list"),
        ("--workers=many", "'many' is not a whole number"),
        ("--precision=bfloat61", "did you mean 'bfloat16'"),
        ("--model=huge", "known: fits, large, tight"),
        ("--output=.", "is a folder"),
    ],
)
def test_an_answer_that_cannot_be_meant(flag: str, words: str, capsys: Output) -> None:
    assert main(["init", "--yes", flag]) == 2
    error = capsys.readouterr().err
    assert error.startswith("fleetx init: error: ")
    assert words in error
    assert os.listdir() == []


def test_questions_are_asked_again_until_they_are_answered() -> None:
    answers = "2 machines\n1\n3\nlarge\n\n"
    done = subprocess.run(
        [python(), "-m", "fleetx", "init"],
        input=answers,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "neither a number of machines" in done.stdout
    assert loaded().sharding
    assert not loaded().amp
    assert line_of(done.stdout) == ["fleetrun", "--nproc_per_node", "3", "train.py"]


def test_silence_names_the_flag() -> None:
    done = subprocess.run(
        [python(), "-m", "fleetx", "init"], input="1\n", text=True, capture_output=True, check=False
    )
    assert done.returncode == 2
    assert "give --workers, or --yes" in done.stderr
    assert os.listdir() == []


def test_ctrl_c_leaves_nothing_behind() -> None:
    """In a terminal of its own, in the middle of the questions."""
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-m", "fleetx", "init"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=heed_signals,  # noqa: PLW1509 - it takes no lock that a thread could hold
    )
    os.close(theirs)
    until(ours, b"How many machines")
    os.write(ours, b"1\n")
    until(ours, b"How many workers")
    until_it_waits(program.pid)
    program.send_signal(signal.SIGINT)
    until(ours, b"nothing was written")
    assert program.wait(timeout=stretched(60)) == 130
    os.close(ours)
    assert os.listdir() == []


def until_it_waits(pid: int) -> None:
    """A question is written before it is waited for; a signal in between waits for a key."""
    looks = ""
    while not looks.endswith("SSS"):
        looks += Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        time.sleep(0.05)


def until(terminal: int, words: bytes) -> None:
    """Read until they were said; if they are not, the end of the program is an error."""
    seen = b""
    while words not in seen:
        seen += os.read(terminal, 1024)
