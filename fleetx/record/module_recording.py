"""How a call of a module is recorded: as one operator, or by everything that its forward does."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize
from typing_extensions import override

from fleetx.record import module_calls
from fleetx.record.error import ProgramError
from fleetx.record.function_mode import RecordingMode
from fleetx.record.functional_calls import given_weights
from fleetx.record.initial import Initial
from fleetx.record.module_calls import Call
from fleetx.record.module_hooks import check_backward_hooks, has_hooks, with_forward
from fleetx.record.program_graph import ProgramGraph
from fleetx.record.recorder import record, record_module
from fleetx.record.recording_state import paused, state
from fleetx.record.source_lines import user_line
from fleetx.record.variable import Variable, node_of
from fleetx.torch_internals import (
    as_if_compiling,
    buffers_of,
    children_of,
    infer_parameters,
    tree_map,
    without_torch_function,
)

# Torch's own, whatever stands in their place while a program is recorded.
original_call = nn.Module.__call__
original_apply = torch.autograd.Function.__dict__["apply"]


def record_call(program: ProgramGraph, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Record the call of a module, whose parameters become the program's."""
    adopt(program, module)
    path = program.state.path(module)
    assert path is not None
    if (whole := program.whole_call(module)) is not None:
        return whole(*args, **kwargs)
    _initialise(module, args, kwargs)
    if is_leaf(module) and not given_weights(module):
        return _operator(program, module, path, args, kwargs)
    check_backward_hooks(module)
    if state.depth == 0:
        made = _outermost(program, module, path, args, kwargs)
    else:
        made = _through(module, path, args, kwargs)
    if isinstance(made, Variable):
        program.names.setdefault(path, node_of(made))
    return made


def adopt(program: ProgramGraph, module: nn.Module) -> None:
    """Make a module's parameters the program's, with the values that they have."""
    if program.state.path(module) is not None:
        return
    _, startup = state.sources
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
    if isinstance(module, (torch.jit.ScriptModule, AutogradOperator, nn.MultiheadAttention)):
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
        return original_call(module, *args, **kwargs)


def _outermost(program: ProgramGraph, module: nn.Module, path: str, args: Any, kwargs: Any) -> Any:
    """Record a call that no other module's forward makes; keep it if it asks for modes."""
    call = Call(module, path, args, kwargs, state.sources[1], program.device)
    made = traced(program, call, args, kwargs)
    if call.line is not None:
        program.calls.append(call)
    return made


def traced(program: ProgramGraph, call: Call, args: Any, kwargs: Any) -> Any:
    """Record what the user's own forward does; buffers that it assigns are put back."""
    buffers = {part: dict(buffers_of(part)) for part in call.module.modules()}
    state.buffers.update(buffers)
    try:
        with RecordingMode(), as_if_compiling(), module_calls.recording(call):

            def finish(made: Any) -> Any:
                for part, before in buffers.items():
                    _write_back(program, part, before)
                return _apart(program, call, made) if call.line is not None else made

            return _through(call.module, call.path, args, kwargs, finish)
    finally:
        call.end = next(iter(reversed(program.graph.nodes)))
        for part, before in buffers.items():
            buffers_of(part).update(before)
            del state.buffers[part]


def _through(
    module: nn.Module,
    path: str,
    args: Any,
    kwargs: Any,
    finish: Callable[[Any], Any] = lambda made: made,
) -> Any:
    """Run the user's own forward, with everything in it recorded."""
    state.depth += 1
    try:
        with module_calls.inside(path) as returned:
            made = finish(original_call(module, *args, **kwargs))
            returned(made)
        return made
    finally:
        state.depth -= 1


def _apart(program: ProgramGraph, call: Call, made: Any) -> Any:
    """Give what went through untouched a node of its own: in evaluation mode it may not."""
    own = set(call.nodes())

    def apart(leaf: Any) -> Any:
        if isinstance(leaf, Variable) and node_of(leaf) not in own:
            return record(program, Tensor.view_as, (leaf, leaf), {})
        return leaf

    return tree_map(apart, made)


def _write_back(program: ProgramGraph, module: nn.Module, before: dict[str, Tensor | None]) -> None:
    """A buffer that was assigned becomes one that is written: the module keeps its own tensor."""
    for name, value in buffers_of(module).items():
        kept = before.get(name)
        if isinstance(value, Variable) and kept is not None:
            record(program, Tensor.copy_, (kept, value.detach()), {})


class AutogradOperator(nn.Module):
    """An autograd function as one operator: its backward is its own."""

    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function = function

    @override
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return original_apply.__get__(None, self.function)(*args, **kwargs)
