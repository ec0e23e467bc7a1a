"""What gathered weights show as a gradient while the true one waits in the part of each rank."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fleetx.torch_internals import wrapper_subclass

_UNREADABLE = (
    "a gradient is read or changed ({}) between a forward and its backward, where "
    "strategy.sharding = True has gathered the weights, and gradients wait in parts that are not "
    "shown; limit and read gradients after loss.backward(), before the model is called again with "
    "gradients on, or call it under torch.no_grad() there."
)


_SHOWN = "_fleetx_shows_a_stand_in"


def show(whole: Tensor) -> None:
    """Let gathered weights show that the gradient of their part waits."""
    whole.grad = StandIn(whole, {"zero": False})
    setattr(whole, _SHOWN, True)


def take_off(whole: Tensor) -> None:
    """Leave the weights with what else they show."""
    if isinstance(whole.grad, StandIn):
        whole.grad = None
    setattr(whole, _SHOWN, False)


def is_zeroed(whole: Tensor) -> bool:
    """Whether somebody has written zeros into the gradient that weights show."""
    return isinstance(whole.grad, StandIn) and whole.grad.state["zero"]


def is_gone(whole: Tensor) -> bool:
    """Whether somebody has dropped it, or put another one into its place."""
    return getattr(whole, _SHOWN, False) and not isinstance(whole.grad, StandIn)


class StandIn(Tensor):
    """A gradient without numbers, which can be cleared and not be read."""

    state: dict[str, bool]

    @staticmethod
    def __new__(cls, like: Tensor, state: dict[str, bool]) -> "StandIn":
        """Of the size and format of another tensor."""
        options = {"dtype": like.dtype, "device": like.device, "strides": like.stride()}
        made: StandIn = wrapper_subclass(cls, like.shape, **options)
        made.state = state
        return made

    @override
    def __repr__(self) -> str:  # type: ignore[override]
        return "<a gradient that waits in parts>"

    @classmethod
    @override
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        own = args[0]
        if func is torch.ops.aten.detach.default:
            return StandIn(own, own.state)
        if func is torch.ops.aten.zero_.default:
            own.state["zero"] = True
            return own
        raise RuntimeError(_UNREADABLE.format(func))
