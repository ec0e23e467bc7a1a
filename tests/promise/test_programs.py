"""Every option about building and running a program is in force, is so anyway, or is refused."""

import inspect
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx import PlanError, static
from fleetx.static.run.training_run import running
from fleetx.testing import world
from tests.promise.answers import AUTO, PROGRAMS, Always, Answer, Changes, Refused
from tests.promise.options import every

OPTIONS = every()


@dataclass
class Seen:
    """What is left of a program that ran twice."""

    weights: list[float] = field(default_factory=list)
    code: str = ""
    """The forward as it runs."""
    compiled: int = 0
    """How often ``torch.compile`` was asked."""
    fused: Any = None
    """Whether the optimizer moves all parameters at once."""
    threads: int = 0
    drawn: bool = False


def ran(settings: dict[str, Any], drawing: Path) -> Seen:
    """A program of this process, trained for two runs with the given options."""
    static.reset()
    torch.set_num_threads(1)
    drawing.unlink(missing_ok=True)
    seen = Seen()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    loss = F.cross_entropy(model(static.data("x", [None, 4])), static.data("y", [None], "int64"))
    static.Optimizer(torch.optim.SGD, lr=0.5).minimize(loss)
    build, execution = static.BuildStrategy(), static.ExecutionStrategy()
    for block, given in (("build_strategy", build), ("execution_strategy", execution)):
        given.update(settings.get(block, {}))
    main = static.default_main_program()
    program = static.CompiledProgram(main, build).with_data_parallel(exec_strategy=execution)
    feed = {"x": np.eye(4, dtype=np.float32), "y": np.array([0, 1, 1, 0])}
    eager = partial(torch.compile, backend="eager")  # code generation takes minutes on a CPU
    with mock.patch.object(torch, "compile", side_effect=eager) as compile:
        exe = static.Executor()
        for _ in range(2):
            exe.run(program, feed, [loss])
    seen.compiled = compile.call_count
    seen.threads, seen.drawn = torch.get_num_threads(), drawing.exists()
    seen.weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    run = running(main, exe.device)
    seen.code = inspect.getsource(run.lowered.code)
    seen.fused = run.optimizer.param_groups[0]["foreach"]
    static.reset()
    return seen


def told(settings: dict[str, Any], drawing: Path) -> Seen | str:
    try:
        return ran(settings, drawing)
    except PlanError as error:
        return str(error)


def settings(name: str, drawing: Path) -> dict[str, Any]:
    option, answer = OPTIONS[name], PROGRAMS[name]
    assert isinstance(answer, Answer)
    if option.key == "debug_graphviz_path":
        return option.settings(str(drawing))
    return option.settings(option.other() if answer.value is AUTO else answer.value)


ASKED = [name for name, answer in PROGRAMS.items() if isinstance(answer, Answer)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen | str]:
    """What each option makes of the program; under no name, the program without any."""
    drawing = tmp_path_factory.mktemp("drawn") / "graph.dot"
    wanted: dict[str, dict[str, Any]] = {"": {}} | {name: settings(name, drawing) for name in ASKED}
    found: dict[str, Seen | str] = world(1, timeout=280).run(all_of, wanted, drawing)[0]
    return found


def all_of(wanted: dict[str, dict[str, Any]], drawing: Path) -> dict[str, Seen | str]:
    return {name: told(given, drawing) for name, given in wanted.items()}


@pytest.mark.parametrize("name", ASKED)
def test_a_program_obeys_or_says_why_not(name: str, runs: dict[str, Seen | str]) -> None:
    answer, off, on = PROGRAMS[name], runs[""], runs[name]
    if isinstance(answer, Refused):
        assert isinstance(on, str)
        assert answer.words in on
        assert OPTIONS[name].key in on
        return
    assert isinstance(answer, Changes)
    assert isinstance(on, Seen), on
    assert isinstance(off, Seen), off
    assert getattr(on, answer.what) != getattr(off, answer.what)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_model_that_is_no_program_refuses_them(name: str, tmp_path: Path) -> None:
    option, answer = OPTIONS[name], PROGRAMS[name]
    value = str(tmp_path) if option.key == "debug_graphviz_path" else option.other()
    strategy = fleet.DistributedStrategy()
    for attribute, given in option.settings(value).items():
        setattr(strategy, attribute, given)
    with pytest.raises(PlanError, match="cannot be in force"):
        strategy.explain(workers=2)
    if isinstance(answer, Always):
        assert len(answer.why.split()) > 5, "a sentence of why"
