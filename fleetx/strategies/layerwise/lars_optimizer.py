"""LARS: momentum with a learning rate per layer, from the norms of weights and gradient."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fleetx.comm.norms import norm, norms
from fleetx.strategies.layerwise.layers import Layers, descended, local, rate, widened
from fleetx.strategies.layerwise.layerwise_optimizer import Group, LayerwiseOptimizer
from fleetx.strategies.layerwise.pointers import PointerTable
from fleetx.torch_internals import (
    foreach_add,
    foreach_add_,
    foreach_mul,
    foreach_mul_,
    foreach_sub_,
    fused_sgd_,
)

SMALLEST = 1e-9
"""Below this, ``1 - (1 - rate)`` loses more digits than single precision has."""


class Lars(LayerwiseOptimizer):
    """Momentum whose rate is scaled, per tensor, by the ratio of the two norms.

    ::

        g        = gradient + weight_decay * p
        local_lr = lr * lars_coeff * |p| / (|g| + lars_weight_decay * |p| + epsilon)
        v        = momentum * v + local_lr * (g + lars_weight_decay * p)
        p        = p - v

    ``local_lr`` is ``lr`` where ``lars_weight_decay`` or one of the norms is zero. Parameters at
    the positions ``excluded`` of a group have a ``lars_weight_decay`` of zero.

    The learning rate is inside ``v``: a new one acts with the lag of the momentum.

    Args:
        params: Parameters or groups; every other argument may differ between groups.
        lr: A number, or a tensor of one number, which may lie on the device.
        momentum: Share of the last step that is kept.
        weight_decay: L2 regularisation, added to the gradient before all else.
        lars_coeff: The trust coefficient.
        lars_weight_decay: Decay inside of the rule.
        epsilon: Added to the denominator.
        maximize: Climb instead of descend.
        fused: False for torch's list operations everywhere; otherwise the fastest path is taken.
            Results differ by rounding only.
        excluded: Positions of excluded parameters; an option of single groups.
    """

    buffers: ClassVar[tuple[str, ...]] = ("velocity",)
    mark: ClassVar[str] = "lars_coeff"

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        lars_coeff: float = 0.001,
        lars_weight_decay: float = 0.0005,
        epsilon: float = 0.0,
        maximize: bool = False,
        fused: bool | None = None,
        excluded: tuple[int, ...] = (),
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "lars_coeff": lars_coeff,
            "lars_weight_decay": lars_weight_decay,
            "epsilon": epsilon,
        }
        for name, value in defaults.items():
            if not isinstance(value, Tensor) and value < 0:
                raise ValueError(f"{name} must be at least 0, got {value!r}")
        flags = {"maximize": maximize, "fused": fused, "excluded": excluded}
        super().__init__(params, defaults | flags)

    @override
    def move_plain(self, group: Group, layers: Layers) -> None:
        for excluded, decay in ((False, group["lars_weight_decay"]), (True, 0.0)):
            if (chosen := layers.only(excluded)).params:
                _move(group, chosen, decay)

    @override
    def move_on_host(self, group: Group, layers: Layers) -> None:
        lr, decay = float(group["lr"]), group["lars_weight_decay"]
        excluded, small, large = layers.shared_out(decay)
        if excluded.params:
            _momentum(group, excluded, 0.0, lr)
        if small.params:
            _move(group, small, decay)
        for at, param in enumerate(large.params):
            layer = large.at([at])
            layer.grads[:] = descended(layer.grads, layer.params, **_objective(group))
            trust = _trust(norm(param), norm(layer.grads[0]), decay, group)
            _momentum(group, layer, decay, lr * trust, ready=True)

    @override
    def move_on_device(self, group: Group, layers: Layers, table: PointerTable) -> None:
        from fleetx.strategies.layerwise import lars_kernels

        table.renew(
            [layers.params, layers.grads, layers.state("velocity")],
            layers.excluded if group["lars_weight_decay"] > 0 else [True] * len(layers.params),
        )
        with torch.cuda.device_of(layers.params[0]):
            lars_kernels.move(table, group, rate(group["lr"]), self.found_inf)


def _objective(group: Group) -> dict[str, Any]:
    return {"weight_decay": group["weight_decay"], "maximize": group["maximize"]}


def _momentum(
    group: Group, layers: Layers, decay: float, local_lr: float, *, ready: bool = False
) -> None:
    """One pass over layers with a common rate: the dampening of torch's SGD is what it needs.

    Args:
        group: The options.
        layers: Parameters, velocities and gradients.
        decay: The decay inside of the rule.
        local_lr: The rate.
        ready: Whether the user's decay and the sign are in the gradients already.
    """
    momentum, velocities = float(group["momentum"]), layers.state("velocity")
    grads = layers.grads if ready else descended(layers.grads, layers.params, **_objective(group))
    if momentum == 0 or 0 < abs(local_lr) < SMALLEST:
        steps = foreach_add(grads, layers.params, alpha=decay)
        foreach_mul_(velocities, momentum)
        foreach_add_(velocities, steps, alpha=local_lr)
        foreach_sub_(layers.params, velocities)
        return
    fused_sgd_(
        layers.params,
        grads,
        velocities,
        weight_decay=decay,
        momentum=momentum,
        lr=1.0,
        dampening=1.0 - local_lr,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


def _trust(weights: float, gradient: float, decay: float, group: Group) -> float:
    if not (weights > 0 and gradient > 0):
        return 1.0
    below: float = gradient + decay * weights + group["epsilon"]
    return float(group["lars_coeff"] * weights / below)


def _move(group: Group, layers: Layers, decay: float) -> None:
    """The rule in torch's list operations, for parameters with one decay."""
    lr = rate(group["lr"])
    params, velocities = local(layers.params), local(layers.state("velocity"))
    wide = widened(params)
    grads = descended(local(layers.grads), wide, **_objective(group))
    if decay > 0:
        steps = foreach_add(grads, wide, alpha=decay)
        local_lrs = lr * _trusts(
            norms(wide, layers.params), norms(grads, layers.params), decay, group
        )
        foreach_mul_(steps, list(local_lrs.unbind()))
    else:
        steps = foreach_mul(grads, lr)
    foreach_mul_(velocities, group["momentum"])
    foreach_add_(velocities, steps)
    foreach_sub_(params, velocities)


def _trusts(weights: Tensor, gradients: Tensor, decay: float, group: Group) -> Tensor:
    ratios = group["lars_coeff"] * weights / (gradients + decay * weights + group["epsilon"])
    return torch.where((weights > 0) & (gradients > 0), ratios, 1.0)
