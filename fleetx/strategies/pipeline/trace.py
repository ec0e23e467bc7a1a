"""A graph of a model's forward, in which chosen submodules are single calls."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from fleetx.plan.forward import is_replaced
from fleetx.record import followed
from fleetx.record.error import ProgramError
from fleetx.record.placing import place_on
from fleetx.record.writes import written
from fleetx.strategies.pipeline.chain import chained
from fleetx.strategies.pipeline.node_kinds import sources
from fleetx.strategies.pipeline.refusal import REMEDY, TraceError, line_text, place
from fleetx.strategies.pipeline.side_effects import unchanged
from fleetx.torch_internals import has_backward_hooks, has_forward_hooks

__all__ = ["Forward", "Opened", "TraceError", "Way", "Whole", "open_up", "record", "way_of"]

Whole = Callable[[str, nn.Module], bool]
"""Name and module -> whether a call of that submodule is one node."""

_LOOPS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.TransformerEncoder, nn.TransformerDecoder)


_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Forward:
    """A forward that was followed."""

    graph: fx.Graph
    check: Callable[[Mapping[str, Any]], None] | None = None
    """Refuses inputs for which it might be another."""
    opened: frozenset[str] = frozenset()
    """Submodules that had to be followed through, though nobody asked for it."""


@dataclass(frozen=True)
class Opened:
    """A model whose heavy submodules were followed through."""

    whole: Whole
    graph: fx.Graph
    refused: Mapping[str, str]
    """Submodules that were meant to be followed through -> why they are single calls."""


Way = Callable[[Whole], Forward]
"""How to follow a model: which submodules are single calls -> its forward."""


def way_of(model: nn.Module, sample: Mapping[str, Any] | None, device: torch.device = _CPU) -> Way:
    """By what is known of the inputs: recorded for a sample, else by the structure of a chain.

    Args:
        model: what is followed.
        sample: arguments of its forward by name.
        device: where the model will run.
    """

    def by_structure(whole: Whole) -> Forward:
        _check(model)
        return Forward(chained(model, _kept(whole)))

    def by_sample(whole: Whole) -> Forward:
        assert sample is not None
        forward = record(model, whole, sample)
        place_on(forward.graph, device)
        return forward

    return by_structure if sample is None else by_sample


def remembering(way: Way, model: nn.Module, kept: dict[Any, Forward]) -> Way:
    """The same way, which goes once for each choice of submodules; what it found is kept."""

    def once(whole: Whole) -> Forward:
        named = model.named_modules()
        opened = frozenset(name for name, module in named if name and not whole(name, module))
        key = model.training, opened
        if key not in kept:
            kept[key] = way(whole)
        return kept[key]

    return once


def record(model: nn.Module, whole: Whole, sample: Mapping[str, Any]) -> Forward:
    """The forward of ``model`` for inputs like a sample; the model stays as it is.

    A submodule for which ``whole(name, module)`` is true is one ``call_module`` node, and so is
    every submodule without children and every one with hooks, parametrizations or a forward of
    its own object, because those act only when the submodule is called. All other submodules are
    followed through. Parameters and buffers that the followed code uses are ``get_attr`` nodes.

    Whether a module trains is a constant of the graph where followed code asks for it: follow
    the model once per mode.

    Raises:
        TraceError: The forward does something that a graph could only get wrong.
    """
    _check(model)
    model = _apart(model)
    with unchanged(model):
        try:
            found = followed.follow(model, sample, _kept(whole))
        except ProgramError as error:
            at = line_text(error.line) if error.line else place(error.__traceback__)
            raise TraceError(f"{at}: in the forward, {error.what or error}: {REMEDY}.") from error
        except Exception as error:
            at = place(error.__traceback__)
            what = f"following it fails with {type(error).__name__} ({error})"
            raise TraceError(f"{at}: in the forward, {what}: {REMEDY}.") from error
    _check_state(found.graph)
    return Forward(found.graph, found.check, found.opened)


def _apart(model: nn.Module) -> nn.Module:
    """A copy of a model without numbers, which is to get them later, in the same tensors.

    Torch's caches keep weak references to tensors that were followed, and it refuses to give memory
    to a tensor with any. Graphs name tensors and submodules, so that the copy's is the model's.
    """
    return copy.deepcopy(model) if any(p.is_meta for p in model.parameters()) else model


def _kept(whole: Whole) -> Whole:
    return lambda name, module: _must_be_called(module) or whole(name, module)


def _must_be_called(module: nn.Module) -> bool:
    """Whether a module has no inside, or something acts on its call."""
    return (
        next(module.children(), None) is None
        or "forward" in module.__dict__
        or has_forward_hooks(module)
        or has_backward_hooks(module)
        or isinstance(module, torch.jit.ScriptModule | ParametrizationList)
        or is_parametrized(module)
    )


def _check_state(graph: fx.Graph) -> None:
    """Refuse a forward that writes into the model: one stage would, and the others not."""
    for node in graph.nodes:
        changed = written(node)
        origins = sources(changed) if changed is not None else ()
        for origin in origins:
            if origin.op == "get_attr":
                raise TraceError(
                    f"{line_text(node.meta['line'])}: in the forward, {origin.target!r} of the "
                    f"model is changed in place: {REMEDY}."
                )


def _check(model: nn.Module) -> None:
    own = model.__dict__.get("forward")
    if isinstance(own, FunctionType | MethodType) and not is_replaced(own):
        raise TraceError(
            f"the forward of this {type(model).__name__} object was replaced, and only that of its "
            f"class can be followed: {REMEDY}."
        )
    if has_forward_hooks(model):
        raise TraceError(
            f"the {type(model).__name__} has forward hooks, which would never run because it is "
            "not called as a whole any more: register them on its submodules."
        )


def open_up(model: nn.Module, parts: int, way: Way) -> Opened:
    """Which modules to follow through when nobody said where to cut, and the graph of that.

    The model itself, and each submodule that holds more than ``1 / (2 * parts)`` of all
    parameters, if its code can be followed; of torch.nn's own modules the containers alone.
    """
    opened = {""}

    def whole(name: str, module: nn.Module) -> bool:
        return name not in opened

    limit = _weight(model) / (2 * parts)
    heavy = [name for name, module in model.named_modules() if _weight(module) > limit]
    opened |= {name for name in heavy if _may_open(model.get_submodule(name))}
    try:
        return Opened(whole, way(whole).graph, {})
    except TraceError:
        pass  # one of them, or the model itself, cannot be followed
    wanted, opened = sorted(opened - {""}), {""}
    graph, refused = way(whole).graph, dict[str, str]()
    while found := [name for name in wanted if name in _called(graph)]:
        wanted.remove(found[0])
        opened.add(found[0])
        try:
            graph = way(whole).graph
        except TraceError as error:
            opened.remove(found[0])
            refused[found[0]] = str(error).rstrip(".")
    return Opened(whole, graph, refused)


def _called(graph: fx.Graph) -> set[str]:
    return {str(node.target) for node in graph.nodes if node.op == "call_module"}


def _weight(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _may_open(module: nn.Module) -> bool:
    own = type(module).__module__.startswith("torch.nn.")
    return next(module.children(), None) is not None and (not own or isinstance(module, _LOOPS))
