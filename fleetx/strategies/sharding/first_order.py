"""Gradients of gradients, which need weights that sharding has given back by then."""

from typing import Any

import torch
from torch import Tensor, nn

from fleetx.comm.gradient_hooks import hook_gradient
from fleetx.comm.nested import tensors
from fleetx.plan.error import PlanError
from fleetx.torch_internals import is_fsdp

_SECOND = (
    "the script differentiates gradients (create_graph=True, as a penalty on gradients does), and "
    "strategy.sharding = True gives the gathered weights back as soon as the first backward has "
    "used them; set strategy.sharding = False, because data parallel can do this."
)


def refuse_second_order(model: nn.Module) -> None:
    """Stop a backward through the model that shall be differentiated itself."""
    model.register_forward_hook(_returned)


def _returned(module: nn.Module, args: Any, outputs: Any) -> None:
    # A copy of the model has this hook, too, and is plain.
    if torch.is_grad_enabled() and is_fsdp(module):
        for tensor in tensors(outputs):
            if tensor.requires_grad:
                hook_gradient(tensor, _refuse)


def _refuse(gradient: Tensor) -> None:
    if torch.is_grad_enabled():  # autograd itself says so by this, to whatever it calls
        raise PlanError(_SECOND)
