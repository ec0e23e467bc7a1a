"""What a node of a followed forward is: a tensor, a plain value, a selection, a change in place."""

import inspect
import math
import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Node

from fleetx.graph.torch_functions import IN_PLACE_OPERATORS, SIZES, changes_in_place
from fleetx.torch_internals import detect_is_causal_mask, get_seq_len

_PLAIN_METHODS = SIZES | {"element_size", "is_floating_point", "is_complex", "is_signed"}
_PLAIN_ATTRIBUTES = frozenset(
    {"shape", "ndim", "dtype", "device", "layout", "itemsize", "nbytes", "is_cuda", "is_cpu"}
)
_PLAIN_FUNCTIONS: frozenset[Any] = frozenset(
    {
        *(torch.numel, torch.is_floating_point, torch.is_complex),
        *(torch.finfo, torch.iinfo, torch.Size),
        *(get_seq_len, detect_is_causal_mask),
    }
)
_PLAIN_MODULES = frozenset({operator.add.__module__, "builtins", math.__name__})

_LOCAL = frozenset({"stride", "is_contiguous", "storage_offset", "get_device", "requires_grad"})
"""What a copy of a tensor on another rank answers differently."""

_MAY_SHARE = """
    adjoint alias bfloat16 chunk contiguous cpu cuda detach diagonal double expand expand_as flatten
    float getattr getitem half hsplit identity index movedim moveaxis narrow permute ravel reshape
    reshape_as select slice split squeeze swapaxes swapdims t tensor_split to transpose type type_as
    unbind unflatten unfold unsqueeze view view_as vsplit dropout
"""
_VIEWS = frozenset(_MAY_SHARE.split())
_DICT_CHANGES = frozenset({"pop", "popitem", "update", "setdefault", "clear"})
_SELECTIONS = frozenset({"get"})


def is_plain(node: Node) -> bool:
    """Whether a node gives a size, a dtype, or what python computes from such.

    Plain values are computed again wherever they are needed, they do not travel.
    """
    if "plain" not in node.meta:
        node.meta["plain"] = bool(node.meta.get("size")) or _plain(node)
    return bool(node.meta["plain"])


def _plain(node: Node) -> bool:
    base = node.args[0] if node.args else None
    of_plain = isinstance(base, Node) and is_plain(base)
    if node.op == "call_method":
        return of_plain or node.target in _PLAIN_METHODS
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return of_plain or node.args[1] in _PLAIN_ATTRIBUTES
    if node.target in _PLAIN_FUNCTIONS:
        return True
    inputs = node.all_input_nodes
    return _is_of_python(node.target) and bool(inputs) and all(map(is_plain, inputs))


def _is_of_python(function: Any) -> bool:
    return getattr(function, "__module__", None) in _PLAIN_MODULES


def asked_locally(node: Node) -> str | None:
    """What a node asks a tensor for that holds for this copy of it alone, such as "stride"."""
    if node.op == "call_function" and node.target is not getattr:
        inputs = node.all_input_nodes if _is_of_python(node.target) else []
        return next(filter(None, map(asked_locally, inputs)), None)
    asked = node.args[1] if node.op == "call_function" else node.target
    called = node.op in ("call_function", "call_method")
    return str(asked) if called and asked in _LOCAL else None


def is_selection(node: Node) -> bool:
    """Whether a node picks something out of a model input, such as ``batch["mask"]``."""
    picks = (
        node.target in (operator.getitem, getattr)
        if node.op == "call_function"
        else node.op == "call_method" and node.target in _SELECTIONS
    )
    if not picks or not node.all_input_nodes:
        return False
    base, *others = node.all_input_nodes
    source = base.op == "placeholder" or is_selection(base)
    return source and all(map(is_plain, others))


def is_free(node: Node) -> bool:
    """Whether every part can have the value without receiving it."""
    return node.op in ("placeholder", "get_attr") or is_plain(node) or is_selection(node)


def is_item(node: Node) -> bool:
    """Whether a node takes one constant item, as from a tuple that a layer returned."""
    return (
        node.op == "call_function"
        and node.target is operator.getitem
        and isinstance(node.args[1], int | str)
    )


def changed(node: Node) -> Node | None:
    """The value that a node changes in place, if any."""
    found: Any = None
    if node.op == "call_method":
        name = str(node.target)
        if name in _DICT_CHANGES or changes_in_place(name):
            found = node.args[0]
    elif node.op == "call_module" and node.meta.get("inplace"):
        found = next(iter(node.all_input_nodes), None)
    elif node.op == "call_function":
        found = _changed_by_function(node)
    return found if isinstance(found, Node) and not is_plain(found) else None


def _changed_by_function(node: Node) -> Any:
    assert callable(node.target)
    name = getattr(node.target, "__name__", "")
    if "out" in node.kwargs:
        return node.kwargs["out"]
    inplace = node.kwargs.get("inplace")
    at = _place_of_inplace(node.target)
    if at is not None and at < len(node.args):
        inplace = node.args[at]
    of_python = _is_of_python(node.target)
    if inplace or (name in IN_PLACE_OPERATORS if of_python else changes_in_place(name)):
        return node.args[0] if node.args else next(iter(node.all_input_nodes), None)
    return None


@lru_cache(maxsize=256)
def _place_of_inplace(function: Callable[..., Any]) -> int | None:
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None
    return names.index("inplace") if "inplace" in names else None


def source(node: Node) -> Node:
    """The value whose memory a node may share: views and changes in place are followed back."""
    while True:
        earlier = changed(node)
        shares = node.meta.get("view") or _name(node) in _VIEWS
        if earlier is None and shares and node.all_input_nodes:
            earlier = node.all_input_nodes[0]
        if earlier is None:
            return node
        node = earlier


def _name(node: Node) -> str:
    if node.op == "call_method":
        return str(node.target)
    return getattr(node.target, "__name__", "") if node.op == "call_function" else ""
