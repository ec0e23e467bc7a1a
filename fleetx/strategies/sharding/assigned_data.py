"""What a script assigns to ``p.data`` while weights are gathered, which FSDP fills in their place.

They would become others that it does not know; parts take what is assigned to them.
"""

from collections.abc import Iterator
from typing import Any

from torch import nn

from fleetx.comm.held_gradients import records
from fleetx.plan.error import PlanError
from fleetx.torch_internals import fsdp_whole, storage_number

_ASSIGNED = (
    "the script has assigned to p.data of the parameter {!r} after a forward and before its "
    "backward, while strategy.sharding = True had gathered it from all workers, which keep their "
    "parts of the old numbers. Assign after the backward or the update, or load whole weights with "
    "fleet.load_full_state_dict(model, state)."
)


class AssignedData:
    """Looks before each forward whether parameters are still what was laid out."""

    def __init__(self, model: nn.Module) -> None:
        self._records = [*records(model)]
        self._wholes: dict[str, int] = {}
        # Before FSDP's own.
        model.register_forward_pre_hook(self._look, prepend=True)
        model.register_forward_hook(self._note)

    def _look(self, module: nn.Module, args: Any) -> None:
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
