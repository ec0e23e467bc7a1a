"""Gradients of gradients, which some layouts cannot give."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fleetx.comm.gradient_hooks import hook_gradient
from fleetx.comm.nested import tensors
from fleetx.plan.error import PlanError


def refuse_second_order(model: nn.Module, why: str, within: Callable[[nn.Module], bool]) -> None:
    """Stop a backward through the model that shall be differentiated itself.

    Args:
        model: its outputs are watched.
        why: what is set, why it cannot work and what to set instead, after "the script ..., and ".
        within: whether a module is laid out so; a copy of the model has this hook, too.
    """
    model.register_forward_hook(partial(_returned, why, within))


def _returned(
    why: str, within: Callable[[nn.Module], bool], module: nn.Module, args: Any, outputs: Any
) -> None:
    if torch.is_grad_enabled() and within(module):
        for tensor in tensors(outputs):
            if tensor.requires_grad:
                hook_gradient(tensor, partial(_refuse, why))


def _refuse(why: str, gradient: Tensor) -> None:
    if torch.is_grad_enabled():  # autograd itself says so by this, to whatever it calls
        raise PlanError(
            "the script differentiates gradients (create_graph=True, as a penalty on gradients "
            f"does), and {why}"
        )
