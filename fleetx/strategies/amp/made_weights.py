"""Weights that are made of parameters in each forward, by code that 16 bits are too few for.

An orthogonal weight is a product of reflections, a spectral norm some steps of an iteration: in 16
bits the one is not finite, and the other has no kernel.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm

from fleetx.graph.operator_casts import cast
from fleetx.plan.error import PlanError
from fleetx.plan.forward import Forward, replace_forward
from fleetx.torch_internals import before_forward, without_torch_function


def make_weights_in_float32(model: nn.Module, low: torch.dtype) -> None:
    """Let parametrizations of torch see float32, and their layers what becomes of it in ``low``."""
    for name, module in model.named_modules():
        if isinstance(module, ParametrizationList):
            replace_forward(module, partial(_in_float32, low))
        if any(isinstance(hook, SpectralNorm) for hook in before_forward(module)):
            raise PlanError(
                f"the weight of {name!r} is made by torch.nn.utils.spectral_norm, which the pure "
                "modes of amp_configs cannot keep in float32; use "
                "torch.nn.utils.parametrizations.spectral_norm, or leave use_pure_fp16 and "
                "use_pure_bf16 False."
            )


def _in_float32(low: torch.dtype, forward: Forward) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        # The casts of a pure mode are a torch function mode.
        with without_torch_function():
            return cast(forward(*args, **kwargs), low)

    return run
