"""A table on the GPU of where many tensors lie, so that one kernel reaches all of them."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

CHUNK = 4096
"""Numbers that one program of a kernel handles; all of them are of one tensor."""


class PointerTable:
    """Rows of one whole number per tensor, renewed when a tensor moves.

    Rows: the addresses in each of the lists, then the tensor's size, its first chunk, the number of
    its chunks, and 1 if it is excluded.
    """

    rows: Tensor
    owners: Tensor
    """Chunk -> its tensor."""
    sums: Tensor
    """Room for two partial sums per chunk."""
    rates: Tensor
    """Room for the rate of each tensor."""

    def __init__(self) -> None:
        self._seen: tuple[object, ...] = ()
        self._sizes: list[int] = []
        self._spare: Tensor | None = None
        self._captured: list[Tensor] = []

    def renew(self, lists: Sequence[list[Tensor]], excluded: list[bool]) -> None:
        """Write the table again if it does not describe these tensors any more."""
        addresses = [[tensor.data_ptr() for tensor in tensors] for tensors in lists]
        seen = (*addresses, excluded)
        if seen == self._seen:
            return
        sizes = [tensor.numel() for tensor in lists[0]]
        counts = [-(-size // CHUNK) for size in sizes]
        firsts = [0, *accumulate(counts[:-1])]
        rows = torch.tensor([*addresses, sizes, firsts, counts, [int(flag) for flag in excluded]])
        device = lists[0][0].device
        if sizes != self._sizes:
            self._make_room(counts, device)
        self.rows = self._sent(rows, device)
        self._seen, self._sizes = seen, sizes

    def _make_room(self, counts: list[int], device: torch.device) -> None:
        repeats = torch.tensor(counts)
        owners = torch.arange(len(counts), dtype=torch.int32).repeat_interleave(repeats)
        self.owners = owners.to(device)
        self.sums = torch.empty(2 * len(owners), dtype=torch.float32, device=device)
        self.rates = torch.empty(len(counts), dtype=torch.float32, device=device)
        self._spare = None

    def _sent(self, rows: Tensor, device: torch.device) -> Tensor:
        """The rows on the device, without waiting for it."""
        if device.type != "cuda":
            return rows.to(device)
        if not torch.cuda.is_current_stream_capturing():
            if self._spare is None:
                self._spare = torch.empty_like(rows, pin_memory=True)
            return rows.pin_memory().to(device, non_blocking=True)
        # A graph copies from the same memory at each replay: nobody may write there again. Such
        # memory cannot be had during the capture, so a step before it has put some aside.
        if self._spare is None:
            raise RuntimeError(
                "the first step of an optimizer cannot be captured in a CUDA graph; "
                "take one step before the capture."
            )
        kept, self._spare = self._spare, None
        self._captured.append(kept.copy_(rows))
        return kept.to(device, non_blocking=True)
