"""What a script assigns to ``p.data``, which spread parameters do not take.

Torch then exchanges what stands around the numbers of a part, and leaves those as they were; and
gathered weights, which FSDP fills in their place, become others that it does not know.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from fleetx.comm.held_gradients import records
from fleetx.plan.error import PlanError
from fleetx.torch_internals import FsdpRecord, fsdp_kept, fsdp_whole, part_held, storage_number

_ASSIGNED = (
    "the script has assigned to p.data of the parameter {!r}, which strategy.sharding = True has "
    "spread over workers: torch leaves the numbers of this worker's part as they were, without a "
    "word. Write into it instead: p.data.copy_(values), or p.data.mul_(0.9).add_(other.data, "
    "alpha=0.1) for averages, with values that are spread alike; or load whole weights with "
    "fleet.load_full_state_dict(model, state)."
)


class AssignedData:
    """Looks before each forward whether parameters are still what was laid out."""

    def __init__(self, model: nn.Module) -> None:
        self._records = [*records(model)]
        self._parts: dict[str, tuple[Any, int]] = {}
        self._wholes: dict[str, int] = {}
        self._check_parts()
        # Before FSDP's own.
        model.register_forward_pre_hook(self._look, prepend=True)
        model.register_forward_hook(self._note)

    def _look(self, module: nn.Module, args: Any) -> None:
        self._check_parts()
        for name, number in self._gathered():
            if self._wholes.get(name, number) != number:
                raise PlanError(_ASSIGNED.format(name))

    def _note(self, module: nn.Module, args: Any, outputs: Any) -> None:
        if len(self._wholes) < len(self._records):
            self._wholes = dict(self._gathered())

    def _gathered(self) -> Iterator[tuple[str, int]]:
        for name, record in self._records:
            whole = fsdp_whole(record)
            if whole is not None:
                yield name, storage_number(whole)

    def _check_parts(self) -> None:
        for name, record in self._records:
            now = _part(record)
            held, number = self._parts.get(name, now)
            # What torch itself converts has other numbers, too.
            if held is now[0] and number != now[1]:
                raise PlanError(_ASSIGNED.format(name))
            self._parts[name] = now


def _part(record: FsdpRecord) -> tuple[Tensor, int]:
    kept = fsdp_kept(record)
    return part_held(kept), storage_number(kept)
