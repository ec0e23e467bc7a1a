"""A graph of a model's forward, in which chosen submodules are single calls."""

from collections.abc import Collection
from types import FunctionType, MethodType

from torch import fx, nn

from fleetx.strategies.pipeline.recorder import recording
from fleetx.strategies.pipeline.refusal import REMEDY, TraceError, place
from fleetx.strategies.pipeline.side_effects import unchanged
from fleetx.strategies.pipeline.tracer import Follower, Whole
from fleetx.torch_internals import has_forward_hooks

__all__ = ["TraceError", "Whole", "follow", "open_up"]

_LOOPS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.TransformerEncoder, nn.TransformerDecoder)


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


def open_up(model: nn.Module, parts: int, given: Collection[str] = ()) -> Whole:
    """Which modules to follow through when nobody said where to cut.

    The model itself, and in turn each submodule that holds more than ``1 / (2 * parts)`` of all
    parameters, if its code can be followed; of torch.nn's own modules the containers alone.
    """
    opened, refused = {""}, set[str]()

    def whole(name: str, module: nn.Module) -> bool:
        return name not in opened

    limit = _weight(model) / (2 * parts)
    graph = follow(model, whole, given)
    while True:
        names = {str(node.target) for node in graph.nodes if node.op == "call_module"} - refused
        heavy = (name for name in sorted(names) if _weight(model.get_submodule(name)) > limit)
        name = next((name for name in heavy if _may_open(model.get_submodule(name))), None)
        if name is None:
            return whole
        opened.add(name)
        try:
            graph = follow(model, whole, given)
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
