"""The order of one epoch: drawn from any sampler, agreed over the workers, saved for a resume."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fleetx.data.team import Team


@dataclass(frozen=True, slots=True)
class Order:
    """What a sampler or a batch sampler yielded in one epoch."""

    indices: Tensor | list[Any]
    """One after the other; a list only where they are no integers."""

    lengths: Tensor | None = None
    """How many indices each batch has; None where the sampler yields single indices."""

    def __len__(self) -> int:
        return len(self.indices if self.lengths is None else self.lengths)

    def take(self, positions: Tensor) -> list[Any]:
        """The entries at `positions`: indices, or lists of them."""
        if isinstance(self.indices, list):
            return [self.indices[position] for position in positions.tolist()]
        if self.lengths is None:
            chosen: list[int] = self.indices[positions].tolist()
            return chosen
        ends = self.lengths.cumsum(0).tolist()
        starts = [0, *ends[:-1]]
        return [self.indices[starts[at] : ends[at]].tolist() for at in positions.tolist()]

    def state_dict(self) -> dict[str, Any]:
        """The order in four bytes per sample where the numbers allow."""
        return {"order": _narrow(self.indices), "lengths": _narrow(self.lengths)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Order | None":
        """The saved order, if one was saved."""
        if state["order"] is None:
            return None
        return cls(_wide(state["order"]), _wide(state["lengths"]))


def draw(sampler: Iterable[Any], *, whole_batches: bool) -> Order:
    """Iterate over `sampler` once."""
    entries = list(sampler)
    if not whole_batches:
        return Order(_as_tensor(entries))
    batches = [list(batch) for batch in entries]
    indices = _as_tensor([index for batch in batches for index in batch])
    if isinstance(indices, list):
        return Order(batches)
    return Order(indices, torch.tensor([len(batch) for batch in batches], dtype=torch.int64))


def agree(mine: Order, team: Team) -> Order:
    """The order that worker 0 has drawn.

    Every worker draws, although only one draw counts: so random generators and samplers with a
    memory stay alike on all workers.
    """
    if team.size == 1:
        return mine
    if isinstance(mine.indices, list):
        raise TypeError(
            "the sampler yields something else than integers, which the workers cannot exchange. "
            "Let it yield indices, or shard the data yourself and set sharded=True."
        )
    batches = -1 if mine.lengths is None else len(mine.lengths)
    sizes = team.hear_first(torch.tensor([len(mine.indices), batches])).tolist()
    indices = team.hear_first(_resized(mine.indices, sizes[0]))
    if mine.lengths is None:
        return Order(indices)
    return Order(indices, team.hear_first(_resized(mine.lengths, sizes[1])))


def _as_tensor(entries: list[Any]) -> Tensor | list[Any]:
    if all(type(entry) is int for entry in entries):
        return torch.tensor(entries, dtype=torch.int64)
    try:  # integers of numpy, tensors of one integer
        return torch.tensor([entry.__index__() for entry in entries], dtype=torch.int64)
    except (AttributeError, TypeError):
        return entries


def _resized(tensor: Tensor, length: int) -> Tensor:
    return tensor if len(tensor) == length else torch.empty(length, dtype=tensor.dtype)


def _narrow(values: Any) -> Any:
    if isinstance(values, Tensor) and (not len(values) or values.max() < 2**31):
        return values.to(torch.int32)
    return values


def _wide(values: Any) -> Any:
    return values.to(torch.int64) if isinstance(values, Tensor) else values
