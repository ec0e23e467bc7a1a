"""What kernels of compiled code take on a card, measured with code that torch's compiler makes."""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fleetx.auto.cluster import Device
from fleetx.plan.work import FusedKernels

logger = logging.getLogger(__name__)
LARGE, SMALL = (128, 256, 56, 56), (32, 256, 28, 28)
"""Images in channels-last, of which the larger ones fill no cache."""
FEW, MANY, WIDTH = 2, 18, 16
"""Layers of two chains that the host starts, and their width: a card has nothing to do there."""
CALLS, ROUNDS = 20, 5
FORWARD, BACKWARD = 2, 3.5
"""Operators of a layer, and those of its backward as plans count them."""

ROW = 2048
"""Numbers of a row."""
POOLED = 1 + 1 / 4 + 1 / 8
"""Of the bytes of images, what the backward of a pooling moves that halves both sides: their
gradient, that of its result, and a byte for each place that it has found."""

Seconds = Callable[[Callable[[], object]], float]


def fused_kernels(device: torch.device, worker: Device, seconds: Seconds) -> FusedKernels:
    """Measure them; what a card and its compiler cannot run is as fast as memory.

    Args:
        device: a card that is here.
        worker: what one worker has of it.
        seconds: measures a call on the device alone.
    """
    try:
        rate = worker.memory_gigabytes_per_second * 1e9
        kernel, _ = _line(_forward(_normalised), 2, device, seconds)
        reads, statistics = _line(_forward(_statistics), 1, device, seconds)
        sums, summed = _line(_forward(_summed), 1, device, seconds)
        _, along = _line(_forward(_along_rows), 2, device, seconds)
        _, pooled = _line(_pooling(), POOLED, device, seconds)
        call, start = _host(device)
    except Exception as error:  # compilers fail in many ways, and a plan can do without
        logger.warning(
            "strategy.auto could not measure kernels of compiled code (%s: %s): its plans take "
            "them for as fast as memory",
            type(error).__name__,
            str(error).strip().partition("\n")[0],
        )
        return FusedKernels()
    forward, backward = worker.microseconds_per_kernel, worker.microseconds_per_gradient or 0.0
    return FusedKernels(
        each=kernel * rate,
        each_sum=(reads + sums) / 2 * rate,
        statistics=max(1.0, statistics * rate),
        sums=max(1.0, summed * rate),
        rows=max(1.0, along * rate),
        windows=max(1.0, pooled * rate),
        starts=start * 1e6 / (FORWARD * forward + BACKWARD * backward),
        call=call * 1e6 / (forward + backward),
    )


def _normalised(x: Tensor, mean: Tensor) -> Tensor:
    return (x.float() - mean).relu().to(x.dtype)


def _statistics(x: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """What a forward of batch norm needs of each channel."""
    return torch.var_mean(x.float() - mean, (0, 2, 3))


def _summed(x: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """What its backward needs, of gradients and of values: each a half of the images."""
    gradient, values = x.float().chunk(2)
    return gradient.sum((0, 2, 3)), (gradient * (values - mean)).sum((0, 2, 3))


def _along_rows(x: Tensor, mean: Tensor) -> Tensor:
    """What a layer norm does; with a dropout, random numbers would be what takes the time."""
    rows = x.permute(0, 2, 3, 1).reshape(-1, ROW).float()
    return functional.layer_norm(rows, (ROW,)).to(x.dtype)


Maker = Callable[[Tensor, Tensor], Callable[[], object]]
"""Images and a number for each channel -> a call of code on them."""


def _forward(function: Callable[[Tensor, Tensor], Any]) -> Maker:
    code = torch.compile(function, dynamic=False)
    return lambda images, mean: partial(code, images, mean)


def _pooling() -> Maker:
    """The backward of a pooling with windows that overlap."""
    code = torch.compile(lambda x: functional.max_pool2d(x, 3, 2, 1), dynamic=False)

    def made(images: Tensor, mean: Tensor) -> Callable[[], object]:
        pooled = code(images.requires_grad_())
        ones = torch.ones_like(pooled)
        return partial(torch.autograd.grad, pooled, images, ones, retain_graph=True)

    return made


def _line(made: Maker, times: float, device: torch.device, seconds: Seconds) -> tuple[float, float]:
    """Seconds of a kernel without work, and for each byte; it moves so many times its input."""
    found = []
    for shape in (SMALL, LARGE):
        images = torch.randn(shape, device=device).to(torch.bfloat16)
        images = images.to(memory_format=torch.channels_last)
        mean = torch.zeros(1, shape[1], 1, 1, device=device)
        moved = images.numel() * images.itemsize * times
        found.append((moved, seconds(made(images, mean))))
    (few, short), (many, long) = found
    each = (long - short) / (many - few)
    return max(0.0, short - few * each), each


def _host(device: torch.device) -> tuple[float, float]:
    """Seconds of the host for a call of code and its backward, and for each layer in it."""
    short, long = (_chain(layers, device) for layers in (FEW, MANY))
    each = max(0.0, (long - short) / (MANY - FEW))
    return max(0.0, short - FEW * each), each


def _chain(layers: int, device: torch.device) -> float:
    pairs = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(layers)]
    chain = nn.Sequential(*pairs).to(device)
    code = torch.compile(chain, dynamic=False)
    x = torch.randn(WIDTH, WIDTH, device=device, requires_grad=True)
    ones, inputs = torch.ones_like(x), [x, *chain.parameters()]
    return _least(lambda: torch.autograd.grad(code(x), inputs, ones), device)


def _least(call: Callable[[], Sequence[Tensor]], device: torch.device) -> float:
    """Seconds that the host takes for a call, in the quickest of some rounds."""
    found = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        found.append((time.perf_counter() - began) / CALLS)
    return min(found)
