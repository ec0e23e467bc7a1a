"""What a node of a followed forward is: a size, a selection, a view, a change in place."""

import operator
from collections.abc import Iterator

from torch import Tensor
from torch.fx import Node

from fleetx.record.writes import written
from fleetx.torch_internals import storage_number, tree_leaves

_MAY_SHARE = """
    adjoint alias bfloat16 chunk contiguous cpu cuda detach diagonal double expand expand_as flatten
    float getattr getitem half hsplit identity index movedim moveaxis narrow permute ravel reshape
    reshape_as select slice split squeeze swapaxes swapdims t tensor_split to transpose type type_as
    unbind unflatten unfold unsqueeze view view_as vsplit dropout
"""
_VIEWS = frozenset(_MAY_SHARE.split())


def is_free(node: Node) -> bool:
    """Whether every part can have the value without receiving it.

    Sizes, and what python computes from them, are computed again wherever they are needed.
    """
    return node.op in ("placeholder", "get_attr") or _is_size(node) or _is_selection(node)


def _is_size(node: Node) -> bool:
    return bool(node.meta.get("size"))


def _is_selection(node: Node) -> bool:
    """Whether a node picks something out of a model input, such as ``batch["mask"]``."""
    if not is_item(node):
        return False
    base = node.args[0]
    return isinstance(base, Node) and (base.op == "placeholder" or _is_selection(base))


def is_item(node: Node) -> bool:
    """Whether a node takes one constant item, as from a tuple that a layer returned."""
    return (
        node.op == "call_function"
        and node.target is operator.getitem
        and isinstance(node.args[1], int | str)
    )


def sources(node: Node) -> set[Node]:
    """The values whose memory a node may share: views and changes in place are followed back."""
    found, pending = set[Node](), [node]
    while pending:
        node = pending.pop()
        earlier = list(_shared(node))
        pending += earlier
        if not earlier:
            found.add(node)
    return found


def _shared(node: Node) -> Iterator[Node]:
    """The values from which a node has its memory, or may have it."""
    changed, own = written(node), _memory(node)
    if changed is not None:
        yield changed
    elif node.op.startswith("call_"):
        views = bool(node.meta.get("view"))
        for at, given in enumerate(node.all_input_nodes):
            may = views or (at == 0 and _name(node) in _VIEWS)
            if may or own & _memory(given):
                yield given


def _memory(node: Node) -> set[int]:
    leaves = tree_leaves(node.meta.get("val"))
    return {storage_number(leaf) for leaf in leaves if isinstance(leaf, Tensor)}


def _name(node: Node) -> str:
    if node.op == "call_module":
        return ""
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    return name.strip("_")
