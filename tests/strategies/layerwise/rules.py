"""The two rules, each beside its formula in double precision."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fleetx.optim.lamb import Lamb
from fleetx.optim.lars import Lars
from tests.strategies.layerwise.layers import (
    EXCLUDED,
    STEPS,
    Trajectory,
    gradients,
    largest,
    parameters,
)


def lamb_step(  # noqa: PLR0917
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: int, lr: float, wd: float, **options: Any
) -> None:
    """The formula of LAMB, in the precision of its arguments."""
    beta1, beta2 = options.get("betas", (0.9, 0.999))
    g = (-g if options.get("maximize") else g) + options.get("weight_decay", 0.0) * p
    m.copy_(beta1 * m + (1 - beta1) * g)
    v.copy_(beta2 * v + (1 - beta2) * g * g)
    r = m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + options.get("eps", 1e-8)) + wd * p
    weight, length = float(p.norm()), float(r.norm())
    p.sub_(lr * (weight / length if wd > 0 and weight > 0 and length > 0 else 1.0) * r)


def lamb_reference(lr: float, shapes: Any = None, **options: Any) -> Trajectory:
    """The trajectory of ``train`` in double precision, tensor by tensor."""
    params = parameters(shapes=shapes)
    values = [p.detach().double() for p in params]
    means, squares = ([torch.zeros_like(value) for value in values] for _ in range(2))
    times, reach = [0] * len(params), largest(values)
    decay = options.pop("lamb_weight_decay", 0.01)
    for step in range(STEPS):
        for at, grad in enumerate(gradients(params, step)):
            if grad is not None:
                times[at] += 1
                wd = 0.0 if at in EXCLUDED else decay
                moments = means[at], squares[at], times[at]
                lamb_step(values[at], grad.double(), *moments, lr, wd, **options)
        reach = [max(pair) for pair in zip(reach, largest(values), strict=True)]
    return Trajectory(values, reach)


def lars_step(p: Tensor, g: Tensor, v: Tensor, lr: float, wd: float, **options: Any) -> None:
    """The formula of LARS, in the precision of its arguments."""
    coeff, epsilon = options.get("lars_coeff", 0.001), options.get("epsilon", 0.0)
    g = (-g if options.get("maximize") else g) + options.get("weight_decay", 0.0) * p
    rate, weight, gradient = lr, float(p.norm()), float(g.norm())
    if wd > 0 and weight > 0 and gradient > 0:
        rate = lr * coeff * weight / (gradient + wd * weight + epsilon)
    v.copy_(options.get("momentum", 0.9) * v + rate * (g + wd * p))
    p.sub_(v)


def lars_reference(lr: float, shapes: Any = None, **options: Any) -> Trajectory:
    """The trajectory of ``train`` in double precision, tensor by tensor."""
    params = parameters(shapes=shapes)
    values = [p.detach().double() for p in params]
    velocities = [torch.zeros_like(value) for value in values]
    reach = largest(values)
    decay = options.pop("lars_weight_decay", 0.0005)
    for step in range(STEPS):
        for number, grad in enumerate(gradients(params, step)):
            if grad is not None:
                wd = 0.0 if number in EXCLUDED else decay
                lars_step(values[number], grad.double(), velocities[number], lr, wd, **options)
        reach = [max(pair) for pair in zip(reach, largest(values), strict=True)]
    return Trajectory(values, reach)


@dataclass(frozen=True)
class Rule:
    """A rule, what is expected of it, and at which rates it is tried."""

    make: type[Lamb] | type[Lars]
    reference: Callable[..., Trajectory]
    lr: float
    options: dict[str, dict[str, Any]]
    rate_of_shapes: float
    """For tensors of any shape, some of them very small."""
    rtol_of_shapes: float
    options_of_shapes: dict[str, Any]
    rate_of_jobs: float
    rate_when_spread: float


RULES = {
    "lamb": Rule(
        make=Lamb,
        reference=lamb_reference,
        lr=0.05,
        options={
            "defaults": {},
            "L2, ascent": {"weight_decay": 0.05, "maximize": True},
            "betas": {"betas": (0.0, 0.5), "eps": 0.1},
            "no decay": {"lamb_weight_decay": 0.0},
        },
        rate_of_shapes=0.05,
        rtol_of_shapes=1e-5,
        options_of_shapes={"eps": 1e-3},
        rate_of_jobs=0.05,
        rate_when_spread=0.05,
    ),
    "lars": Rule(
        make=Lars,
        reference=lars_reference,
        lr=0.5,
        options={
            "defaults": {},
            "L2, ascent": {"weight_decay": 0.05, "maximize": True},
            "no momentum": {"momentum": 0.0},
            "no decay": {"lars_weight_decay": 0.0},
            "epsilon": {"epsilon": 0.1},
            "tiny rate": {"lars_coeff": 1e-12},
        },
        rate_of_shapes=10.0,
        rtol_of_shapes=5e-6,
        options_of_shapes={},
        rate_of_jobs=5.0,
        rate_when_spread=10.0,
    ),
}

PATHS = [(False, 0), (None, 0), (None, 1 << 14)]
"""List operations, one fused kernel per tensor, and what such small tensors really take."""


def job(name: str, dtype: torch.dtype = torch.float32) -> tuple[list[torch.nn.Parameter], Any]:
    """Parameters and their optimizer."""
    rule, params = RULES[name], parameters(dtype=dtype)
    groups = [{"params": params, "excluded": EXCLUDED}]
    return params, rule.make(groups, lr=rule.rate_of_jobs)


def advance(params: list[torch.nn.Parameter], optimizer: Any, steps: range) -> None:
    """Update with the gradients of some steps."""
    for step in steps:
        for param, grad in zip(params, gradients(params, step), strict=True):
            param.grad = grad
        optimizer.step()
