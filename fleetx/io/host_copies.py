"""Copies on the host of what training goes on to change."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fleetx.io.chunks import Chunk


class HostCopies:
    """Keeps its memory for the next copy: fresh pages cost more than the copy itself."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    @torch.no_grad()
    def take(self, chunks: Mapping[str, Chunk]) -> dict[str, Chunk]:
        """Copy them all; the copies are valid until the next call."""
        self._kept = {name: self._room(name, chunk.here) for name, chunk in chunks.items()}
        for name, chunk in chunks.items():
            self._kept[name].copy_(chunk.here, non_blocking=True)
        for device in {chunk.here.device for chunk in chunks.values()}:
            if device.type != "cpu":
                torch.get_device_module(device).synchronize(device)
        return {name: replace(chunk, here=self._kept[name]) for name, chunk in chunks.items()}

    def _room(self, name: str, like: Tensor) -> Tensor:
        old = self._kept.get(name)
        if old is not None and old.shape == like.shape and old.dtype == like.dtype:
            return old
        pinned = like.device.type == "cuda"
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=pinned)

    def forget(self) -> None:
        """Give the memory back."""
        self._kept = {}
