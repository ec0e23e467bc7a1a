"""Modules whose own ``train()`` or ``eval()`` decides what evaluation mode is for them."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fleetx.record.error import ProgramError


def own_mode_line(module: nn.Module) -> str | None:
    """Where the first ``train()`` or ``eval()`` in a tree is that is not torch's."""
    for _, method in _own(module):
        code = method.__code__
        return f"{code.co_filename}:{code.co_firstlineno}"
    return None


def _own(module: nn.Module) -> Iterator[tuple[nn.Module, Any]]:
    for part in module.modules():
        for name in ("train", "eval"):
            method = getattr(type(part), name)
            ours = method.__module__.split(".")[0] != "torch"
            if ours and hasattr(method, "__code__"):
                yield part, method


def evaluate(module: nn.Module) -> None:
    """Let a tree enter evaluation mode by its own methods; values must stay what they are."""
    owners = {part for part, _ in _own(module)}
    held = {id(tensor): tensor for part in owners for tensor in _tensors(part)}
    before = {key: tensor.detach().clone() for key, tensor in held.items()}
    module.eval()
    changed = [key for key, tensor in held.items() if not torch.equal(tensor, before[key])]
    for key in changed:
        held[key].data.copy_(before[key])
    if changed:
        raise ProgramError(
            f"{own_mode_line(module)}: the train() or eval() of a module writes into parameters "
            "when the mode changes, and a clone for tests shares them with the program that "
            "trains; record a second program of model.eval() under static.unique_name.guard()."
        )


def _tensors(part: nn.Module) -> Iterator[Tensor]:
    yield from part.parameters()
    yield from part.buffers()
