"""A table on the GPU of where many tensors lie, so that one kernel reaches all of them."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

CHUNK = 2048
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
        self._kept: list[Tensor] = []

    def renew(self, lists: Sequence[list[Tensor]], excluded: list[bool]) -> None:
        """Write the table again if it does not describe these tensors any more."""
        addresses = [[tensor.data_ptr() for tensor in tensors] for tensors in lists]
        # Addresses tell enough: whatever lies at the place of a tensor now is as long as that one,
        # because gradients and state have the size of their parameter. A parameter that is resized
        # in place would break it. Kernels that read an address are ordered by their stream, so that
        # a gradient which is freed meanwhile is not overwritten before they have read it.
        seen = (*addresses, excluded)
        if seen == self._seen:
            return
        sizes = [tensor.numel() for tensor in lists[0]]
        counts = [-(-size // CHUNK) for size in sizes]
        firsts = [0, *accumulate(counts[:-1])]
        rows = torch.tensor([*addresses, sizes, firsts, counts, [int(flag) for flag in excluded]])
        device = lists[0][0].device
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self.rows = self._captured_copy(rows, device, sizes)
        else:
            if sizes != self._sizes:
                self._make_room(counts, device)
            self.rows = _sent(rows, device)
            if self._spare is None and device.type == "cuda":
                self._spare = torch.empty_like(rows, pin_memory=True)
        self._seen, self._sizes = seen, sizes

    def _make_room(self, counts: list[int], device: torch.device) -> None:
        owners = torch.arange(len(counts), dtype=torch.int32)
        self.owners = _sent(owners.repeat_interleave(torch.tensor(counts)), device)
        self.sums = torch.empty(2 * sum(counts), dtype=torch.float32, device=device)
        self.rates = torch.empty(len(counts), dtype=torch.float32, device=device)
        self._spare = None

    def _captured_copy(self, rows: Tensor, device: torch.device, sizes: list[int]) -> Tensor:
        """The rows on the device, also when a graph that is being captured is replayed.

        The graph copies from the same memory each time, so nobody may write there again. Such
        memory cannot be had during the capture: an earlier step has put some aside.
        """
        if self._spare is None or sizes != self._sizes:
            raise RuntimeError(
                "this optimizer has not taken a step with these gradients yet, and its first one "
                "cannot be captured in a CUDA graph; take one step before the capture."
            )
        kept, self._spare = self._spare, None
        self._kept.append(kept.copy_(rows))
        return kept.to(device, non_blocking=True)


def _sent(values: Tensor, device: torch.device) -> Tensor:
    """The values on the device, without waiting for it."""
    if device.type != "cuda":
        return values.to(device)
    # Torch gives pinned memory to nobody else before the copies out of it are done.
    return values.pin_memory().to(device, non_blocking=True)
