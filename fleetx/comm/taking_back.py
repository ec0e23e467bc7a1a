"""Taking an update back on the device, when only the device knows that it must not count."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def taken_back(tensors: Sequence[Tensor], flag: Tensor | None) -> Iterator[None]:
    """What happens to the tensors inside does not count where the flag is not zero.

    Args:
        tensors: Whatever may be written inside.
        flag: A tensor of one number; None when everything counts.
    """
    before = [] if flag is None else [tensor.detach().clone() for tensor in tensors]
    yield
    if flag is None:
        return
    # A choice and no product: what is taken back may be infinite or not a number.
    undone = flag.reshape(()) != 0
    for tensor, old in zip(tensors, before, strict=True):
        tensor.detach().copy_(torch.where(undone.to(old.device), old, tensor))
