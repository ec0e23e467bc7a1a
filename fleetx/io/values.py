"""The values of a program, and the state of its training, as tensors by name."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fleetx.api.weights import spread_like
from fleetx.io.training_state import MARK, to_state, to_tensors
from fleetx.plan.strategy import REGISTRY
from fleetx.record.error import ProgramError
from fleetx.record.interception import suspend
from fleetx.roles.worker_util import util
from fleetx.static.record.program import Program
from fleetx.static.run.training import training_of
from fleetx.static.run.training_run import TrainingRun, begun

TICKS = "@ticks"
"""The name under which the runs so far are saved, which learning-rate schedules count."""


def values(program: Program) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return program.state.persistent()


def whole_values(program: Program, call: str) -> dict[str, Tensor]:
    """The same to read: where they are spread over workers, all of these make the ``call``."""
    suspend()
    if program.state.spread is None:
        return values(program)
    util.meet(call)
    found = program.state.spread.on_host()
    return {name: found.get(name, value) for name, value in values(program).items()}


def training_values(program: Program) -> dict[str, Tensor]:
    """State of the optimizer and of strategies by name; nothing before the first run."""
    training = training_of(program)
    run = begun(training) if training is not None else None
    if training is None or run is None or training.wrapper is None:
        return {}
    found = to_tensors(training.wrapper.state_dict(), list(_order(run)))
    if program.state.spread is not None:
        found = program.state.spread.on_host(found)
    return found | {TICKS: torch.tensor(training.ticks)}


def everything(program: Program, call: str) -> dict[str, Tensor]:
    """Values and the state of their training."""
    return whole_values(program, call) | training_values(program)


def _order(run: TrainingRun) -> dict[str, Tensor]:
    """The parameters in the order in which the optimizer counts them."""
    names, groups = run.engine.names, run.optimizer.param_groups
    return {names[p]: p for group in groups for p in group["params"]}


@torch.no_grad()
def put(program: Program, found: Mapping[str, Tensor]) -> None:
    """Overwrite the program's values; an optimizer that is still to come takes its state then."""
    known = values(program)
    program.state.gather("load_persistables")
    for name, tensor in found.items():
        if name in known:
            _copy(name, known[name], tensor)
    program.state.deal()
    _note_loaded(program, {id(known[name]) for name in found if name in known})
    state = {name: tensor for name, tensor in found.items() if name not in known}
    training = training_of(program)
    if not state or training is None:
        return
    training.ticks = int(state.pop(TICKS, torch.tensor(training.ticks)))

    if training.run is None:
        mine = {name: found[name] for name in known if name in found}
        training.at_start.append(lambda: _continue(program, state, mine))
    else:
        _continue(program, state, {})


def restart_without(program: Program, found: Mapping[str, Tensor]) -> None:
    """Let training begin anew when all was saved before its first run, so that it had no state."""
    training = training_of(program)
    if training is not None and not any(MARK in name for name in found):
        training.restart()


def _note_loaded(program: Program, loaded: set[int]) -> None:
    """Layers may run when all that is saved of them was loaded; the others still need a start."""
    known = {id(value) for value in values(program).values()}
    for initial in program.layers.values():
        if initial.done:
            continue
        own = {id(v) for v in initial.module.state_dict(keep_vars=True).values()} & known
        initial.loaded |= own & loaded
        if not own:
            initial.draw()  # nothing of it is ever saved, such as what a metric counted
        initial.done = initial.loaded >= own


@torch.no_grad()
def _continue(program: Program, state: Mapping[str, Tensor], mine: Mapping[str, Tensor]) -> None:
    """Give optimizer and strategies their state; the engine has made workers equal meanwhile."""
    training = training_of(program)
    assert training is not None
    wrapper, run = training.wrapper, begun(training)
    assert wrapper is not None
    assert run is not None
    order = _order(run)
    like = wrapper.state_dict()
    made = to_state(state, like, list(order))
    made["strategies"] = _fitting(made["strategies"], like.get("strategies", {}))
    for number, parameter in enumerate(order.values()):
        kept = made["state"].get(number, {})
        kept |= {key: _laid_out(value, parameter) for key, value in kept.items()}
    wrapper.load_state_dict(made)
    if not all(strategy.in_step() for strategy in run.engine.plan.strategies):
        program.state.gather("load_persistables")
        known = values(program)
        for name, tensor in mine.items():  # they were saved between two meetings
            known[name].copy_(tensor)
        program.state.deal()


def _fitting(saved: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, Any]:
    """What strategies kept; files with whole values fit layouts other than their own."""
    free = {name for name, kind in REGISTRY.items() if kind.leaves_state}
    own = {name: state for name, state in here.items() if name in free}
    return own | {name: s for name, s in saved.items() if name in own or name not in free}


def _laid_out(value: Any, parameter: Tensor) -> Any:
    """What an optimizer keeps for a parameter that is spread over workers is spread like it."""
    alike = isinstance(value, Tensor) and value.shape == parameter.shape
    return spread_like(value, parameter) if alike else value


def _copy(name: str, target: Tensor, source: Tensor) -> None:
    if target.shape != source.shape:
        raise ProgramError(
            f"{name!r} was saved with the shape {list(source.shape)}, and the program has it as "
            f"{list(target.shape)}; load into the program that was saved, or leave it out with "
            "load_vars(predicate=…)."
        )
    target.copy_(source)
