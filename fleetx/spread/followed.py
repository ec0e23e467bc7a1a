"""Whether somebody sees to a tensor already: autograd, the compiler, or a region of a model."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fleetx.torch_internals import compiler_works, tree_iter


class _Here(threading.local):
    """Of a thread."""

    regions = 0
    """That see to their tensors by themselves, and that it is in."""


_here = _Here()


@contextmanager
def seen_to() -> Iterator[None]:
    """Inside, somebody else sees to tensors that are spread over workers."""
    _here.regions += 1
    try:
        yield
    finally:
        _here.regions -= 1


def is_seen_to() -> bool:
    """Whether the compiler or a region sees to all tensors here."""
    return compiler_works() or _here.regions > 0


def is_followed(*values: Any) -> bool:
    """Whether autograd, the compiler or a region of tensor_parallel sees to these."""
    if is_seen_to():
        return True
    tensors = [leaf for leaf in tree_iter(values) if isinstance(leaf, Tensor)]
    return torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
