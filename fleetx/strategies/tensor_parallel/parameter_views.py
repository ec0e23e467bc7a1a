"""Parameters that are DTensors, shown to a forward in another form for the time of a call."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from fleetx.torch_internals import mark_parameter, parameters_of, put_flat_weight

Forward = Callable[..., Any]
Change = Callable[[Forward], Forward]
Show = Callable[[Any], Tensor | None]
"""What a parameter looks like meanwhile; None leaves it as it is."""
Wanted = Callable[[Any], bool]
"""Whether it would look otherwise."""


def plain_parameters(owners: Iterable[nn.Module]) -> Change:
    """Let a forward outside of regions see parameters as plain, whole tensors."""
    return partial(_showing, owners=_with_parameters(owners), show=_plain, wanted=_is_spread)


def settled_parameters(owners: Iterable[nn.Module]) -> Change:
    """Let the gradients of parameters in a region be complete and lie like the parameters.

    A parameter that all ranks hold, but use on other positions each, would else be left with sums
    that are still to be made, which everybody but torch mistakes for gradients.
    """
    return partial(_showing, owners=_with_parameters(owners), show=_settled, wanted=_is_unsettled)


def _with_parameters(owners: Iterable[nn.Module]) -> list[nn.Module]:
    return [owner for owner in owners if parameters_of(owner)]


def _plain(parameter: Any) -> Tensor | None:
    if not isinstance(parameter, DTensor):
        return None
    if all(placement.is_replicate() for placement in parameter.placements):
        return parameter.to_local()
    # One of a cut layer, of which this module has it, too. What is sharded in addition lies on
    # a mesh of more dimensions, until whoever shards it has gathered it.
    return parameter.full_tensor() if parameter.device_mesh.ndim == 1 else None


def _is_spread(parameter: Any) -> bool:
    return isinstance(parameter, DTensor)


def _is_unsettled(parameter: Any) -> bool:
    return isinstance(parameter, DTensor) and parameter.is_leaf and parameter.requires_grad


def _settled(parameter: Any) -> Tensor | None:
    if not isinstance(parameter, DTensor) or not _is_unsettled(parameter):
        return None
    # Moves nothing now; its backward brings the gradient to the same places.
    return parameter.redistribute(placements=parameter.placements)


def _showing(forward: Forward, owners: list[nn.Module], show: Show, wanted: Wanted) -> Forward:
    def run(*args: Any, **kwargs: Any) -> Any:
        # Compiled code can exchange no parameters; what surrounds it has done so.
        if torch.compiler.is_compiling() and not _any(owners, wanted):
            return forward(*args, **kwargs)
        with _shown(owners, show):
            return forward(*args, **kwargs)

    return run


def _any(owners: list[nn.Module], wanted: Wanted) -> bool:
    return any(wanted(p) for owner in owners for p in parameters_of(owner).values())


@contextmanager
def _shown(owners: list[nn.Module], show: Show) -> Iterator[None]:
    """Exchange parameters for what ``show`` makes of them; None leaves one alone.

    They are looked up at each call: whoever shards them in addition exchanges the parameters of a
    module shortly before it runs.
    """
    seen: dict[int, Tensor | None] = {}
    exchanged: list[tuple[nn.Module, str, Any]] = []
    for owner in owners:
        for name, parameter in parameters_of(owner).items():
            if id(parameter) not in seen:
                seen[id(parameter)] = _as_parameter(show(parameter))
            if (shown := seen[id(parameter)]) is not None:
                exchanged.append((owner, name, parameter))
                _put(owner, name, shown)
    try:
        yield
    finally:
        for owner, name, parameter in exchanged:
            # Somebody may have exchanged it again meanwhile.
            if parameters_of(owner).get(name) is seen[id(parameter)]:
                _put(owner, name, parameter)


def _as_parameter(shown: Tensor | None) -> Tensor | None:
    if shown is not None:
        mark_parameter(shown)
    return shown


def _put(owner: nn.Module, name: str, parameter: Any) -> None:
    parameters_of(owner)[name] = parameter
    if isinstance(owner, nn.RNNBase):  # which keeps a list of them beside
        put_flat_weight(owner, name, parameter)
