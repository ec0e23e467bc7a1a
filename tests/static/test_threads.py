"""Threads that run programs at once, and recording behind them."""

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fleetx import static
from fleetx.record.recording_state import paused
from fleetx.static.run.training import training_of

BATCH = {"x": np.ones((1, 4), np.float32)}


@pytest.fixture(autouse=True)
def _by_turns() -> Iterator[None]:
    """Let threads change places as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*works: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def recorded() -> tuple[static.Program, Any]:
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        out = static.nn.fc(static.data("x", [None, 4]), 2)
    static.Executor().run(startup)
    return main, out


def test_a_pause_is_that_of_one_thread() -> None:
    inside, outside = threading.Event(), threading.Event()

    def pause() -> None:
        with paused():
            inside.set()
            outside.wait(30)

    thread = threading.Thread(target=pause)
    layer, x = nn.Linear(4, 2), static.data("x", [None, 4])
    with paused():
        thread.start()
        assert inside.wait(30)
    try:
        assert isinstance(layer(x), static.Variable), "the other thread pauses still"
    finally:
        outside.set()
        thread.join()
    assert isinstance(layer(x), static.Variable)


def test_threads_run_programs_of_their_own() -> None:
    def work(main: static.Program, out: Any) -> Callable[[], None]:
        exe = static.Executor()

        def run() -> None:
            for _ in range(200):
                exe.run(main, BATCH, [out])

        return run

    together(*(work(*recorded()) for _ in range(2)))
    main = static.Program()
    with static.program_guard(main, static.Program()):
        nn.Linear(4, 2)(static.data("x", [None, 4]))
    assert list(main.state.trained()) == ["linear_0.weight", "linear_0.bias"]


def test_threads_that_fetch_from_one_program() -> None:
    main, out = recorded()
    with static.program_guard(main):
        more = out + 1
    exe, wrong = static.Executor(), []
    (expected,) = exe.run(main, BATCH, [out])

    def work(variable: Any, added: float) -> Callable[[], None]:
        def run() -> None:
            for _ in range(300):
                (found,) = exe.run(main, BATCH, [variable])
                if not np.allclose(found - added, expected):
                    wrong.append(found)

        return run

    together(work(out, 0), work(more, 1))
    assert not wrong


def test_threads_that_train_make_one_optimizer() -> None:
    main, out = recorded()
    with static.program_guard(main):
        static.Optimizer(torch.optim.SGD, lr=0.1).minimize(out.mean())
    exe = static.Executor()

    def run() -> None:
        for _ in range(50):
            exe.run(main, BATCH, [])

    together(run, run)
    training = training_of(main)
    assert training is not None
    assert training.ticks == 100
