"""Learning rates that a program computes: from variables to schedules, which optimizers take."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from fleetx.compat.recorded import fake
from fleetx.record.liveness import live_nodes
from fleetx.record.recorder import emit
from fleetx.record.variable import Variable
from fleetx.record.writes import written
from fleetx.static.lr import Schedule
from fleetx.static.record.current import default_main_program, record_by_default
from fleetx.static.record.program import Program, program_of
from fleetx.static.run.training import training_of


class _Clock:
    """Says how many runs of training there were."""

    def __init__(self, program: Program, begin: int) -> None:
        self._program, self._begin = program, begin

    def at(self, ticks: int, device: Any = None) -> Tensor:
        """The counter in the run that follows ``ticks`` others."""
        return torch.full((1,), float(self._begin + ticks), device=device)

    def now(self, device: Any = None) -> Tensor:
        """The counter in the run that runs."""
        training = training_of(self._program)
        ticks = training.clock().ticks if training is not None else 1
        return self.at(max(ticks - 1, 0), device)


def step_counter(begin: int = 0) -> Variable:
    """A variable that counts runs of training: ``begin`` in the first one."""
    record_by_default()
    program = default_main_program()
    clock = _Clock(program, begin)

    def step(device: Any = None) -> Tensor:
        return clock.now(device)

    found = fake([1], torch.float32)
    device = torch.device("cpu")
    made: Variable = emit(program, "call_function", step, (), {"device": device}, found=found)
    made.node.meta["clock"] = clock
    return made


def schedule_of(variable: Tensor) -> Schedule:
    """The learning rate that operators of a program make of the number of runs."""
    assert isinstance(variable, Variable)
    program, node = program_of(variable), variable.node
    order = [n for n in program.graph.nodes if n in live_nodes(program.graph, [node])]
    if fed := [str(n.target) for n in order if n.op == "placeholder"]:
        raise ValueError(
            f"the learning rate {variable.name!r} is computed from what is fed ({fed[0]}), and it "
            "must be known before a run; compute it from the step counter or a global variable."
        )
    order = [n for n in order if written(n) is None]

    def rate(ticks: int) -> float:
        return _evaluated(program, order, node, ticks)

    return Schedule(rate, name=variable.name)


@torch.no_grad()
def _evaluated(program: Program, order: list[fx.Node], last: fx.Node, ticks: int) -> float:
    values: dict[fx.Node, Any] = {}
    for node in order:
        values[node] = _value(program, node, values, ticks)
    return float(torch.as_tensor(values[last]).reshape(-1)[0])


def _value(program: Program, node: fx.Node, values: dict[fx.Node, Any], ticks: int) -> Any:
    if "clock" in node.meta:
        return node.meta["clock"].at(ticks)
    if node.op == "get_attr":
        owner, _, name = str(node.target).rpartition(".")
        return getattr(program.state.root.get_submodule(owner), name).detach().cpu()
    args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
    if node.op == "call_method":
        method: Callable[..., Any] = getattr(torch.Tensor, str(node.target))
        return method(*args, **kwargs)
    assert callable(node.target), node
    return node.target(*args, **kwargs)
