"""``paddle.amp.GradScaler``: losses scaled up, so that half precision does not lose gradients."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from typing import Any

import torch
import torch.distributed as dist

from fleetx.comm.local import local
from fleetx.compat.paddle.device import current_device
from fleetx.compat.tensors import wrap


class GradScaler:
    """Scales losses, and gradients back; skips an update whose gradients overflowed."""

    def __init__(
        self,
        enable: bool = True,
        init_loss_scaling: float = 2.0**15,
        incr_ratio: float = 2.0,
        decr_ratio: float = 0.5,
        incr_every_n_steps: int = 1000,
        decr_every_n_nan_or_inf: int = 2,
        use_dynamic_loss_scaling: bool = True,
    ) -> None:
        # On the processor Paddle computes with 32 bits and scales nothing.
        self._enable = enable and current_device().type == "cuda"
        self._scale, self._incr_ratio, self._decr_ratio = init_loss_scaling, incr_ratio, decr_ratio
        self._incr_every, self._decr_every = incr_every_n_steps, decr_every_n_nan_or_inf
        self._dynamic = use_dynamic_loss_scaling
        self._good = self._bad = 0
        self._found_inf = False
        self._unscaled = False
        self._agree = False

    def among_all(self) -> "GradScaler":
        """Skip a step on all workers if gradients overflow on one, which has a part of them."""
        self._agree = True
        return self

    def scale(self, var: Any) -> Any:
        """The loss, scaled up."""
        return wrap(var * self._scale) if self._enable else var

    def minimize(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """One update with the gradients that ``backward`` left, and the next scale."""
        self.step(optimizer)
        self.update()

    def step(self, optimizer: Any) -> None:
        """One update, unless gradients overflowed."""
        if self._enable and not self._unscaled:
            self.unscale_(optimizer)
        if not self._found_inf:
            optimizer.step()

    def unscale_(self, optimizer: Any) -> None:
        """Gradients without the scale."""
        if not self._enable or self._unscaled:
            return
        found = [p.grad for p in _parameters(optimizer) if p.grad is not None]
        with torch.no_grad():
            for gradient in found:
                gradient.div_(self._scale)
        finite = [torch.isfinite(local(gradient)).all() for gradient in found]
        wrong = bool(finite) and not bool(torch.stack(finite).all())
        self._found_inf = _anywhere(wrong) if self._agree else wrong
        self._unscaled = True

    def update(self) -> None:
        """The scale for the next step."""
        self._unscaled = False
        if self._enable and self._dynamic:
            self._count()
        self._found_inf = False

    def _count(self) -> None:
        if self._found_inf:
            self._good, self._bad = 0, self._bad + 1
            if self._bad >= self._decr_every:
                self._scale, self._bad = max(self._scale * self._decr_ratio, 1.0), 0
        else:
            self._good, self._bad = self._good + 1, 0
            if self._good >= self._incr_every:
                self._scale, self._good = self._scale * self._incr_ratio, 0

    def is_enable(self) -> bool:
        """Whether it scales."""
        return self._enable

    def is_use_dynamic_loss_scaling(self) -> bool:
        """Whether the scale moves."""
        return self._dynamic

    def get_init_loss_scaling(self) -> float:
        """The scale now."""
        return self._scale

    def set_init_loss_scaling(self, new_init_loss_scaling: float) -> None:
        """Another scale."""
        self._scale = float(new_init_loss_scaling)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        if not self._enable:
            return {}
        return {"scale": self._scale, "incr_count": self._good, "decr_count": self._bad}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What a checkpoint kept."""
        if state_dict:
            self._scale = float(state_dict["scale"])
            self._good, self._bad = state_dict["incr_count"], state_dict["decr_count"]


AmpScaler = GradScaler


def distributed_scaler(scaler: GradScaler) -> GradScaler:
    """A scaler for workers that have parts of one model."""
    return scaler.among_all()


def _anywhere(wrong: bool) -> bool:
    if not dist.is_initialized():
        return wrong
    told = torch.tensor(float(wrong), device=current_device())
    dist.all_reduce(told, op=dist.ReduceOp.MAX)
    return bool(told)


def _parameters(optimizer: Any) -> list[Any]:
    """Parameters of an optimizer of Paddle's spelling, of fleetx or of torch."""
    for name in ("_parameter_list", "_inner_opt", "optimizer", "inner_opt"):
        inner = getattr(optimizer, name, None)
        if name == "_parameter_list" and inner is not None:
            flat: list[Any] = []
            for part in inner:
                flat += part["params"] if isinstance(part, dict) else [part]
            return flat
        if inner is not None and inner is not optimizer:
            return _parameters(inner)
    return [p for group in optimizer.param_groups for p in group["params"]]
