"""Which parameters the gradient of a loss gets to, and one objective for several losses."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from fleetx.record.liveness import live_nodes
from fleetx.record.recorder import emit
from fleetx.record.variable import Variable
from fleetx.static.record.backward import node_state
from fleetx.static.record.program import Program

Trained = Mapping[str, tuple[str, ...]]
"""The name of a loss -> the parameters that move by it."""


def reached(program: Program, loss: fx.Node) -> set[str]:
    """Names of the parameters that a loss has a gradient by."""
    walls = {node for node in program.graph.nodes if _stops(node)}
    found = live_nodes(program.graph, [loss], stop=walls) - walls
    return {name for node in found for name in node_state(program, node)}


def _stops(node: fx.Node) -> bool:
    """Whether no gradient passes, whichever parameters were frozen when it was recorded."""
    value = node.meta.get("val")
    whole = isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex())
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    cut = node.op in {"call_function", "call_method"} and name in {"detach", "detach_"}
    outside = node.op.startswith("call") and node.meta.get("grad") is False
    return bool(node.meta.get("stopped")) or whole or cut or outside


def read_behind(program: Program, end: fx.Node, loss: fx.Node) -> dict[str, fx.Node]:
    """What a loss depends on that was recorded behind an operator: parameter -> its reader."""
    order = {node: number for number, node in enumerate(program.graph.nodes)}
    late = [n for n in live_nodes(program.graph, [loss]) if order[n] > order[end]]
    found: dict[str, fx.Node] = {}
    for node in late:
        for source in (node, *(n for n in node.all_input_nodes if n.op == "get_attr")):
            if node.op != "get_attr":
                found |= dict.fromkeys(node_state(program, source), node)
    return found


def apart(program: Program, trained: Trained) -> bool:
    """Whether no loss has a gradient by what moves by another."""
    by_loss = {loss: reached(program, program.node(loss)) for loss in trained}
    return all(
        by_loss[loss].isdisjoint(names)
        for loss in trained
        for other, names in trained.items()
        if other != loss
    )


def objective(program: Program, trained: Trained) -> Variable:
    """A variable whose gradient by each parameter is that of the parameter's own loss."""
    losses = [program.var(name) for name in trained]
    if len(losses) == 1:
        return losses[0]
    if apart(program, trained):
        return _sum(losses)
    # The gradient of sum(p * g) by p is g.
    terms: list[Any] = [
        torch.sum(parameter * gradient)
        for loss, names in zip(losses, trained.values(), strict=True)
        for parameter, gradient in _gradients(program, loss, names)
    ]
    return _sum(terms)


def _sum(numbers: Sequence[Variable]) -> Variable:
    made: Any = torch.sum(torch.stack([torch.sum(number).float() for number in numbers]))
    assert isinstance(made, Variable)
    return made


def _gradients(
    program: Program, loss: Variable, names: tuple[str, ...]
) -> list[tuple[Any, Variable]]:
    parameters = [program.var(name) for name in names]
    fakes = tuple(torch.empty_like(p.fake).detach() for p in parameters)
    made = emit(program, "call_function", first_order, (loss, parameters), {}, found=fakes)
    return list(zip(parameters, made, strict=True))


def first_order(loss: Tensor, parameters: list[Tensor]) -> Any:
    """The gradients of one loss; the graph stays for the losses to come."""
    with torch.autocast(loss.device.type, enabled=False):  # a backward is as its forward was
        return torch.autograd.grad(
            loss.sum(), parameters, retain_graph=True, allow_unused=True, materialize_grads=True
        )
