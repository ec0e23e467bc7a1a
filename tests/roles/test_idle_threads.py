"""Nobody leaves while a thread still works."""

import hashlib
import threading
from pathlib import Path

import pytest

from fleetx.roles import idle_threads
from fleetx.roles.idle_threads import wait_for_idle_threads


def work(rounds: int, done: threading.Event) -> None:
    """Compute for a while without the interpreter, as the threads of a collective do."""
    hashlib.pbkdf2_hmac("sha256", b"word", b"salt", rounds)
    done.set()


def test_waits_for_a_thread_that_works() -> None:
    done = threading.Event()
    thread = threading.Thread(target=work, args=(300_000, done))
    thread.start()
    assert wait_for_idle_threads(limit=60)
    assert done.is_set()
    thread.join()


def test_does_not_wait_for_ever() -> None:
    done = threading.Event()
    thread = threading.Thread(target=work, args=(3_000_000, done))
    thread.start()
    assert not wait_for_idle_threads(limit=0.05)
    assert not done.is_set()
    thread.join()


def test_a_thread_that_waits_is_idle() -> None:
    wake = threading.Event()
    thread = threading.Thread(target=wake.wait)
    thread.start()
    assert wait_for_idle_threads(limit=60)
    wake.set()
    thread.join()


def test_a_system_that_does_not_tell_is_left_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(idle_threads, "_THREADS", tmp_path / "none")
    assert not wait_for_idle_threads(limit=60)
