"""``fleet.utils.recompute``: results that are computed again instead of kept."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from fleetx.compat.tensors import wrap


def recompute(
    function: Callable[..., Any],
    *args: Any,
    preserve_rng_state: bool = True,
    use_reentrant: bool = True,
    **kwargs: Any,
) -> Any:
    """What the function returns, without keeping what it computes in between."""
    if kwargs and use_reentrant:
        raise ValueError(
            "recompute() passes keyword arguments on with use_reentrant=False alone, as in "
            f"Paddle; got {', '.join(kwargs)}."
        )
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    found = checkpoint(
        function, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state, **kwargs
    )
    return wrap(found)


def recompute_sequential(ctx: dict[str, Any], functions: Any, *args: Any, **kwargs: Any) -> Any:
    """Layers one after the other, computed again in segments."""
    layers = list(functions)
    segments = max(int(ctx.get("segments", 1)), 1)
    size = max(len(layers) // segments, 1)
    made: Any = args if len(args) > 1 else args[0]
    for start in range(0, len(layers), size):
        made = recompute(_Run(layers[start : start + size]), made, **kwargs)
    return made


class _Run:
    """Several layers as one function."""

    def __init__(self, layers: list[Any]) -> None:
        self._layers = layers

    def __call__(self, made: Any) -> Any:
        """One after the other."""
        for layer in self._layers:
            made = layer(made)
        return made
