"""Gradients that wait for the end of a group of batches, whole ones of sharded parameters too."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from fleetx.comm.stand_in import StandIn, is_gone
from fleetx.torch_internals import fsdp_kept, fsdp_owner, fsdp_records, fsdp_whole, is_fsdp


def sharded(model: nn.Module) -> Iterator[Any]:
    """The modules whose parameters travel as a unit."""
    # Loaded here: FSDP takes a second that jobs without sharding do not pay.
    from torch.distributed.fsdp import FSDPModule

    yield from (module for module in model.modules() if isinstance(module, FSDPModule))


def records(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Name and FSDP's record of each parameter, which knows gradients before their exchange."""
    paths = {module: f"{path}." if path else "" for path, module in model.named_modules()}
    known = {id(record): record for unit in sharded(model) for record in fsdp_records(unit)}
    for record in known.values():
        owner, name = fsdp_owner(record)
        yield f"{paths[owner]}{name}", record


def waiting(record: Any) -> Tensor | None:
    """A whole gradient that was not exchanged yet."""
    whole: Tensor | None = record.unsharded_accumulated_grad
    shown = whole if whole is not None else getattr(fsdp_whole(record), "grad", None)
    return None if isinstance(shown, StandIn) else shown


def all_waiting(model: nn.Module) -> dict[str, Tensor]:
    """Every gradient that waits, by names of parameters, wherever it waits.

    One that is spread over the ranks that share the data is agreed upon; others are this rank's.
    """
    found = dict(_kept(model))
    held = {name: waiting(record) for name, record in _records(model)}
    return found | {name: value for name, value in held.items() if value is not None}


def _kept(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Gradients of what this rank keeps, whatever its modules show."""
    parts = {name: _of_part(record) for name, record in _records(model)}
    for name, parameter in model.named_parameters():
        gradient = parts.get(name, parameter.grad)
        if gradient is not None:
            yield name, gradient


def _of_part(record: Any) -> Tensor | None:
    whole = fsdp_whole(record)
    return None if whole is not None and is_gone(whole) else fsdp_kept(record).grad


def whole_waiting(model: nn.Module) -> list[Tensor]:
    """Gradients that wait whole for an exchange to come, which ``.grad`` does not show."""
    if not is_fsdp(model):
        return []
    held = (waiting(record) for unit in sharded(model) for record in fsdp_records(unit))
    return [value for value in held if value is not None]


def _records(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The same as ``records``, for any model, without loading FSDP."""
    if is_fsdp(model):  # whoever spreads anything of a model spreads the rest with its root
        yield from records(model)


def let_wait(model: nn.Module, gradients: Mapping[str, Tensor]) -> None:
    """Put gradients back where ``all_waiting`` found them; before, there was none."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    whole = dict(_records(model))
    for name, gradient in gradients.items():
        if name in whole and not is_agreed(gradient):
            whole[name].unsharded_accumulated_grad = gradient
        else:
            parameters[name].grad = gradient


def is_agreed(tensor: Tensor) -> bool:
    """Whether it is spread over ranks that share the data, so that each has a part of their sum."""
    mesh: Any = getattr(tensor, "device_mesh", None)
    return mesh is not None and not {"dp", "sharding"}.isdisjoint(mesh.mesh_dim_names or ())


def clear_kept(model: nn.Module, *, set_to_none: bool) -> None:
    """Clear the gradients of kept parts, which ``model.zero_grad`` may not see.

    Between a forward and its backward a module can hold the gathered parameters, which have none.
    """
    if not is_fsdp(model):
        return
    for record in (record for unit in sharded(model) for record in fsdp_records(unit)):
        kept = fsdp_kept(record)
        if kept.grad is not None and set_to_none:
            kept.grad = None
        elif kept.grad is not None:
            kept.grad.zero_()


def forget_gradients(model: nn.Module) -> None:
    """Drop every gradient, also those that ``zero_grad`` does not reach."""
    for parameter in model.parameters():
        parameter.grad = None
    for _, record in _records(model):
        record.unsharded_accumulated_grad = None
        if (gathered := fsdp_whole(record)) is not None:
            gathered.grad = None
