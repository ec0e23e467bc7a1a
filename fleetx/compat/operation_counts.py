"""``paddle.flops``: how many multiplications a model takes, as Paddle counts them."""

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from fleetx.compat.paddle.nn.layer.common import Linear
from fleetx.compat.paddle.nn.layer.conv import Conv1D, Conv2D, Conv3D
from fleetx.compat.paddle.nn.layer.norm import _BatchNormBase
from fleetx.compat.paddle.nn.layer.pooling import AdaptiveAvgPool2D, AvgPool2D
from fleetx.compat.tensors import wrap

_TOTAL = "total_ops"
"""Where functions of a script's own add what they counted."""

Count = Callable[[Any, Any, Any], int]


def _of_conv(layer: Any, inputs: Any, output: Any) -> int:
    """Each number of a result takes a filter, and its bias."""
    filters: int = math.prod(layer.weight.shape[1:])
    return int(output.numel()) * (filters + (layer.bias is not None))


def _of_linear(layer: Any, inputs: Any, output: Any) -> int:
    return int(output.numel()) * int(layer.weight.shape[0])


def _of_norm(layer: Any, inputs: Any, output: Any) -> int:
    return 2 * int(output.numel()) if not layer.training else 0


def _of_average(layer: Any, inputs: Any, output: Any) -> int:
    """A mean adds what it covers, and divides."""
    covered = inputs[0].numel() // output.numel()
    return int(output.numel()) * (int(covered) + 1)


COUNTS: dict[type, Count] = {
    **dict.fromkeys((Conv1D, Conv2D, Conv3D), _of_conv),
    Linear: _of_linear,
    _BatchNormBase: _of_norm,
    AdaptiveAvgPool2D: _of_average,
    AvgPool2D: lambda layer, inputs, output: int(output.numel()),
}
"""What is counted; activations, maxima and shapes are free, as in Paddle."""


def flops(
    net: nn.Module,
    input_size: Any,
    custom_ops: Mapping[type, Callable[..., Any]] | None = None,
    print_detail: bool = False,
) -> int:
    """Run a model once on random numbers, and count.

    Args:
        net: the model.
        input_size: the shape of its one input.
        custom_ops: kind of layer -> function of the layer, its inputs and its output, which adds
            to ``layer.total_ops``.
        print_detail: print a line for each layer that is counted.
    """
    found: list[tuple[str, int]] = []
    hooks = [
        layer.register_forward_hook(_noting(name, found, dict(custom_ops or {})))
        for name, layer in net.named_modules()
    ]
    before = net.training
    net.eval()
    with torch.no_grad():
        net(wrap(torch.rand([int(size) for size in input_size])))
    net.train(before)
    for hook in hooks:
        hook.remove()
    details = [f"{name}: {count:,}" for name, count in found if count and print_detail]
    total = sum(count for _, count in found)
    weights = sum(int(parameter.numel()) for parameter in net.parameters())
    told = "\n".join([*details, f"Total Flops: {total}     Total Params: {weights}"])
    sys.stdout.write(f"{told}\n")
    return total


def _noting(name: str, found: list[tuple[str, int]], own: dict[type, Any]) -> Callable[..., None]:
    def note(layer: Any, inputs: Any, output: Any) -> None:
        for kind, count in own.items():
            if isinstance(layer, kind):
                setattr(layer, _TOTAL, 0)
                count(layer, inputs, output)
                found.append((name, int(getattr(layer, _TOTAL))))
                return
        for kind, count in COUNTS.items():
            if isinstance(layer, kind):
                found.append((name, count(layer, inputs, output)))
                return

    return note
