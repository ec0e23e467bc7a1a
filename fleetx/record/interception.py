"""Catching what a tensor subclass cannot: functions of torch's that are replaced meanwhile."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint

from fleetx.record.checkpoint_recording import (
    checkpoint_or_record,
    records_checkpoint,
    replayed,
)
from fleetx.record.error import ProgramError
from fleetx.record.function_mode import RecordingMode, asks
from fleetx.record.functional_calls import held, owning
from fleetx.record.module_calls import Call
from fleetx.record.module_recording import (
    AutogradOperator,
    adopt,
    original_apply,
    original_call,
    record_call,
    traced,
)
from fleetx.record.program_graph import ProgramGraph
from fleetx.record.recorder import record_module
from fleetx.record.recording_state import Source, paused, state
from fleetx.record.source_lines import line_outside
from fleetx.record.variable import Variable, common_program, node_of, variables
from fleetx.torch_internals import (
    checkpoint_generator,
    functional_call,
    replace_checkpoint_generator,
    replace_functional_call,
)

# Why torch itself is changed. A tensor subclass sees functions of torch, but a program keeps layers
# as single operators, so that strategies find them: that takes the call of the module, and no hook
# of torch can stand in for a forward. The same holds for the other three functions.
#
# Why that is safe. Each of the four is replaced by one that looks for variables, and without any
# hands its arguments to the original; whatever has no variables runs as ever, in every thread.
# Under ``program_guard`` they are put back when the outermost guard ends, whether or not it failed.
# A script that records without a guard never says that it is through. There they are put back when
# it runs or saves a program (``suspend``), and replaced again when it records more: by
# ``static.data`` and the layers of ``static.nn``, which say so, and by the first function of torch
# that meets a variable (``resume``). That function may be inside of a module's forward, whose
# beginning nobody saw: it is on the stack, and recording it in pieces is refused.
#
# What would break it. Another library that replaces one of the four while a program is recorded:
# ``_put_back`` restores what was there when this module was imported. A torch that calls modules,
# autograd functions or checkpoints in other frames than those of ``_WHOLE``: then a module that is
# called first after a run is recorded in pieces. And a torch that has no ``_functional_call`` or
# ``_checkpoint_without_reentrant_generator``, which fails at the import.

_WHOLE = {
    original_call.__code__: "a module",
    original_apply.__func__.__code__: "an autograd function",
    checkpoint.checkpoint.__code__: "a checkpoint",
}
"""Code of torch -> what it calls that is recorded as a whole, from its beginning."""


def start(main: Source, startup: Source) -> None:
    """Record what meets variables from now on, until a program runs."""
    state.suspended.clear()
    if not state.default:
        state.default.append((main, startup))
        _replace()


def suspend() -> None:
    """A program runs or is saved: what was recorded without a guard is complete for now."""
    if state.default:
        state.suspended[:] = [state.default.pop()]
        _put_back()


def resume(func: Any) -> None:
    """A function of torch meets a variable: go on with what was suspended."""
    if not state.suspended or state.guards or state.paused or asks(func):
        return
    _check_whole()
    start(*state.suspended[-1])


def stop() -> None:
    """Forget what is recorded without a guard, and put torch back as it was."""
    state.default.clear()
    state.suspended.clear()
    _put_back()


def _replace() -> None:
    nn.Module.__call__ = _call_or_record  # type: ignore[method-assign]
    replace_functional_call(_functional_call_or_record)
    torch.autograd.Function.apply = classmethod(_apply_or_record)  # type: ignore[assignment,method-assign]
    replace_checkpoint_generator(checkpoint_or_record)


def _put_back() -> None:
    """Undo ``_replace``, if nobody records any more."""
    if state.guards or state.default:
        return
    nn.Module.__call__ = original_call  # type: ignore[method-assign]
    replace_functional_call(functional_call)
    torch.autograd.Function.apply = original_apply  # type: ignore[method-assign]
    replace_checkpoint_generator(checkpoint_generator)


def _check_whole() -> None:
    """Refuse a function inside of a call that began while nothing was recorded."""
    frame: FrameType | None = sys._getframe(1)
    found = None
    while frame is not None:
        found = frame if frame.f_code in _WHOLE else found
        frame = frame.f_back
    if found is not None:
        raise ProgramError(
            f"{line_outside(found)}: {_WHOLE[found.f_code]} was called with a variable, outside of "
            "static.program_guard() and after Executor.run() or a save, which end recording; it "
            "is recorded as a whole, and its beginning was missed. Record it under "
            "static.program_guard(program, startup), or before the first run."
        )


@contextmanager
def _until_returned() -> Iterator[None]:
    """Let torch stay replaced while a call is recorded, even if a program runs meanwhile."""
    state.guards.append(state.sources)
    try:
        yield
    finally:
        state.guards.pop()
        _put_back()


@contextmanager
def recording(main: Source, startup: Source) -> Iterator[None]:
    """Record under a guard."""
    state.guards.append((main, startup))
    _replace()
    try:
        with RecordingMode():
            yield
    finally:
        state.guards.pop()
        _put_back()


def _call_or_record(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if not state.on or not (found := variables((args, kwargs))):
        return original_call(module, *args, **kwargs)
    with _until_returned():
        return record_call(common_program(found), module, args, kwargs)


def _functional_call_or_record(
    module: nn.Module, given: Any, args: Any = None, kwargs: Any = None, **options: Any
) -> Any:
    """A module called with other weights: what it holds itself is known before they come."""
    if state.on and (found := variables((given, args, kwargs))):
        adopt(common_program(found), module)
        with owning(held(module)):
            return functional_call(module, given, args, kwargs, **options)
    return functional_call(module, given, args, kwargs, **options)


def _apply_or_record(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
    if cls is checkpoint.CheckpointFunction and records_checkpoint(args):
        function, preserve, *given = args
        with replayed(given, use_reentrant=True, preserve_rng_state=preserve):
            return function(*given)
    found = variables((args, kwargs)) if state.on else []
    if not found:
        return original_apply.__get__(None, cls)(*args, **kwargs)
    program, name = found[0].program, cls.__name__.lower()
    module = getattr(program.state.root, name, None)
    if module is None:
        module = AutogradOperator(cls)
        program.state.add(module, name)
    return record_module(program, module, name, args, kwargs)


def record_again(program: ProgramGraph, call: Call) -> Call:
    """Record a call into a clone, in evaluation mode; what it makes is noted as at first."""
    again = Call(call.module, call.path, call.args, call.kwargs, call.startup, call.device)
    before, program.device = program.device, call.device
    try:
        with recording(lambda: program, call.startup), call.as_it_was(paused()):
            found = traced(program, again, call.args, call.kwargs)
    finally:
        program.device = before
    if isinstance(found, Variable):
        program.names.setdefault(call.path, node_of(found))
    return again
