"""What ranks write arrives as they wrote it, call after call."""

import os
import subprocess
import sys

import pytest
from torch import distributed as dist

from fleetx.testing import world


def speak(text: str) -> None:
    print(text, dist.get_rank())


def test_every_call_shows_its_own_output_only(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("a long first line", "second", "third"):
        world(2).run(speak, text)
        assert capsys.readouterr().out == (
            f"--- output of rank 0 ---\n{text} 0\n--- output of rank 1 ---\n{text} 1\n"
        )


def test_stdout_stderr_and_children_share_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    def speak_in_all_ways() -> None:
        print("one")
        print("two", file=sys.stderr)
        subprocess.run([sys.executable, "-c", "print('three')"], check=True)
        os.write(1, b"four\n")

    for _ in range(2):
        world(1).run(speak_in_all_ways)
        assert capsys.readouterr().out == "--- output of rank 0 ---\none\ntwo\nthree\nfour\n"


def test_a_failure_note_after_an_earlier_call_holds_no_nul_bytes() -> None:
    def fail() -> None:
        print("last words")
        raise ValueError("lost")

    world(2).run(speak, "earlier words")
    with pytest.raises(ValueError, match="lost") as caught:
        world(2).run(fail)
    notes = "\n".join(caught.value.__notes__)
    assert "--- output of rank 0 ---\nlast words\n" in notes
    assert "\0" not in notes
