"""Gradients that wait for the end of a group of batches, whole ones of sharded parameters too."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn


def sharded(model: nn.Module) -> Iterator[Any]:
    """The modules whose parameters travel as a unit."""
    # Loaded here: FSDP takes a second that jobs without sharding do not pay.
    from torch.distributed.fsdp import FSDPModule

    yield from (module for module in model.modules() if isinstance(module, FSDPModule))


def records(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Name and torch's own record of each parameter, which knows gradients before their exchange.

    There is no public way to them.
    """
    paths = {module: f"{path}." if path else "" for path, module in model.named_modules()}
    groups = {module._get_fsdp_state()._fsdp_param_group: None for module in sharded(model)}
    for group in groups:
        for record in group.fsdp_params if group is not None else ():
            yield f"{paths[record._module_info.module]}{record._module_info.param_name}", record


def waiting(record: Any) -> Tensor | None:
    """A whole gradient that was not exchanged yet."""
    whole: Tensor | None = record.unsharded_accumulated_grad
    return (
        whole
        if whole is not None
        else getattr(getattr(record, "_unsharded_param", None), "grad", None)
    )


def forget_gradients(model: nn.Module) -> None:
    """Drop every gradient, also those that ``zero_grad`` does not reach."""
    for parameter in model.parameters():
        parameter.grad = None
    if not any(hasattr(module, "_get_fsdp_state") for module in model.modules()):
        return
    for _, record in records(model):
        record.unsharded_accumulated_grad = None
        if hasattr(record, "_unsharded_param"):
            record._unsharded_param.grad = None
