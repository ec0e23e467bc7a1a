"""Tensors that wait on the host until they are needed again, and come back ahead of time."""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fleetx.torch_internals import version_of


class HostCopies:
    """Keeps bundles of values in the order in which they were given and takes them back in reverse.

    A bundle stays on the device until the next one is kept, so the last, which is needed first,
    never travels. When a bundle is taken, the copy of the one before it starts. On CUDA the copies
    run on a stream of their own through pinned memory; on the CPU they are plain copies.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._last: weakref.ref[Bundle] | None = None
        self._bundles: weakref.WeakSet[Bundle] = weakref.WeakSet()
        self._sent: dict[tuple[Any, ...], tuple[weakref.ref[Tensor], Tensor]] = {}

    def keep(self, values: Sequence[Any]) -> "Bundle":
        """Hold the values; tensors among them go to the host as soon as another bundle is kept."""
        before = self._last() if self._last is not None else None
        if before is not None:
            before.send()
        bundle = Bundle(values, self, before)
        self._last = weakref.ref(bundle)
        self._bundles.add(bundle)
        return bundle

    def on_host(self) -> list[Tensor]:
        """The host copies that are alive, each once."""
        copies = {id(t): t for bundle in self._bundles for t in bundle.host if t is not None}
        return list(copies.values())

    def sent(self, tensor: Tensor, source: Tensor) -> Tensor:
        """The host copy of ``tensor``; what many bundles share, such as a mask, travels once."""
        key = _contents(source)
        if key in self._sent:
            first, copy = self._sent[key]
            if _contents(first()) == key:
                return copy
        copy = self._to_host(tensor)
        # The address may be given to another tensor once the source is gone.
        gone = weakref.ref(source, lambda _: self._sent.pop(key, None))
        self._sent[key] = gone, copy
        return copy

    def _to_host(self, tensor: Tensor) -> Tensor:
        copy = torch.empty_like(tensor, device="cpu", pin_memory=self.stream is not None)
        if self.stream is None:
            return copy.copy_(tensor)
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            copy.copy_(tensor, non_blocking=True)
        # The tensor's memory is not given to others before this stream has read it.
        tensor.record_stream(self.stream)
        return copy

    def to_device(self, copy: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
        """Start the way back; whoever uses the tensor waits for the event."""
        if self.stream is None:
            return torch.empty_like(copy).copy_(copy), None
        with torch.cuda.stream(self.stream):
            tensor = torch.empty_like(copy, device=self.device, pin_memory=False)
            tensor.copy_(copy, non_blocking=True)
            return tensor, self.stream.record_event()


class Bundle:
    """Values of which the movable tensors are on the device, on the host, or on their way back."""

    def __init__(self, values: Sequence[Any], owner: HostCopies, before: "Bundle | None") -> None:
        self._owner = owner
        self._before = weakref.ref(before) if before is not None else None
        self._needs_grad = [isinstance(v, Tensor) and v.requires_grad for v in values]
        # Weak: the tensor itself would keep the graph behind it alive, and its memory.
        self._source = [weakref.ref(v) if isinstance(v, Tensor) else None for v in values]
        self._moves = [isinstance(v, Tensor) and movable(v) for v in values]
        self._here = [v.detach() if isinstance(v, Tensor) else v for v in values]
        self._versions = [version_of(v) if isinstance(v, Tensor) else 0 for v in values]
        self._coming: dict[int, tuple[Tensor, torch.cuda.Event | None]] = {}
        self.host: list[Tensor | None] = [None] * len(values)

    def send(self) -> None:
        """Copy the movable tensors to the host and let go of them; nothing the second time."""
        for at, moves in enumerate(self._moves):
            if moves and self.host[at] is None:
                tensor = self._unchanged(at)
                source = self._source[at]
                alive = source() if source is not None else None
                self.host[at] = self._owner.sent(tensor, tensor if alive is None else alive)
                self._here[at] = None

    def bring(self) -> None:
        """Start to copy back what is on the host."""
        for at, copy in enumerate(self.host):
            if copy is not None and at not in self._coming:
                self._coming[at] = self._owner.to_device(copy)

    def take(self) -> list[Any]:
        """The values as they were kept, detached; the bundle before this one starts its way back.

        May be called again: the host copies stay until the bundle is dropped.
        """
        self.bring()
        values = [self._arrived(at) for at in range(len(self._here))]
        before = self._before() if self._before is not None else None
        if before is not None:
            before.bring()
        return values

    def _arrived(self, at: int) -> Any:
        if at not in self._coming:
            return self._fresh(self._unchanged(at), at)
        tensor, event = self._coming.pop(at)
        if event is not None:
            stream = torch.cuda.current_stream(tensor.device)
            stream.wait_event(event)
            tensor.record_stream(stream)
        return self._fresh(tensor, at)

    def _fresh(self, value: Any, at: int) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.detach().requires_grad_(self._needs_grad[at])

    def _unchanged(self, at: int) -> Any:
        value = self._here[at]
        if isinstance(value, Tensor) and version_of(value) != self._versions[at]:
            raise RuntimeError(
                f"a tensor of shape {list(value.shape)} was changed in place after it was kept for "
                "the backward pass, so its old values are lost; use the operation that is not in "
                "place, or leave the submodule that receives this tensor out of the checkpoints."
            )
        return value


def _contents(tensor: Tensor | None) -> tuple[Any, ...]:
    """Equal for tensors that show the same values, as long as one of them is alive."""
    if tensor is None:
        return ()
    return tensor.data_ptr(), version_of(tensor), tensor.shape, tensor.stride(), tensor.dtype


def movable(tensor: Tensor) -> bool:
    """Whether a host copy of it saves memory: an activation with memory of its own.

    Parameters stay. So do integers such as token ids, and slices: what they are cut from would
    stay anyway.
    """
    if isinstance(tensor, nn.Parameter) or type(tensor) is not Tensor:
        return False
    if tensor.layout is not torch.strided or not tensor.is_floating_point():
        return False
    # A like tensor has the same strides only where the original is dense.
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()
