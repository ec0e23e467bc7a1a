"""Dense parameters as servers brought them, to notice what is written to them past the servers."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fleetx.ps.tables.real_numbers import as_real

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class BroughtValues:
    """Copies of parameters. Counts of writes would not do: torch counts none through ``.data``."""

    def __init__(self, names: Mapping[Tensor, str]) -> None:
        self._names = names
        self._kept: dict[Tensor, Tensor] = {}

    def note(self, parameters: Iterable[Tensor]) -> None:
        """These are what the servers have."""
        for parameter in parameters:
            now, kept = parameter.detach(), self._kept.get(parameter)
            if kept is None or not _alike(kept, now):
                self._kept[parameter] = now.clone()
            else:
                kept.copy_(now)

    def forget(self) -> None:
        """Whatever was written shall be written over."""
        self._kept.clear()

    def written(self) -> Tensor | None:
        """A parameter that has other values than servers brought."""
        each = self._kept.items()
        return next((p for p, kept in each if not _same(p.detach(), kept)), None)

    def refuse_written(self) -> None:
        """Refuse other values than servers brought: they would be lost."""
        if (parameter := self.written()) is not None:
            raise RuntimeError(
                f"{self._names[parameter]!r} was written to since the servers brought it, and "
                "they do not hear of that: the update would go on from what they hold. Write "
                "before the first batch, and load weights with fleet.load_persistables()"
            )


def _alike(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


def _same(now: Tensor, kept: Tensor) -> bool:
    """Whether values are the same, also those that are no number; elsewhere, or in other types."""
    if now.shape != kept.shape:
        return False
    kept = kept.to(now.device, now.dtype)
    if torch.equal(now, kept):
        return True
    now, kept = as_real(now), as_real(kept)
    bits = _BITS[now.element_size()]
    return torch.equal(now.contiguous().view(bits), kept.contiguous().view(bits))
