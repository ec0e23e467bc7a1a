"""LAMB: Adam with a learning rate per layer, from the norms of weights and step."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fleetx.comm.norms import norm, norms
from fleetx.strategies.layerwise.layers import Layers, descended, local, rate, widened
from fleetx.strategies.layerwise.layerwise_optimizer import Group, LayerwiseOptimizer
from fleetx.strategies.layerwise.pointers import PointerTable
from fleetx.torch_internals import (
    foreach_add_,
    foreach_addcmul_,
    foreach_div,
    foreach_div_,
    foreach_lerp_,
    foreach_mul_,
    foreach_sqrt,
    foreach_sub_,
    fused_adam_,
)


class Lamb(LayerwiseOptimizer):
    """Adam whose step is scaled, per tensor, to the norm of the weights.

    ::

        g = gradient + weight_decay * p
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        r = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + lamb_weight_decay * p
        p = p - lr * |p| / |r| * r

    The ratio of the norms is 1 where ``lamb_weight_decay`` or one of them is zero. Parameters at
    the positions ``excluded`` of a group have a ``lamb_weight_decay`` of zero: plain Adam.

    Args:
        params: Parameters or groups; every other argument may differ between groups.
        lr: A number, or a tensor of one number, which may lie on the device.
        betas: How slowly the two moments forget.
        eps: Added to the denominator.
        weight_decay: L2 regularisation, added to the gradient before all else.
        lamb_weight_decay: Decay inside of the rule.
        maximize: Climb instead of descend.
        fused: False for torch's list operations everywhere; otherwise the fastest path is taken.
            Results differ by rounding only.
        excluded: Positions of excluded parameters; an option of single groups.
    """

    buffers: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    mark: ClassVar[str] = "lamb_weight_decay"

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        weight_decay: float = 0.0,
        lamb_weight_decay: float = 0.01,
        maximize: bool = False,
        fused: bool | None = None,
        excluded: tuple[int, ...] = (),
    ) -> None:
        numbers = {
            "lr": lr,
            "eps": eps,
            "weight_decay": weight_decay,
            "lamb_weight_decay": lamb_weight_decay,
        }
        for name, value in numbers.items():
            if not isinstance(value, Tensor) and value < 0:
                raise ValueError(f"{name} must be at least 0, got {value!r}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be at least 0 and below 1, got {betas!r}")
        flags = {"betas": betas, "maximize": maximize, "fused": fused, "excluded": excluded}
        super().__init__(params, numbers | flags)

    @override
    def _start(self, param: Tensor, state: dict[str, Tensor]) -> None:
        super()._start(param, state)
        # On the device of the parameter, so that nobody waits and a captured step can count.
        state["step"] = torch.zeros((), dtype=torch.float32, device=param.device)

    @override
    def move_plain(self, group: Group, layers: Layers) -> None:
        for excluded, decay in ((False, group["lamb_weight_decay"]), (True, 0.0)):
            if (chosen := layers.only(excluded)).params:
                _move(group, chosen, decay)

    @override
    def move_on_host(self, group: Group, layers: Layers) -> None:
        """Torch's fused Adam, for adapted tensors on a scratch that becomes the step.

        Adam with a rate of -1 adds its step to what the scratch holds, the decay.
        """
        lr, decay = float(group["lr"]), group["lamb_weight_decay"]
        excluded, small, large = layers.shared_out(decay)
        if excluded.params:
            _adam(group, excluded, excluded.params, lr)
        if small.params:
            _move(group, small, decay)
        size = max((param.numel() for param in large.params), default=0)
        scratch = torch.empty(size, dtype=layers.params[0].dtype)
        for at, param in enumerate(large.params):
            step = scratch.as_strided(param.shape, param.stride())
            torch.mul(param, decay, out=step)
            _adam(group, large.at([at]), [step], -1.0)
            weight, length = norm(param), norm(step)
            trust = weight / length if weight > 0 and length > 0 else 1.0
            param.add_(step, alpha=-lr * trust)

    @override
    def move_on_device(self, group: Group, layers: Layers, table: PointerTable) -> None:
        from fleetx.strategies.layerwise import lamb_kernels

        lists = [layers.state(name) for name in ("exp_avg", "exp_avg_sq", "step")]
        table.renew(
            [layers.params, layers.grads, *lists],
            layers.excluded if group["lamb_weight_decay"] > 0 else [True] * len(layers.params),
        )
        with torch.cuda.device_of(layers.params[0]):
            lamb_kernels.move(table, group, rate(group["lr"]), self.found_inf)


def _adam(group: Group, layers: Layers, targets: list[Tensor], lr: float) -> None:
    """Count a step and add it, times ``-lr``, to the targets."""
    beta1, beta2 = group["betas"]
    steps = layers.state("step")
    foreach_add_(steps, 1.0)
    fused_adam_(
        targets,
        _gradients(group, layers.grads, layers.params),
        layers.state("exp_avg"),
        layers.state("exp_avg_sq"),
        [],
        steps,
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        weight_decay=0.0,
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )


def _gradients(group: Group, grads: list[Tensor], params: list[Tensor]) -> list[Tensor]:
    return descended(grads, params, weight_decay=group["weight_decay"], maximize=group["maximize"])


def _move(group: Group, layers: Layers, decay: float) -> None:
    """The rule in torch's list operations, for parameters with one decay."""
    lr = rate(group["lr"])
    params = local(layers.params)
    wide = widened(params)
    steps = _directions(group, layers, _gradients(group, local(layers.grads), wide))
    if decay > 0:
        foreach_add_(steps, wide, alpha=decay)
        weights, lengths = norms(wide, layers.params), norms(steps, layers.params)
        trusts = torch.where((weights > 0) & (lengths > 0), weights / lengths, 1.0)
        foreach_mul_(steps, list((trusts * lr).unbind()))
    else:
        foreach_mul_(steps, lr)
    foreach_sub_(params, steps)


def _directions(group: Group, layers: Layers, grads: list[Tensor]) -> list[Tensor]:
    """Adam's steps for a rate of one; the moments and the counters move."""
    beta1, beta2 = group["betas"]
    means, squares = local(layers.state("exp_avg")), local(layers.state("exp_avg_sq"))
    foreach_lerp_(means, grads, 1 - beta1)
    foreach_mul_(squares, beta2)
    foreach_addcmul_(squares, grads, grads, 1 - beta2)
    counters = layers.state("step")
    foreach_add_(counters, 1.0)
    # In double precision: 1 - 0.999 has four digits less than its operands.
    times = torch.stack(counters).double()
    first, second = 1 - beta1**times, (1 - beta2**times).sqrt()
    below = foreach_sqrt(squares)
    foreach_div_(below, list(second.to(means[0].dtype).unbind()))
    foreach_add_(below, group["eps"])
    found = foreach_div(means, below)
    foreach_div_(found, list(first.to(means[0].dtype).unbind()))
    return list(found)
