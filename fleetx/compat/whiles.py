"""Loops whose rounds a run counts: the operators of a block, run again while a condition holds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx

from fleetx.compat.recorded import noted_rebinds, operator, rebind, settle
from fleetx.record.variable import Variable

LIMIT = 1_000_000
"""Rounds after which a loop is taken for one that never ends."""


class Body:
    """The operators of a round, which give the next values of what the loop changes."""

    def __init__(self, nodes: list[fx.Node], before: list[fx.Node], after: list[fx.Node]) -> None:
        own = set(nodes)
        # As they are now: what leaves a graph loses its arguments.
        self._steps = [(n, n.op, n.target, n.args, n.kwargs) for n in nodes]
        self._after = after
        used = [n for node in nodes for n in node.all_input_nodes if n not in own]
        self.given = list(dict.fromkeys([*before, *used]))
        """What comes from outside, the values that change first."""
        self._count = len(before)

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """Run rounds while the first of the changing values is true."""
        state, rest = list(values[: self._count]), values[self._count :]
        rounds = 0
        while bool(state[0]):
            known = dict(zip(self.given, [*state, *rest], strict=True))
            for node, op, target, args, kwargs in self._steps:
                known[node] = _value(op, target, (args, kwargs), known)
            state = [known[node] for node in self._after]
            rounds += 1
            if rounds > LIMIT:
                raise RuntimeError(f"a While block ran {LIMIT} rounds; is its condition changed?")
        return tuple(value.clone() for value in state)


def _value(op: str, target: Any, arguments: Any, known: dict[fx.Node, Any]) -> Any:
    given, named = fx.map_arg(arguments, known.__getitem__)
    function: Callable[..., Any] = getattr(Tensor, target) if op == "call_method" else target
    return function(*given, **named)


class While:
    """``with While(cond).block():`` — what is assigned inside is assigned in every round."""

    def __init__(self, cond: Any, is_test: bool = False, name: str | None = None) -> None:
        if not isinstance(cond, Variable):
            raise TypeError("While() takes a condition of a program; write a Python loop instead.")
        self._cond = cond

    @contextmanager
    def block(self) -> Iterator[None]:
        """Write one round."""
        program, cond = self._cond.program, self._cond
        last = next(iter(reversed(program.graph.nodes)))
        started = cond.node
        with noted_rebinds() as changed:
            yield
        nodes = _behind(program.graph, last)
        firsts = {id(cond): (cond, started), **changed}
        self._replace(nodes, list(firsts.values()))

    def _replace(self, nodes: list[fx.Node], held: list[tuple[Variable, fx.Node]]) -> None:
        """One operator in place of those of a round."""
        program = self._cond.program
        _check(nodes)
        body = Body(nodes, [before for _, before in held], [v.node for v, _ in held])
        given = [Variable(n.meta["val"], n, program) for n in body.given]

        def loop(*values: Any) -> tuple[Any, ...]:
            return body(*values)

        likes = tuple(torch.empty_like(variable.fake) for variable, _ in held)
        made = operator(loop, *given, like=likes)
        for (variable, _), found in zip(held, made, strict=True):
            vars(variable).update(node=found.node, fake=found.fake)
        for node in reversed(nodes):
            program.names = {k: n for k, n in program.names.items() if n is not node}
            if not node.users:
                program.graph.erase_node(node)
        program.changed()


def _behind(graph: fx.Graph, last: fx.Node) -> list[fx.Node]:
    found: list[fx.Node] = []
    for node in reversed(graph.nodes):
        if node is last:
            break
        found.append(node)
    return [node for node in reversed(found) if node.op not in {"placeholder", "get_attr"}]


def _check(nodes: list[fx.Node]) -> None:
    for node in nodes:
        if node.op not in {"call_function", "call_method"}:
            raise NotImplementedError(
                f"a While block calls {node.target!r}, a layer that keeps statistics, and its "
                "rounds are counted by a run; write the loop in Python, or call it outside."
            )


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    is_test: bool = False,
    name: str | None = None,
) -> Any:
    """Values after as many rounds of a function as a condition says."""
    values = list(loop_vars)
    settle(*values)
    first = cond(*values)
    if not isinstance(first, Variable):
        while bool(cond(*values)):
            found = body(*values)
            values = list(found) if isinstance(found, (list, tuple)) else [found]
        return values
    held = [torch.clone(value) for value in values]
    flag = torch.clone(torch.reshape(first, (1,)))
    with While(flag).block():
        found = body(*held)
        found = list(found) if isinstance(found, (list, tuple)) else [found]
        from_body = [torch.clone(value) for value in found]
        for variable, value in zip(held, from_body, strict=True):
            rebind(variable, value)
        rebind(flag, torch.reshape(cond(*held), (1,)))
    return held
