"""Which node of a model in evaluation mode stands for which one of the same model in training."""

import operator
from collections.abc import Iterator, Sequence
from typing import Any

from torch import SymInt, fx

from fleetx.record.module_calls import Call
from fleetx.record.variable import Variable, node_of
from fleetx.torch_internals import tree_flatten

Pairs = Iterator[tuple[fx.Node, fx.Node]]


def aligned(first: Call, again: Call) -> dict[fx.Node, fx.Node]:
    """Node of the call as it was recorded first -> node of the call as it was recorded again.

    What a module returned stands for what it returned, if the two are alike; the outermost module
    has the last word. So do operators of a forward that took the same way, and layers by name.
    """
    found: dict[fx.Node, fx.Node] = {}
    for key, nodes in first.own.items():
        found.update(_by_order(nodes, again.own.get(key, [])))
    own = set(first.nodes())
    for key, made in first.returned.items():
        if key in again.returned:
            pairs = _by_structure(made, again.returned[key])
            found.update((a, b) for a, b in pairs if a in own)
    return found


def _by_order(nodes: Sequence[fx.Node], others: Sequence[fx.Node]) -> Pairs:
    if [_kind(node) for node in nodes] == [_kind(node) for node in others]:
        yield from zip(nodes, others, strict=True)
        return
    for target in {node.target for node in nodes if node.op == "call_module"}:
        calls = [[n for n in made if n.target == target] for made in (nodes, others)]
        if len(calls[0]) == len(calls[1]):
            yield from zip(*calls, strict=True)


def _kind(node: fx.Node) -> tuple[Any, ...]:
    item = node.args[1] if node.target is operator.getitem else None
    return node.op, node.target, item if isinstance(item, int | str) else None


def _by_structure(made: Any, other: Any) -> Pairs:
    (leaves, shape), (others, other_shape) = tree_flatten(made), tree_flatten(other)
    if shape != other_shape:
        return
    for a, b in zip(leaves, others, strict=True):
        if isinstance(a, Variable) and isinstance(b, Variable) and _alike(a, b):
            yield a.node, node_of(b)


def _alike(a: Variable, b: Variable) -> bool:
    if a.fake.dtype != b.fake.dtype or a.fake.dim() != b.fake.dim():
        return False
    # Comparing free sizes would assume something about them.
    sizes: Iterator[tuple[Any, Any]] = zip(a.fake.shape, b.fake.shape, strict=True)
    return all(isinstance(m, SymInt) or isinstance(n, SymInt) or m == n for m, n in sizes)
