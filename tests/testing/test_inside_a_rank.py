"""A rank starts no ranks: it says so at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleetx.testing import world

UNGUARDED = """
import os
from fleetx.testing import world

def number():
    return os.getpid()

{guard}world(2, timeout=20).run(number)
"""


@pytest.mark.parametrize("size", [1, 2])
def test_a_world_inside_a_rank_is_refused(size: int) -> None:
    def nest() -> None:
        world(size).run(os.getpid)

    with pytest.raises(RuntimeError, match=rf"world\({size}\).* inside rank \d of 2") as caught:
        world(2).run(nest)
    assert 'put the call under `if __name__ == "__main__":`' in str(caught.value)


def test_a_decorated_function_inside_a_rank_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"world\(2\).* inside rank \d of 2"):
        world(2).run(world(2)(os.getpid))


def test_processes_are_not_asked_for_inside_a_rank() -> None:
    with pytest.raises(RuntimeError, match="inside rank 0 of 1"):
        world(1).run(lambda: world(3).pids)


def run_script(path: Path, guard: str) -> subprocess.CompletedProcess[str]:
    path.write_text(UNGUARDED.format(guard=guard))
    return subprocess.run(
        [sys.executable, str(path)], check=False, capture_output=True, text=True, timeout=60
    )


def test_a_script_without_the_guard_is_told_to_add_it(tmp_path: Path) -> None:
    done = run_script(tmp_path / "script.py", "")
    assert done.returncode == 1
    assert "\nRuntimeError: world(2)" in done.stderr
    assert 'if __name__ == "__main__":' in done.stderr


def test_a_script_with_the_guard_runs(tmp_path: Path) -> None:
    done = run_script(tmp_path / "script.py", 'if __name__ == "__main__": ')
    assert (done.returncode, done.stderr) == (0, "")
