"""Functions of torch that meet no variable, and belong into the program all the same."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from fleetx.graph.torch_functions import FACTORIES
from fleetx.record.program_graph import ProgramGraph
from fleetx.record.recorder import is_view, record
from fleetx.record.recording_state import state
from fleetx.record.variable import Variable, common_program
from fleetx.torch_internals import tree_leaves

QUESTIONS = frozenset(
    {"__get__", "__set__", "size", "dim", "numel", "is_floating_point", "is_complex", "stride"}
    | {"__len__", "requires_grad_", "__repr__", "__hash__", "__format__", "data_ptr", "nelement"}
    | {"ndimension", "element_size", "storage_offset", "is_contiguous", "is_pinned"}
)
"""Calls on parameters that tell something and compute nothing."""


class RecordingMode(TorchFunctionMode):
    """Sees every call of torch, those without a variable too."""

    @override
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not state.on:
            return func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        if found := [leaf for leaf in leaves if isinstance(leaf, Variable)]:
            return record(common_program(found), func, args, kwargs)
        program = state.sources[0]()
        if _is_operator(program, func, leaves):
            return record(program, func, args, kwargs)
        return func(*args, **kwargs)


def _is_operator(program: ProgramGraph, func: Any, leaves: list[Any]) -> bool:
    """Whether a call that has no variable belongs into the program all the same."""
    if asks(func):
        return False
    if any(isinstance(leaf, torch.SymInt) for leaf in leaves):
        return True
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if state.depth > 0:
        return any(program.state.path(tensor) for tensor in tensors) or (
            not tensors and func in FACTORIES
        )
    known = any(program.state.path(t) and isinstance(t, nn.Parameter) for t in tensors)
    in_place = getattr(func, "__name__", "").endswith("_")
    return known and torch.is_grad_enabled() and not in_place


def asks(func: Any) -> bool:
    """Whether a function tells something and computes nothing."""
    return getattr(func, "__name__", "") in QUESTIONS and not is_view(func)
