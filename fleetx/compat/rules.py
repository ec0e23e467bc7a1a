"""Update rules of Paddle that torch writes with other formulas."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

Group = dict[str, Any]


class Rule(Optimizer):
    """A rule that moves one parameter at a time; buffers begin at ``first``."""

    buffers: ClassVar[tuple[str, ...]] = ()
    first: str | None = None
    """The option at which the buffers begin; 0 if None."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, options)

    @abstractmethod
    def move(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Group) -> None:
        """Move ``p`` by its gradient in place."""

    @override
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._one(p, group)
        return loss

    def _one(self, p: Tensor, group: Group) -> None:
        state = self.state[p]
        if not state:
            start = 0.0 if self.first is None else group[self.first]
            state["step"] = torch.tensor(0.0)
            state.update({name: torch.full_like(p, start) for name in self.buffers})
        state["step"] += 1
        assert p.grad is not None
        g = p.grad.add(p, alpha=group["weight_decay"]) if group["weight_decay"] else p.grad
        self.move(p, g, state, group)


class Adamax(Rule):
    """``p -= lr / (1 - beta1^t) * m / max(|g|, beta2 * u + eps)``."""

    buffers = ("moment", "inf_norm")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    @override
    def move(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Group) -> None:
        beta1, beta2 = group["betas"]
        moment = state["moment"].mul_(beta1).add_(g, alpha=1 - beta1)
        largest = state["inf_norm"].mul_(beta2).add_(group["eps"])
        torch.maximum(largest, g.abs(), out=largest)
        rate = group["lr"] / (1 - beta1 ** float(state["step"]))
        p.addcdiv_(moment, largest, value=-rate)


class RMSProp(Rule):
    """``v = momentum * v + lr * g / sqrt(mean(g^2) - mean(g)^2 + eps); p -= v``."""

    buffers = ("mean_square", "mean_grad", "momentum")

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        params: Any,
        lr: float = 1e-2,
        rho: float = 0.95,
        eps: float = 1e-6,
        momentum: float = 0.0,
        centered: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        options = {"rho": rho, "eps": eps, "momentum": momentum, "centered": centered}
        super().__init__(params, lr=lr, weight_decay=weight_decay, **options)

    @override
    def move(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Group) -> None:
        rho = group["rho"]
        spread = state["mean_square"].mul_(rho).addcmul_(g, g, value=1 - rho)
        if group["centered"]:
            mean = state["mean_grad"].mul_(rho).add_(g, alpha=1 - rho)
            spread = spread - mean * mean
        velocity = state["momentum"].mul_(group["momentum"])
        velocity.addcdiv_(g, (spread + group["eps"]).sqrt_(), value=group["lr"])
        p.sub_(velocity)


class Adadelta(Rule):
    """``p -= lr * g * sqrt((mean(d^2) + eps) / (mean(g^2) + eps))``."""

    buffers = ("_avg_squared_grad", "_avg_squared_update")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        rho: float = 0.95,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr=lr, rho=rho, eps=eps, weight_decay=weight_decay)

    @override
    def move(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Group) -> None:
        rho, eps = group["rho"], group["eps"]
        grads = state["_avg_squared_grad"].mul_(rho).addcmul_(g, g, value=1 - rho)
        updates = state["_avg_squared_update"]
        delta = g * torch.sqrt((updates + eps) / (grads + eps))
        updates.mul_(rho).addcmul_(delta, delta, value=1 - rho)
        p.sub_(delta, alpha=group["lr"])


class DecayedAdagrad(Rule):
    """Adagrad whose sum of squares forgets: ``m = decay * m + (1 - decay) * g^2``."""

    buffers = ("moment",)

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        decay: float = 0.95,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr=lr, decay=decay, eps=eps, weight_decay=weight_decay)

    @override
    def move(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Group) -> None:
        decay = group["decay"]
        squares = state["moment"].mul_(decay).addcmul_(g, g, value=1 - decay)
        p.addcdiv_(g, squares.sqrt().add_(group["eps"]), value=-group["lr"])


class Ftrl(Rule):
    """Follow the regularised leader: parameters are zero until their gradients outweigh l1."""

    buffers = ("squared", "linear")

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        params: Any,
        lr: float = 1e-3,
        l1: float = 0.0,
        l2: float = 0.0,
        lr_power: float = -0.5,
        weight_decay: float = 0.0,
    ) -> None:
        # The rule divides by powers of the sums, so that neither may begin at nothing.
        options = {"l1": l1 + 1e-10, "l2": l2 + 1e-10, "lr_power": lr_power}
        super().__init__(params, lr=lr, weight_decay=weight_decay, **options)
        self.l1, self.l2 = l1, l2

    @override
    def move(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Group) -> None:
        lr, power = group["lr"], -group["lr_power"]
        squared, linear = state["squared"], state["linear"]
        grown = squared + g * g
        linear.add_(g - (grown**power - squared**power) / lr * p)
        outweighed = linear.abs() > group["l1"]
        moved = (linear.sign() * group["l1"] - linear) / (grown**power / lr + 2 * group["l2"])
        p.copy_(torch.where(outweighed, moved, torch.zeros_like(p)))
        squared.copy_(grown)
