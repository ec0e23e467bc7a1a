"""Logs have one line for each progress bar; terminals see all of it."""

import os
import pty
import re
import subprocess
import tempfile

import pytest

from fleetx.launch.progress_bars import LastStates
from tests.launch.conftest import Launcher


def written(*parts: str) -> str:
    """What is left of what was written part by part."""
    with tempfile.TemporaryFile() as file:
        stream = LastStates(file.fileno(), "<stdout>", lambda row: None)
        for part in parts:
            assert stream.write(part.encode()) == len(part.encode())
        stream.finish()
        file.seek(0)
        return file.read().decode()


@pytest.mark.parametrize(
    ("parts", "left"),
    [
        (["a", "b\n", "c"], "ab\nc"),
        (["one\r\ntwo\r\n"], "one\ntwo\n"),
        (["\r 1%", "\r 50%", "\r100%", "\n", "done\n"], "100%\ndone\n"),
        (["1%\r2%\r", "the end"], "the end\n"),
        (["loading ", "\r1%", "\r2%", "\n"], "loading \r2%\n"),
        (["text", "\r", "\n", "more\n"], "text\nmore\n"),
        (["\r 1%", "\r      ", "\r", "after\n"], "after\n"),
        (["\r\x1b[32m 1%", "\r\x1b[32m 2%\x1b[0m\n"], "\x1b[32m 2%\x1b[0m\n"),
        (["\r 9%", ""], " 9%\n"),
    ],
)
def test_a_line_that_is_drawn_over_leaves_its_last_state(parts: list[str], left: str) -> None:
    assert written(*parts) == left


def test_plain_text_is_written_at_once() -> None:
    with tempfile.TemporaryFile() as file:
        stream = LastStates(file.fileno(), "<stdout>", lambda row: None)
        stream.write(b"no line yet")
        assert os.fstat(file.fileno()).st_size == 11


def test_bars_below_each_other_are_bars() -> None:
    inner = [part for i in range(100) for part in ("\n", f"\rinner {i}", "\x1b[A")]
    lines = written("\router 0", *inner, "\router 1", *inner, "\router 2", "\n", "\rwell\n")
    assert lines.splitlines() == ["outer 0", "outer 2", "well"]


BARS = """
import sys, time
from tqdm import tqdm
for epoch in range(3):
    for _ in tqdm(range(40), desc=f"epoch {epoch + 1}/3", mininterval=0):
        if epoch == 1 and _ == 20:
            print("half")
    print(f"[Epoch {epoch + 1}] over")
for _ in tqdm(range(3), desc="outer", mininterval=0):
    for _ in tqdm(range(50), desc="inner", mininterval=0, leave=False):
        pass
"""


def test_bars_of_tqdm_are_one_line_for_each_epoch(launcher: Launcher) -> None:
    outcome = launcher.run("--nproc_per_node", "2", launcher.script(BARS))
    assert outcome.code == 0, outcome.err
    for text in (launcher.log("workerlog.0"), launcher.log("workerlog.1"), outcome.out):
        assert "\r" not in text
        found = re.findall(
            r"^epoch (\d)/3: 100%.* 40/40 |^\[Epoch (\d)\] over|^(half)$", text, re.M
        )
        assert ["".join(groups) for groups in found] == ["1", "1", "half", "2", "2", "3", "3"]
        assert re.search(r"^outer: 100%", text, re.M)
        assert len(re.findall("^outer|^inner", text, re.M)) <= 4


def test_a_traceback_stands_below_the_bar(launcher: Launcher) -> None:
    script = "from tqdm import tqdm\nfor i in tqdm(range(9), mininterval=0):\n    assert i < 5\n"
    outcome = launcher.run(launcher.script(script))
    assert outcome.code == 1
    lines = launcher.log("workerlog.0").splitlines()
    assert "5/9" in lines[0]
    assert lines[1].startswith("Traceback")


def test_a_terminal_sees_every_state(launcher: Launcher) -> None:
    script = launcher.script(
        "import sys\nfor i in range(5): sys.stderr.write(f'\\r{i} of 4')\nprint('\\nfine')\n"
    )
    ours, theirs = pty.openpty()
    command = [launcher.executable, "-m", "fleetx.launch", script]
    environ = os.environ | {"CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(launcher.folder)}
    with subprocess.Popen(
        command, cwd=launcher.folder, stdout=theirs, stderr=theirs, stdin=theirs, env=environ
    ) as process:
        os.close(theirs)
        seen = b"".join(iter(lambda: read(ours), b""))
    os.close(ours)
    assert process.returncode == 0, seen
    for state in range(5):
        assert f"\r\x1b[K{state} of 4\r".encode() in seen
    assert b"fine" in seen
    assert "\r" not in launcher.log("workerlog.0")


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # everybody has left it
        return b""


def test_streams_are_what_scripts_expect(launcher: Launcher) -> None:
    script = """
import os, sys
assert sys.stdout.fileno() == 1 and sys.stderr.fileno() == 2
assert sys.stdout.name == "<stdout>" and sys.stdout.encoding.lower() == "utf-8"
sys.stdout.buffer.write("bytes \\u00e4\\n".encode())
sys.stdout.reconfigure(line_buffering=True)
sys.stderr.write("\\r1%")
if os.fork() == 0:
    print("child")
    sys.exit(0)
os.wait()
print("parent")
"""
    outcome = launcher.run(launcher.script(script), PYTHONIOENCODING="utf-8")
    assert outcome.code == 0, outcome.err
    assert launcher.log("workerlog.0") == "bytes \u00e4\nchild\nparent\n1%\n"
