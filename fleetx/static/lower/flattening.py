"""From a program to one graph that runs: what is needed, in order, as this run wants it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from fleetx.record.argument_names import argument_names
from fleetx.record.liveness import live_nodes, storage
from fleetx.record.placing import place_on
from fleetx.record.writes import written
from fleetx.static.record.backward import tracked
from fleetx.static.record.program import Program

Arguments = tuple[Any, ...]
Options = dict[str, Any]


def flattened(program: Program, outputs: Sequence[fx.Node], device: torch.device) -> fx.Graph:
    """A copy of the operators that ``outputs`` need; the graph returns a tuple of them.

    Every input of the program stays an argument, so that all forms are called alike.
    """
    kept = needed(program, outputs)
    graph, mapped = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in program.graph.nodes:
        if node in kept or node.op == "placeholder":
            mapped[node] = graph.node_copy(node, mapped.__getitem__)
    graph.output(tuple(mapped[node] for node in outputs))
    if program.for_test:
        _freeze(graph)
    _let_gradients_through(graph)
    _protect_inputs(graph)
    place_on(graph, device)
    return graph


def needed(program: Program, outputs: Sequence[fx.Node]) -> set[fx.Node]:
    """What a run computes: save in tests, also what only writes into buffers; in training, all."""
    stateful, trains = not program.for_test, program.objective is not None
    return live_nodes(program.graph, outputs, with_state=stateful, with_acts=stateful and trains)


def _freeze(graph: fx.Graph) -> None:
    """Switch training off in functions that no module calls; modules decide for themselves."""
    for node in graph.nodes:
        if node.op == "call_function" and "in_module" not in node.meta:
            node.args, node.kwargs = in_tests(node.target, node.args, node.kwargs)


def in_tests(target: Any, args: Arguments, kwargs: Options) -> tuple[Arguments, Options]:
    """The arguments of a function with its training switched off."""
    names = argument_names(target)
    if _is_bare_norm(names, args, kwargs):
        return args, kwargs
    # attention has no other switch than its probability
    for name, value in {"training": False, "train": False, "dropout_p": 0.0}.items():
        if name in kwargs or name not in names:
            kwargs = {**kwargs, name: value} if name in kwargs else kwargs
        elif (at := names.index(name)) < len(args):
            args = (*args[:at], value, *args[at + 1 :])
        else:
            kwargs = {**kwargs, name: value}
    return args, kwargs


def _is_bare_norm(names: Sequence[str], args: Arguments, kwargs: Options) -> bool:
    """Whether it normalises by the batch for want of running statistics, in tests as well."""
    if "running_mean" not in names:
        return False
    given = dict(zip(names, args, strict=False)) | kwargs
    return given.get("running_mean") is None


def _let_gradients_through(graph: fx.Graph) -> None:
    """Stop gradients where the user did, and begin them where nothing before has any."""
    for node in list(graph.nodes):
        stopped, value = node.meta.get("stopped"), node.meta.get("val")
        if stopped is None or not isinstance(value, Tensor):
            continue
        if stopped and value.requires_grad:
            _insert_behind(graph, node, Tensor.detach)
        elif not stopped and _differentiable(value):
            _insert_behind(graph, node, tracked)


def _differentiable(value: Tensor) -> bool:
    """Whether numbers can have gradients: those of whole ones stay none, whatever a script says."""
    return value.is_floating_point() or value.is_complex()


def _protect_inputs(graph: fx.Graph) -> None:
    """What writes into an input writes into a copy: the arrays that were fed are the caller's."""
    written_to = {storage(base) for node in graph.nodes if (base := written(node)) is not None}
    for node in list(graph.nodes):
        if node.op == "placeholder" and storage(node) in written_to:
            _insert_behind(graph, node, Tensor.clone)


def _insert_behind(graph: fx.Graph, node: fx.Node, func: Callable[..., Any]) -> None:
    users = list(node.users)
    with graph.inserting_after(_last_input(graph) if node.op == "placeholder" else node):
        new = graph.call_function(func, (node,))
    new.meta.update({k: v for k, v in node.meta.items() if k not in {"stopped", "name"}})
    for user in users:
        user.replace_input_with(node, new)


def _last_input(graph: fx.Graph) -> fx.Node:
    inputs: list[fx.Node] = [node for node in graph.nodes if node.op == "placeholder"]
    return inputs[-1]
