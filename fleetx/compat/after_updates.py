"""Parameters that a script assigns behind ``minimize``: done when the optimizer has moved them.

Old scripts decay weights so: ``assign(param - old_param * decay * lr, output=param)``. What was
written before ``minimize`` has the values from before the update, what is written behind it those
from after it.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from fleetx.compat.joint_rule import Joint
from fleetx.record.error import ProgramError
from fleetx.record.liveness import live_nodes
from fleetx.record.program_graph import ProgramGraph
from fleetx.record.variable import Variable
from fleetx.record.writes import written
from fleetx.static.run.training import Training


class _Mark:
    """Where a program was when its optimizer came, and what is assigned behind."""

    def __init__(self, last: fx.Node, before: "_Mark | None" = None) -> None:
        self.last, self.before = last, before
        """The mark of the ``minimize()`` before, whose assignments are done, too."""
        self.assigned: list[_Assigned] = []


def begin(program: ProgramGraph) -> None:
    """Note that what is written into a program from now on comes behind the update."""
    last = next(iter(reversed(program.graph.nodes)))
    program.attachments[_Mark] = _Mark(last, program.attachments.get(_Mark))


def assigned_behind(program: ProgramGraph) -> bool:
    """Whether something is assigned behind an update already."""
    mark: _Mark | None = program.attachments.get(_Mark)
    while mark is not None and not mark.assigned:
        mark = mark.before
    return mark is not None


def comes_after(program: ProgramGraph, home: fx.Node, value: Any) -> bool:
    """Whether an assignment belongs behind the update: one to, or from, what an optimizer moves."""
    training = program.objective
    if not isinstance(training, Training):
        return False
    read = [home]
    if isinstance(value, Variable) and _Mark in program.attachments:
        read += [n for n in live_nodes(program.graph, [value.node]) if n.op == "get_attr"]
    return any(program.name_of(node) in training.trained for node in read)


class _Assigned:
    """One assignment, done around every step of the optimizer that moves its parameter."""

    def __init__(
        self,
        program: ProgramGraph,
        parameter: nn.Parameter,
        value: fx.Node,
        early: set[fx.Node],
    ) -> None:
        self._program, self._parameter, self._value = program, parameter, value
        needed = live_nodes(program.graph, [value])
        order = [n for n in program.graph.nodes if n in needed and written(n) is None]
        if fed := [n for n in order if n.op in {"placeholder", "call_module"}]:
            raise ProgramError(
                f"a parameter is assigned behind minimize(), from {fed[0].name!r}, which only a "
                "run has; compute it from parameters and the learning rate."
            )
        self._early = [n for n in order if n in early and n.op != "get_attr"]
        self._late = [n for n in order if n not in early and n.op != "get_attr"]
        self._read = [n for n in order if n.op == "get_attr"]
        self._known: dict[fx.Node, Any] = {}
        read = [program.parameter(node) for node in self._read]
        self._about = [parameter, *(p for p in read if p is not None and p.requires_grad)]

    def moves(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer has the parameter, or one that its value is computed from."""
        if isinstance(optimizer, Joint):
            return False  # the rules in it make the steps
        held = {id(p) for g in optimizer.param_groups for p in g["params"]}
        return not held.isdisjoint(id(p) for p in self._about)

    @torch.no_grad()
    def before(self) -> None:
        """Compute what was written before minimize()."""
        self._known = {}
        reads = self._reads()
        for node in self._early:
            self._known[node] = _value(node, {**reads, **self._known})

    @torch.no_grad()
    def after(self) -> None:
        """Compute the rest, and assign."""
        known = {**self._reads(), **self._known}
        for node in self._late:
            known[node] = _value(node, known)
        self._parameter.copy_(known[self._value])

    def _reads(self) -> dict[fx.Node, Any]:
        root = self._program.state.root
        found = {}
        for node in self._read:
            owner, _, name = str(node.target).rpartition(".")
            found[node] = getattr(root.get_submodule(owner), name).detach()
        return found


def _value(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
    if node.op == "call_method":
        return getattr(Tensor, str(node.target))(*args, **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def assign(program: ProgramGraph, home: fx.Node, value: fx.Node) -> None:
    """Give a trained parameter this value behind every update."""
    mark = program.attachments.get(_Mark)
    parameter = program.parameter(home)
    if mark is None or parameter is None:
        raise ProgramError(
            f"the trained parameter {program.name_of(home)!r} is assigned, but its optimizer did "
            "not come through minimize(); call optimizer.minimize(loss) first."
        )
    early: set[fx.Node] = set()
    for node in program.graph.nodes:
        early.add(node)
        if node is mark.last:
            break
    _check_plan(program, home)
    mark.assigned.append(_Assigned(program, parameter, value, early))
    if len(mark.assigned) == 1:
        _watch(mark)


_ELSEWHERE = ("parameter_server", "a_sync", "sharding", "pipeline", "tensor_parallel")
"""Strategies under which a worker has no whole parameter to assign after its update."""


def _check_plan(program: ProgramGraph, home: fx.Node) -> None:
    plan = getattr(program.objective, "plan", None)
    on = [s.name for s in plan.strategies if s.name in _ELSEWHERE] if plan is not None else []
    if on:
        raise ProgramError(
            f"{program.name_of(home)!r} is assigned behind minimize(), and under {on[0]} no worker "
            "updates the whole of it; decay weights by the optimizer's regularization instead."
        )


def _watch(mark: _Mark) -> None:
    held = weakref.ref(mark)

    def around(optimizer: Optimizer, before: bool) -> None:
        found = held()
        for assigned in found.assigned if found is not None else ():
            if assigned.moves(optimizer):
                assigned.before() if before else assigned.after()

    def pre(optimizer: Optimizer, args: Sequence[Any], kwargs: Any) -> None:
        around(optimizer, True)

    def post(optimizer: Optimizer, args: Sequence[Any], kwargs: Any) -> None:
        around(optimizer, False)

    hooks = register_optimizer_step_pre_hook(pre), register_optimizer_step_post_hook(post)
    for hook in hooks:
        weakref.finalize(mark, hook.remove)


@dataclass(frozen=True)
class Gradient:
    """The gradient of a parameter, as ``minimize`` gives it: a name that can be fetched."""

    name: str
    program: ProgramGraph


def finished(loss: Any, pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """What ``minimize`` returns to a script: parameters and their gradients.

    Args:
        loss: what was minimised.
        pairs: names of parameters, and of their gradients.
    """
    program = loss.program
    begin(program)
    found = []
    for parameter, gradient in pairs:
        node = program.node(parameter) if isinstance(parameter, str) else parameter.node
        known = gradient if not isinstance(gradient, str) else Gradient(gradient, program)
        found.append((Variable(node.meta["val"], node, program), known))
    return found
