"""Parameters and gradients on which the layer-wise rules are compared with their formulas."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SHAPES = [(20_000,), (64, 33), (64, 32, 3, 3), (), (2, 2), (130, 130), (0, 3), (7, 9)]
ZERO, CHANNELS_LAST, EXCLUDED = 4, 2, (1,)
STEPS = 6


def parameters(
    device: str = "cpu", dtype: torch.dtype = torch.float32, shapes: Any = None
) -> list[nn.Parameter]:
    """One of each kind: large, excluded, channels last, of no dimension, zero, empty, small."""
    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(shape, generator=generator) for shape in shapes or SHAPES]
    if shapes is None:
        values[ZERO].zero_()
        values[CHANNELS_LAST] = values[CHANNELS_LAST].to(memory_format=torch.channels_last)
    return [nn.Parameter(value.to(device, dtype)) for value in values]


def gradients(params: list[nn.Parameter], step: int) -> list[Tensor | None]:
    """The gradients of a step: some zero, some missing, some laid out unlike the parameter."""
    generator = torch.Generator().manual_seed(100 + step)
    found: list[Tensor | None] = []
    for number, param in enumerate(params):
        grad = torch.randn(param.shape, generator=generator).to(param)
        if not (step == 4 and number == CHANNELS_LAST):
            grad = torch.empty_like(param).copy_(grad)
        if step == 3 and number == 0:
            grad.zero_()
        found.append(None if step == 2 and number == 5 else grad)
    return found


def train(
    make: Callable[..., Optimizer],
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    shapes: Any = None,
    steps: int = STEPS,
    **options: Any,
) -> list[Tensor]:
    """The parameters after some steps of one group, in which ``EXCLUDED`` are excluded."""
    params = parameters(device, dtype, shapes)
    optimizer = make([{"params": params, "excluded": EXCLUDED}], **options)
    for step in range(steps):
        for param, grad in zip(params, gradients(params, step), strict=True):
            param.grad = grad
        before = [None if p.grad is None else p.grad.clone() for p in params]
        optimizer.step()
        for param, grad in zip(params, before, strict=True):
            assert (param.grad is None) == (grad is None)
            assert grad is None or torch.equal(param.grad, grad)  # type: ignore[arg-type]
    return [param.detach().cpu().double() for param in params]


def largest(values: list[Tensor]) -> list[float]:
    """The largest number of each tensor."""
    return [float(value.abs().max()) if value.numel() else 0.0 for value in values]


class Trajectory(NamedTuple):
    """Where the parameters end, and the largest numbers that each had on its way there.

    What is rounded at a step is of the size of what is summed, wherever the sum ends.
    """

    end: list[Tensor]
    reach: list[float]


def assert_same(found: list[Tensor], expected: list[Tensor] | Trajectory, rtol: float) -> None:
    """Equal up to ``rtol`` of the largest number that each tensor has, or had on its way."""
    if not isinstance(expected, Trajectory):
        expected = Trajectory(expected, largest(expected))
    for ours, theirs, scale in zip(found, *expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=rtol * scale)


def graph_and_eager(make: Callable[..., Optimizer], lr: float) -> list[list[Tensor]]:
    """Parameters after four steps on a GPU, the last three eager and as replays of a CUDA graph.

    The gradients of the capture lie elsewhere than those of the step before, and the learning rate
    changes between replays. No step may make the host wait.
    """
    found = []
    for capture in (False, True):
        params, rate = parameters("cuda"), torch.tensor(lr, device="cuda")
        optimizer = make([{"params": params, "excluded": EXCLUDED}], lr=rate)
        for param, grad in zip(params, gradients(params, 0), strict=True):
            param.grad = grad
        optimizer.step()
        fresh = [torch.zeros_like(param) for param in params]
        for param, grad in zip(params, fresh, strict=True):
            param.grad = grad
        move: Callable[[], Any] = optimizer.step
        if capture:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                optimizer.step()
            move = graph.replay
        for step in (1, 3, 5):
            torch._foreach_copy_(fresh, gradients(params, step))  # type: ignore[arg-type]
            rate.fill_(lr / step)
            torch.cuda.set_sync_debug_mode("error")
            try:
                move()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        found.append([param.detach().cpu().double() for param in params])
    return found
