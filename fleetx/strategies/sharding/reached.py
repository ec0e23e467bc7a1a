"""Which parameters the batches of a rank reached, and whether it were the same on other ranks."""

from collections.abc import Iterable
from hashlib import blake2b

import torch
import torch.distributed as dist
from torch import Tensor


class Reached:
    """Notes whose gradients were exchanged since the last look."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = [p for p in parameters if p.is_floating_point() or p.is_complex()]
        self._seen: list[Tensor] = []
        for parameter in self._parameters:
            trained = parameter.requires_grad
            # One that is frozen may be thawed later, and only trained ones take hooks.
            parameter.requires_grad_(True)
            parameter.register_post_accumulate_grad_hook(self._seen.append)
            parameter.requires_grad_(trained)

    def __bool__(self) -> bool:
        return bool(self._seen)

    def missing(self) -> list[Tensor]:
        """The trained parameters without a gradient since the last call."""
        seen = {id(parameter) for parameter in self._seen}
        self._seen.clear()
        return [p for p in self._parameters if p.requires_grad and id(p) not in seen]

    def same_on_all(
        self, missing: Iterable[Tensor], group: dist.ProcessGroup, device: torch.device
    ) -> bool:
        """Whether all ranks miss the same ones; a collective."""
        left_out = {id(parameter) for parameter in missing}
        bits = bytes(id(parameter) in left_out for parameter in self._parameters)
        digest = int.from_bytes(blake2b(bits, digest_size=7).digest())
        bounds = torch.tensor([digest, -digest], device=device)
        dist.all_reduce(bounds, op=dist.ReduceOp.MAX, group=group)
        largest, smallest = bounds.tolist()
        return bool(largest == -smallest)
