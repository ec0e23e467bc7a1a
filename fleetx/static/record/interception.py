"""Catching what a tensor subclass cannot: module calls, factories, expressions of parameters."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from typing_extensions import override

from fleetx.graph.torch_functions import FACTORIES
from fleetx.static.record import module_calls
from fleetx.static.record.error import ProgramError
from fleetx.static.record.functional_calls import given_weights, held, owning
from fleetx.static.record.initial import Initial
from fleetx.static.record.module_calls import Call
from fleetx.static.record.module_hooks import check_backward_hooks, has_hooks, with_forward
from fleetx.static.record.program_graph import ProgramGraph
from fleetx.static.record.recorder import is_view, record, record_module
from fleetx.static.record.source_lines import line_outside, user_line
from fleetx.static.record.variable import Variable, common_program, node_of, variables
from fleetx.torch_internals import (
    as_if_compiling,
    buffers_of,
    checkpoint_generator,
    children_of,
    functional_call,
    infer_parameters,
    replace_checkpoint_generator,
    replace_functional_call,
    tree_leaves,
    tree_map,
    without_torch_function,
)

Source = Callable[[], ProgramGraph]
Sources = tuple[Source, Source]
"""Give the program that is recorded into, and the one of first values."""

QUESTIONS = frozenset(
    {"__get__", "__set__", "size", "dim", "numel", "is_floating_point", "is_complex", "stride"}
    | {"__len__", "requires_grad_", "__repr__", "__hash__", "__format__", "data_ptr", "nelement"}
    | {"ndimension", "element_size", "storage_offset", "is_contiguous", "is_pinned"}
)
"""Calls on parameters that tell something and compute nothing."""


class _Recording(threading.local):
    """What is being recorded; torch itself is changed while there is something.

    Threads record into the same programs, but each runs programs of its own.
    """

    guards: ClassVar[list[Sources]] = []
    """Of every ``program_guard``, and of every call of a module while it is recorded."""
    default: ClassVar[list[Sources]] = []
    """At most one: a script records without a guard."""
    suspended: ClassVar[list[Sources]] = []
    """At most one: a script did so, and then ran a program."""
    depth = 0
    """How many modules of the user's are around the line that runs now."""
    buffers: ClassVar[dict[nn.Module, dict[str, Tensor | None]]] = {}
    """What the buffers of the outermost of them were at its beginning."""
    paused = False
    """Whether a program runs, so that nothing is to be recorded."""

    @property
    def sources(self) -> Sources:
        """The programs that are recorded into."""
        return (self.guards or self.default)[-1]

    @property
    def on(self) -> bool:
        return bool(self.guards or self.default) and not self.paused


_recording = _Recording()
_call = nn.Module.__call__
_apply = torch.autograd.Function.__dict__["apply"]


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
    _call.__code__: "a module",
    _apply.__func__.__code__: "an autograd function",
    checkpoint.checkpoint.__code__: "a checkpoint",
}
"""Code of torch -> what it calls that is recorded as a whole, from its beginning."""


def start(main: Source, startup: Source) -> None:
    """Record what meets variables from now on, until a program runs."""
    _recording.suspended.clear()
    if not _recording.default:
        _recording.default.append((main, startup))
        _replace()


def suspend() -> None:
    """A program runs or is saved: what was recorded without a guard is complete for now."""
    if _recording.default:
        _recording.suspended[:] = [_recording.default.pop()]
        _put_back()


def resume(func: Any) -> None:
    """A function of torch meets a variable: go on with what was suspended."""
    if not _recording.suspended or _recording.guards or _recording.paused or _asks(func):
        return
    _check_whole()
    start(*_recording.suspended[-1])


def stop() -> None:
    """Forget what is recorded without a guard, and put torch back as it was."""
    _recording.default.clear()
    _recording.suspended.clear()
    _put_back()


def _replace() -> None:
    nn.Module.__call__ = _call_or_record  # type: ignore[method-assign]
    replace_functional_call(_functional_call_or_record)
    torch.autograd.Function.apply = classmethod(_apply_or_record)  # type: ignore[assignment,method-assign]
    replace_checkpoint_generator(_checkpoint_or_record)


def _put_back() -> None:
    """Undo ``_replace``, if nobody records any more."""
    if _recording.guards or _recording.default:
        return
    nn.Module.__call__ = _call  # type: ignore[method-assign]
    replace_functional_call(functional_call)
    torch.autograd.Function.apply = _apply  # type: ignore[method-assign]
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
    _recording.guards.append(_recording.sources)
    try:
        yield
    finally:
        _recording.guards.pop()
        _put_back()


@contextmanager
def recording(main: Source, startup: Source) -> Iterator[None]:
    """Record under a guard."""
    _recording.guards.append((main, startup))
    _replace()
    try:
        with _Mode():
            yield
    finally:
        _recording.guards.pop()
        _put_back()


class paused:
    """Lets torch compute, while a program runs."""

    def __enter__(self) -> None:
        self._before, _recording.paused = _recording.paused, True

    def __exit__(self, *error: object) -> None:
        _recording.paused = self._before


def _call_or_record(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if not _recording.on or not (found := variables((args, kwargs))):
        return _call(module, *args, **kwargs)
    with _until_returned():
        return _recorded_call(common_program(found), module, args, kwargs)


def _recorded_call(program: ProgramGraph, module: nn.Module, args: Any, kwargs: Any) -> Any:
    adopt(program, module)
    _initialise(module, args, kwargs)
    path = program.state.path(module)
    assert path is not None
    if is_leaf(module) and not given_weights(module):
        return _operator(program, module, path, args, kwargs)
    check_backward_hooks(module)
    if _recording.depth == 0:
        made = _outermost(program, module, path, args, kwargs)
    else:
        made = _through(module, path, args, kwargs)
    if isinstance(made, Variable):
        program.names.setdefault(path, node_of(made))
    return made


def _functional_call_or_record(
    module: nn.Module, given: Any, args: Any = None, kwargs: Any = None, **options: Any
) -> Any:
    """A module called with other weights: what it holds itself is known before they come."""
    if _recording.on and (found := variables((given, args, kwargs))):
        adopt(common_program(found), module)
        with owning(held(module)):
            return functional_call(module, given, args, kwargs, **options)
    return functional_call(module, given, args, kwargs, **options)


def adopt(program: ProgramGraph, module: nn.Module) -> None:
    """Make a module's parameters the program's, with the values that they have."""
    if program.state.path(module) is not None:
        return
    _, startup = _recording.sources
    known = startup().initial
    name = next((n for n, initial in known.items() if initial.module is module), None)
    if name is None:
        taken = {*known, *children_of(program.state.root)}
        name = startup().layer_names.fresh(type(module).__name__.lower(), taken)
    program.state.add(module, name)
    initial = known.setdefault(name, Initial(module, reset=None, done=True))
    initial.state = initial.state or program.state
    program.layers[name] = initial


def _initialise(module: nn.Module, args: Any, kwargs: Any) -> None:
    """A lazy module learns its sizes from its first arguments, which are no numbers."""
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        try:
            with paused(), without_torch_function():
                infer_parameters(module, args, kwargs)
        except RuntimeError as error:
            raise ProgramError(
                f"{user_line()}: a {type(module).__name__} learns its size from its first input, "
                f"and cannot from this one ({error}); give static.data() the size of the dimension "
                "that the weights need, or the layer its sizes."
            ) from error


def is_leaf(module: nn.Module) -> bool:
    """Whether a module is one operator, so that strategies find it as a module."""
    if isinstance(module, (torch.jit.ScriptModule, _Opaque, nn.MultiheadAttention)):
        return True
    if parametrize.is_parametrized(module) or getattr(module, "one_operator", False):
        return True
    return module.__module__.startswith("torch.nn") and not any(True for _ in module.children())


def _operator(program: ProgramGraph, module: nn.Module, path: str, args: Any, kwargs: Any) -> Any:
    """Record a module as one operator, between the user's hooks."""
    if not has_hooks(module):
        return record_module(program, module, path, args, kwargs)

    def recorded(bare: nn.Module) -> Callable[..., Any]:
        return lambda *args, **kwargs: record_module(program, bare, path, args, kwargs)

    with with_forward(module, recorded):
        return _call(module, *args, **kwargs)


def _outermost(program: ProgramGraph, module: nn.Module, path: str, args: Any, kwargs: Any) -> Any:
    """Record a call that no other module's forward makes; keep it if it asks for modes."""
    call = Call(module, path, args, kwargs, _recording.sources[1], program.device)
    made = _traced(program, call, args, kwargs)
    if call.line is not None:
        program.calls.append(call)
    return made


def _traced(program: ProgramGraph, call: Call, args: Any, kwargs: Any) -> Any:
    buffers = {part: dict(buffers_of(part)) for part in call.module.modules()}
    _recording.buffers.update(buffers)
    try:
        with _Mode(), as_if_compiling(), module_calls.recording(call):

            def finish(made: Any) -> Any:
                for part, before in buffers.items():
                    _write_back(program, part, before)
                return _apart(program, call, made) if call.line is not None else made

            return _through(call.module, call.path, args, kwargs, finish)
    finally:
        call.end = next(iter(reversed(program.graph.nodes)))
        for part, before in buffers.items():
            buffers_of(part).update(before)
            del _recording.buffers[part]


def _through(
    module: nn.Module,
    path: str,
    args: Any,
    kwargs: Any,
    finish: Callable[[Any], Any] = lambda made: made,
) -> Any:
    """Run the user's own forward, with everything in it recorded."""
    _recording.depth += 1
    try:
        with module_calls.inside(path) as returned:
            made = finish(_call(module, *args, **kwargs))
            returned(made)
        return made
    finally:
        _recording.depth -= 1


def _apart(program: ProgramGraph, call: Call, made: Any) -> Any:
    """Give what went through untouched a node of its own: in evaluation mode it may not."""
    own = set(call.nodes())

    def apart(leaf: Any) -> Any:
        if isinstance(leaf, Variable) and node_of(leaf) not in own:
            return record(program, Tensor.view_as, (leaf, leaf), {})
        return leaf

    return tree_map(apart, made)


def record_again(program: ProgramGraph, call: Call) -> Call:
    """Record a call into a clone, in evaluation mode; what it makes is noted as at first."""
    again = Call(call.module, call.path, call.args, call.kwargs, call.startup, call.device)
    before, program.device = program.device, call.device
    try:
        with recording(lambda: program, call.startup), call.as_it_was(paused()):
            found = _traced(program, again, call.args, call.kwargs)
    finally:
        program.device = before
    if isinstance(found, Variable):
        program.names.setdefault(call.path, node_of(found))
    return again


def _write_back(program: ProgramGraph, module: nn.Module, before: dict[str, Tensor | None]) -> None:
    """A buffer that was assigned becomes one that is written: the module keeps its own tensor."""
    for name, value in buffers_of(module).items():
        kept = before.get(name)
        if isinstance(value, Variable) and kept is not None:
            record(program, Tensor.copy_, (kept, value.detach()), {})


class _Opaque(nn.Module):
    """An autograd function as one operator: its backward is its own."""

    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function = function

    @override
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return _apply.__get__(None, self.function)(*args, **kwargs)


def _apply_or_record(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
    if cls is checkpoint.CheckpointFunction and _records_checkpoint(args):
        function, preserve, *given = args
        with _replayed(given, use_reentrant=True, preserve_rng_state=preserve):
            return function(*given)
    found = variables((args, kwargs)) if _recording.on else []
    if not found:
        return _apply.__get__(None, cls)(*args, **kwargs)
    program, name = found[0].program, cls.__name__.lower()
    module = getattr(program.state.root, name, None)
    if module is None:
        module = _Opaque(cls)
        program.state.add(module, name)
    return record_module(program, module, name, args, kwargs)


def _records_checkpoint(values: Any) -> bool:
    """Whether a checkpoint is the program's: variables may hide in the closure of its function."""
    return _recording.on and (_recording.depth > 0 or bool(variables(values)))


_OPTIONS = ("preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")
"""Of a checkpoint without reentrance, in the order in which torch hands them on."""


def _checkpoint_or_record(function: Any, *given: Any, **kwargs: Any) -> Iterator[None]:
    """Around the function of a checkpoint without reentrance, which torch calls by itself."""
    options, args = given[: len(_OPTIONS)], given[len(_OPTIONS) :]
    if not _records_checkpoint((args, kwargs)):
        yield from checkpoint_generator(function, *given, **kwargs)
        return
    known = dict(zip(_OPTIONS, options, strict=True))
    with _replayed([*args, *kwargs.values()], use_reentrant=False, **known):
        yield


@contextmanager
def _replayed(given: Sequence[Any], **options: Any) -> Iterator[None]:
    found = variables(given)
    program = found[0].program if found else _recording.sources[0]()
    own = [value.node for value in given if isinstance(value, Variable)]
    with program.replayed(own, options) as replay:
        yield
    for module, before in _recording.buffers.items():
        for name, value in buffers_of(module).items():
            made = isinstance(value, Variable) and value is not before.get(name)
            if made and replay in vars(value)["node"].meta["replays"]:
                raise ProgramError(
                    f"{user_line()}: checkpoint() runs its function again in backward, and the "
                    f"buffer {name!r} of a {type(module).__name__} is assigned in it, which a "
                    f"program cannot do again; write self.{name}.copy_(...), or assign it outside."
                )


class _Mode(TorchFunctionMode):
    """Sees every call of torch, those without a variable too."""

    @override
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _recording.on:
            return func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        if found := [leaf for leaf in leaves if isinstance(leaf, Variable)]:
            return record(common_program(found), func, args, kwargs)
        program = _recording.sources[0]()
        if _is_operator(program, func, leaves):
            return record(program, func, args, kwargs)
        return func(*args, **kwargs)


def _is_operator(program: ProgramGraph, func: Any, leaves: list[Any]) -> bool:
    """Whether a call that has no variable belongs into the program all the same."""
    if _asks(func):
        return False
    if any(isinstance(leaf, torch.SymInt) for leaf in leaves):
        return True
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if _recording.depth > 0:
        return any(program.state.path(tensor) for tensor in tensors) or (
            not tensors and func in FACTORIES
        )
    known = any(program.state.path(t) and isinstance(t, nn.Parameter) for t in tensors)
    in_place = getattr(func, "__name__", "").endswith("_")
    return known and torch.is_grad_enabled() and not in_place


def _asks(func: Any) -> bool:
    """Whether a function tells something and computes nothing."""
    return getattr(func, "__name__", "") in QUESTIONS and not is_view(func)
