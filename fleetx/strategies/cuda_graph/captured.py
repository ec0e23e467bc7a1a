"""Updates inside a recorded step: which optimizers can, and how one is taken back on the device."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fleetx.comm.taking_back import taken_back
from fleetx.plan.error import PlanError

_ASK_ONE_BY_ONE = (torch.optim.Adadelta, torch.optim.RMSprop)
"""Rules that ask the device for their rate where they move tensors one by one, as torch lets them
by itself do with tensors that are spread."""


def captured_form(cls: type[Optimizer], *, spread: bool) -> Mapping[str, Any]:
    """The options under which an update can be captured.

    Args:
        cls: The optimizer's class.
        spread: Whether its parameters are spread over workers.

    Raises:
        PlanError: There are none.
    """
    options = _waiting_for_nothing(cls, spread=spread)
    if options is None:
        raise PlanError(
            f"strategy.cuda_graph captures the update, and {cls.__name__} has neither a fused nor "
            "a capturable form, so it may ask the GPU for numbers in between; use SGD, Adam or "
            "AdamW of torch.optim, strategy.lars or strategy.lamb."
        )
    if spread and options and "capturable" not in options:
        raise PlanError(
            f"strategy.cuda_graph captures the update, and the fused form of {cls.__name__} does "
            "not know tensors that are spread over workers; use Adam or AdamW of torch.optim, "
            "strategy.lars or strategy.lamb."
        )
    return options


@torch.no_grad()
def update_unless(flag: Tensor, optimizer: Optimizer, update: Callable[[], bool]) -> None:
    """Update; where the flag is set, everything is afterwards as it was. The host learns nothing.

    Args:
        flag: A tensor of one number on the device, zero when the update shall count.
        optimizer: The one that the update moves.
        update: Calls the optimizer.
    """
    if not _looks_itself(optimizer):
        with taken_back(list(_moved(optimizer)), flag):
            update()
        return
    # The names by which torch's own loss scaler tells its optimizers.
    vars(optimizer).update(found_inf=flag.reshape(()), grad_scale=None)
    try:
        update()
    finally:
        del vars(optimizer)["found_inf"], vars(optimizer)["grad_scale"]


def _waiting_for_nothing(cls: type[Optimizer], *, spread: bool) -> Mapping[str, Any] | None:
    """The options under which an optimizer never asks the device; None if there are none."""
    if _obeys_flag(cls):
        return {}
    wanted = {"fused": True, "capturable": True, "foreach": None}
    known = wanted.keys() & inspect.signature(cls).parameters.keys()
    if not known & {"fused", "capturable"}:
        return None
    # A fused Adam, too, refuses to be recorded unless it is told that it may be.
    chosen = {name: value for name, value in wanted.items() if name in known}
    if "fused" in known:
        return chosen
    asks = spread and issubclass(cls, _ASK_ONE_BY_ONE)
    return {"capturable": True, "foreach": True} if asks else {"capturable": True}


def _looks_itself(optimizer: Optimizer) -> bool:
    """Whether its kernels look at the flag."""
    if _obeys_flag(type(optimizer)):
        return True
    return all(group.get("fused") for group in optimizer.param_groups)


def _obeys_flag(cls: type[Optimizer]) -> bool:
    """Whether all its paths obey ``found_inf``, as an optimizer says of itself.

    Not by the mark of torch's own (``_step_supports_amp_scaling``), which promises in addition to
    undo the scale of a ``GradScaler``.
    """
    return bool(getattr(cls, "obeys_found_inf", False))


def _moved(optimizer: Optimizer) -> Iterator[Tensor]:
    """Parameters and state."""
    yield from chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))
