"""A graph of a model's forward, in which chosen submodules are single calls."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import fx, nn

from fleetx.graph import kinds
from fleetx.record import followed
from fleetx.record.error import ProgramError
from fleetx.record.placing import place_on
from fleetx.strategies.pipeline.recorder import recording
from fleetx.strategies.pipeline.refusal import REMEDY, TraceError, place
from fleetx.strategies.pipeline.side_effects import unchanged
from fleetx.strategies.pipeline.tracer import Follower, Whole, stays_whole
from fleetx.torch_internals import has_forward_hooks

__all__ = ["Forward", "TraceError", "Way", "Whole", "follow", "open_up", "record", "way_of"]

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


Way = Callable[[Whole], Forward]
"""How to follow a model: which submodules are single calls -> its forward."""


def way_of(
    model: nn.Module,
    sample: Mapping[str, Any] | None,
    given: Collection[str] = (),
    *,
    fixed: bool = False,
    device: torch.device = _CPU,
) -> Way:
    """By what is known of the inputs: recorded for a sample, else by the structure of the code.

    Args:
        model: what is followed.
        sample: arguments of its forward by name.
        given: those of them that are inputs although they have a default.
        fixed: whether the sample gives other values than defaults that are no tensors, with which
            code cannot be followed without them.
        device: where the model will run.
    """

    def by_structure(whole: Whole) -> Forward:
        return Forward(follow(model, whole, given))

    def by_sample(whole: Whole) -> Forward:
        assert sample is not None
        try:
            forward = record(model, whole, sample)
            place_on(forward.graph, device)
            return forward
        except TraceError as error:
            # Submodules that need the numbers of their inputs, which a recording has not.
            try:
                if not fixed:
                    return by_structure(whole)
            except TraceError:
                pass
            raise error from None

    return by_structure if sample is None else by_sample


def record(model: nn.Module, whole: Whole, sample: Mapping[str, Any]) -> Forward:
    """The forward of ``model`` for inputs like a sample: its code may ask for sizes and types.

    Which submodules are single calls is as for ``follow``.

    Raises:
        TraceError: The forward does something that a graph could only get wrong.
    """
    _check(model)

    def kept(name: str, module: nn.Module) -> bool:
        return stays_whole(module) or whole(name, module)

    with unchanged(model):
        try:
            found = followed.follow(model, sample, kept)
        except ProgramError as error:
            at = error.line or place(error.__traceback__)
            raise TraceError(f"{at}: in the forward, {error.what or error}: {REMEDY}.") from error
        except Exception as error:
            at = place(error.__traceback__)
            what = f"following it fails with {type(error).__name__} ({error})"
            raise TraceError(f"{at}: in the forward, {what}: {REMEDY}.") from error
    _check_state(found.graph)
    return Forward(found.graph, found.check, found.opened)


def _check_state(graph: fx.Graph) -> None:
    """Refuse a forward that writes into the model: one stage would, and the others not."""
    for node in graph.nodes:
        changed = kinds.changed(node)
        if changed is not None and kinds.source(changed).op == "get_attr":
            raise TraceError(
                f"{node.meta.get('line', 'the forward of the model')}: in the forward, "
                f"{kinds.source(changed).target!r} of the model is changed in place: {REMEDY}."
            )


def follow(model: nn.Module, whole: Whole, given: Collection[str] = ()) -> fx.Graph:
    """The forward of ``model``'s class as a graph; the model stays as it is.

    A submodule for which ``whole(name, module)`` is true is one ``call_module`` node, and so is
    every submodule without children and every one with hooks, parametrizations or a forward of
    its own object, because those act only when the submodule is called. All other submodules are
    followed through. Parameters and buffers that the followed code uses are ``get_attr`` nodes.

    Arguments of the forward with a default stay at their default, unless ``given`` names them;
    ``*args`` and ``**kwargs`` stay empty. Only the remaining arguments are placeholders.

    Whether a module trains is a constant of the graph where followed code asks for it: follow
    the model once per mode.

    Raises:
        TraceError: The forward does something that a graph could only get wrong.
    """
    _check(model)
    tracer = Follower(model, whole, given)
    with unchanged(model), recording(tracer):
        try:
            return tracer.trace(model)
        except TraceError:
            raise
        except Exception as error:
            what = f"following it fails with {type(error).__name__} ({error})"
            raise tracer.error(place(error.__traceback__), what) from error


def _check(model: nn.Module) -> None:
    if isinstance(model.__dict__.get("forward"), FunctionType | MethodType):
        raise TraceError(
            f"the forward of this {type(model).__name__} object was replaced, and only that of its "
            f"class can be followed: {REMEDY}."
        )
    if has_forward_hooks(model):
        raise TraceError(
            f"the {type(model).__name__} has forward hooks, which would never run because it is "
            "not called as a whole any more: register them on its submodules."
        )


def open_up(
    model: nn.Module, parts: int, given: Collection[str] = (), way: Way | None = None
) -> Whole:
    """Which modules to follow through when nobody said where to cut.

    The model itself, and in turn each submodule that holds more than ``1 / (2 * parts)`` of all
    parameters, if its code can be followed; of torch.nn's own modules the containers alone.
    """
    opened, refused = {""}, set[str]()

    def whole(name: str, module: nn.Module) -> bool:
        return name not in opened

    way = way or way_of(model, None, given)
    limit = _weight(model) / (2 * parts)
    graph = way(whole).graph
    while True:
        names = {str(node.target) for node in graph.nodes if node.op == "call_module"} - refused
        heavy = (name for name in sorted(names) if _weight(model.get_submodule(name)) > limit)
        name = next((name for name in heavy if _may_open(model.get_submodule(name))), None)
        if name is None:
            return whole
        opened.add(name)
        try:
            graph = way(whole).graph
        except TraceError:
            opened.remove(name)
            refused.add(name)
        else:
            refused.add(name)


def _weight(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _may_open(module: nn.Module) -> bool:
    own = type(module).__module__.startswith("torch.nn.")
    return next(module.children(), None) is not None and (not own or isinstance(module, _LOOPS))
