"""Gradients as variables: ``append_backward`` and ``gradients``."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from fleetx.record.error import ProgramError
from fleetx.record.liveness import live_nodes
from fleetx.record.recorder import emit
from fleetx.record.variable import Variable, as_variable
from fleetx.static.record.program import Program, program_of

GRADIENT = "@GRAD"
"""Behind the name of a variable: the name of its gradient."""

Variables = Tensor | Sequence[Tensor]


def differentiate(targets: list[Tensor], inputs: list[Tensor], seeds: list[Tensor] | None) -> Any:
    """What a node of ``gradients`` runs; the graph stays for backward passes to come."""
    return torch.autograd.grad(
        targets,
        inputs,
        seeds,
        retain_graph=True,
        create_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )


def tracked(tensor: Tensor) -> Tensor:
    """The tensor as something that gradients are computed of."""
    return tensor if tensor.requires_grad else tensor.detach().requires_grad_()


def gradients(
    targets: Variables,
    inputs: Variables,
    target_gradients: Variables | None = None,
    no_grad_set: Iterable[Tensor | str] | None = None,
) -> list[Variable | None]:
    """The gradients of the sum of ``targets`` by each of ``inputs``, as variables.

    They can be fetched, and used in further operators such as a penalty. An input that no target
    depends on gets None.
    """
    ends, starts = _listed(targets), _listed(inputs)
    program = program_of(ends[0])
    _stop(program, no_grad_set)
    used = _reached(program, ends, starts)
    for start in used:
        if not start.fake.requires_grad and start.node.meta.get("stopped") is not False:
            start.stop_gradient = False
    seeds = _listed(target_gradients) if target_gradients is not None else None
    if not used:
        return [None for _ in starts]
    fakes = tuple(torch.empty_like(start.fake) for start in used)
    made = emit(program, "call_function", differentiate, (ends, used, seeds), {}, found=fakes)
    for start, gradient in zip(used, made, strict=True):
        name = f"{start.name}{GRADIENT}"
        if name not in program.names:
            gradient.name = name
    by_node = {start.node: gradient for start, gradient in zip(used, made, strict=True)}
    return [by_node.get(start.node) for start in starts]


def _reached(
    program: Program, ends: Sequence[Variable], starts: Sequence[Variable]
) -> list[Variable]:
    """Those starts that an end depends on; parameters may be used inside of a module."""
    nodes = [end.node for end in ends]
    reached, state = live_nodes(program.graph, nodes), used_state(program, *nodes)
    return [s for s in starts if s.node in reached or (s.persistable and s.name in state)]


def append_backward(
    loss: Tensor,
    parameter_list: Iterable[Tensor | str] | None = None,
    no_grad_set: Iterable[Tensor | str] | None = None,
) -> list[tuple[Variable, Variable]]:
    """Pairs of parameter and gradient of ``loss``, for all parameters that it depends on."""
    loss = check_loss(loss, "append_backward()")
    program = program_of(loss)
    excluded = {program.find(entry) for entry in no_grad_set or ()}
    names = {program.name_of(node) for node in excluded}
    wanted = [name for name in trainable(program, loss.node, parameter_list) if name not in names]
    parameters = [program.var(name) for name in wanted]
    _stop(program, no_grad_set)
    found = gradients(loss, parameters) if parameters else []
    return [(p, g) for p, g in zip(parameters, found, strict=True) if g is not None]


def trainable(
    program: Program,
    loss: fx.Node,
    parameter_list: Iterable[Tensor | str] | None = None,
) -> list[str]:
    """Names of the parameters that a loss depends on and that may be trained."""
    used = used_state(program, loss)
    known = {name: p for name, p in program.state.trained().items() if p.requires_grad}
    if parameter_list is None:
        return [name for name in known if name in used]
    names = {_name(program, entry) for entry in parameter_list}
    return [name for name in known if name in used and name in names]


def used_state(program: Program, *outputs: fx.Node) -> set[str]:
    """Names of parameters and buffers that these nodes depend on."""
    used = live_nodes(program.graph, outputs)
    return {name for node in used for name in node_state(program, node)}


def node_state(program: Program, node: fx.Node) -> Iterator[str]:
    """Names of the parameters and buffers that a node reads itself."""
    if node.op == "get_attr":
        yield _first_name(program, str(node.target))
    elif node.op == "call_module":
        module = program.state.root.get_submodule(str(node.target))
        for path, _ in (*module.named_parameters(), *module.named_buffers()):
            yield _first_name(program, f"{node.target}.{path}")


def _first_name(program: Program, path: str) -> str:
    """A tensor may have several paths; the first one is its name."""
    owner, _, attribute = path.rpartition(".")
    tensor = getattr(program.state.root.get_submodule(owner), attribute)
    return program.state.path(tensor) or path


def _name(program: Program, entry: Tensor | str) -> str:
    if isinstance(entry, nn.Parameter):
        path = program.state.path(entry)
        if path is None:
            raise ProgramError(
                f"a parameter of shape {list(entry.shape)} is not used by the program, so it has "
                "no gradient there; leave it out of parameter_list."
            )
        return path
    return program.name_of(program.find(entry))


def check_loss(loss: object, call: str = "minimize()") -> Variable:
    """The loss; refuses what cannot be minimised."""
    loss = as_variable(loss, call)
    if loss.fake.numel() != 1 or not loss.fake.is_floating_point():
        raise ProgramError(
            f"the loss {loss.name!r} has the shape {[str(s) for s in loss.fake.shape]} and is "
            f"{loss.fake.dtype}, and one floating number is minimised; take its mean() or sum()."
        )
    return loss


def _stop(program: Program, entries: Iterable[Tensor | str] | None) -> None:
    for entry in entries or ():
        node = program.find(entry)
        if node.op != "get_attr":
            node.meta["stopped"] = True
            program.changed()


def _listed(given: Variables) -> list[Variable]:
    several = isinstance(given, list | tuple) and len(given) > 0
    found = list(given) if several else [given]
    return [as_variable(entry, "static.gradients()") for entry in found]
