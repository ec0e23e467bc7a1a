"""Loops whose rounds a run counts: the operators of a block, run again while a condition holds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from fleetx.compat.recorded import fake, noted_rebinds, operator, rebind, settle
from fleetx.compat.steps import Steps, behind, device_of, last_of, taken_out
from fleetx.record.variable import Variable

LIMIT = 1_000_000
"""Rounds after which a loop is taken for one that never ends."""


class Body:
    """The operators of a round, which give the next values of what the loop changes."""

    def __init__(self, nodes: list[fx.Node], before: list[fx.Node], after: list[fx.Node]) -> None:
        self._steps, self._after = Steps(nodes), after
        self.given = list(dict.fromkeys([*before, *self._steps.used]))
        """What comes from outside, the values that change first."""
        self._count = len(before)

    def __call__(self, *values: Any, training: bool) -> tuple[Any, ...]:
        """Run rounds while the first of the changing values is true."""
        state, rest = list(values[: self._count]), values[self._count :]
        device, rounds = device_of(values), 0
        while bool(state[0]):
            known = dict(zip(self.given, [*state, *rest], strict=True))
            self._steps.run(known, training=training, device=device)
            state = [known[node] for node in self._after]
            rounds += 1
            if rounds > LIMIT:
                raise RuntimeError(f"a While block ran {LIMIT} rounds; is its condition changed?")
        return tuple(value.clone() for value in state)


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
        last = last_of(program.graph)
        started = cond.node
        with noted_rebinds() as changed:
            yield
        nodes = behind(program.graph, last)
        firsts = {id(cond): (cond, started), **changed}
        self._replace(nodes, list(firsts.values()))

    def _replace(self, nodes: list[fx.Node], held: list[tuple[Variable, fx.Node]]) -> None:
        """One operator in place of those of a round."""
        program = self._cond.program
        body = Body(nodes, [before for _, before in held], [v.node for v, _ in held])
        given = [Variable(n.meta["val"], n, program) for n in body.given]

        def loop(*values: Any, training: bool = True) -> tuple[Any, ...]:
            return body(*values, training=training)

        likes = tuple(fake(v.fake.shape, v.fake.dtype) for v, _ in held)
        made = operator(loop, *given, like=likes, by_numbers=True, training=True)
        for (variable, _), found in zip(held, made, strict=True):
            vars(variable).update(node=found.node, fake=found.fake)
        taken_out(program, nodes)


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
