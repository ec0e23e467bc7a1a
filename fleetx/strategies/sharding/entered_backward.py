"""Weights are gathered again for a backward, wherever it enters a unit.

FSDP looks at what the last module of a unit returned, and there at what torch's trees hold. A loss
may come from the first of two heads that travel together, or from a distribution; and a view that
was returned may be written to, as in ``x += y`` or by an activation in place.
"""

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fleetx.comm.gradient_hooks import settle_views
from fleetx.comm.nested import tensors
from fleetx.strategies.sharding.units import Unit
from fleetx.torch_internals import fsdp_gathers_before, fsdp_gathers_behind, is_fsdp

_SEEN = (Tensor, int, float, str, type(None))


def gather_where_entered(model: nn.Module, units: Sequence[Unit]) -> None:
    """Watch what the modules of units, and the model, return; all of them are laid out."""
    for unit in units:
        for module in unit.modules:
            _watch(module, several=len(unit.modules) > 1)
    # torch warns of views that are written to, since it forgets them; here they are remembered.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    _watch(model, several=False)


def _watch(module: nn.Module, *, several: bool) -> None:
    module.register_forward_hook(_settled, prepend=True)
    module.register_forward_hook(partial(_returned, several=several), with_kwargs=True)


def _settled(module: nn.Module, args: Any, outputs: Any) -> None:
    """FSDP registers its hooks next."""
    settle_views(tensors(outputs))


def _returned(module: nn.Module, args: Any, kwargs: Any, outputs: Any, *, several: bool) -> None:
    # A copy of the model has this hook, too, and is plain.
    if not torch.is_grad_enabled() or not is_fsdp(module):
        return
    found = tensors(outputs)
    if several or not _is_seen(outputs):
        fsdp_gathers_before(module, found)
    fsdp_gathers_behind(module, found, tensors((args, kwargs)))


def _is_seen(outputs: Any) -> bool:
    """Whether FSDP has found all there is: a tensor, or a flat group of them."""
    if type(outputs) in {tuple, list}:
        return all(isinstance(value, _SEEN) for value in outputs)
    if type(outputs) is dict:
        return all(isinstance(value, _SEEN) for value in outputs.values())
    return isinstance(outputs, _SEEN)
