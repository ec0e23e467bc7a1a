"""The state of an optimizer waits on the host and comes to the device for the update."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fleetx.comm.local import local


class OffloadedState:
    """Frees the device memory of state tensors between updates.

    The tensors keep their identity: their memory is given back and taken again, so whatever holds
    them, a checkpoint included, sees the values as soon as ``fetch`` was called. ``state_dict()``
    calls it; what it returned is empty again after the next ``send``, so it must be saved or copied
    before training goes on.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._waiting: dict[Tensor, Tensor] = {}
        """Device tensor -> its values on the host, for those that are not on the device now."""
        self._buffers: dict[Tensor, Tensor] = {}
        """Memory on the host, kept for the next time."""
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)
        optimizer.register_state_dict_pre_hook(self._before)
        self._given: set[int] = set()
        """Where the tensors of a state lie that is being loaded."""
        optimizer.register_load_state_dict_pre_hook(self._loading)
        optimizer.register_load_state_dict_post_hook(self._replaced)

    @property
    def waiting_bytes(self) -> int:
        """What lies on the host now."""
        return sum(host.numel() * host.element_size() for host in self._waiting.values())

    @torch.no_grad()
    def fetch(self) -> None:
        """Bring everything to the device."""
        # The copies may still be under way when this returns. The next ``send`` writes into the
        # same host memory, but on the same stream, so it comes after them.
        for tensor, host in self._waiting.items():
            tensor.untyped_storage().resize_(host.numel() * host.element_size())
            tensor.copy_(host, non_blocking=True)
        self._waiting.clear()

    @torch.no_grad()
    def send(self) -> None:
        """Bring everything to the host."""
        for tensor in self._large():
            if tensor not in self._buffers:
                pinned = tensor.device.type == "cuda"
                self._buffers[tensor] = torch.empty_like(tensor, device="cpu", pin_memory=pinned)
            self._waiting[tensor] = self._buffers[tensor].copy_(tensor, non_blocking=True)
        if any(tensor.is_cuda for tensor in self._waiting):
            torch.cuda.current_stream().synchronize()  # memory is given back only when it was read
        for tensor in self._waiting:
            tensor.untyped_storage().resize_(0)

    def _before(self, *unused: Any) -> None:
        self.fetch()

    def _after(self, *unused: Any) -> None:
        self.send()

    @torch.no_grad()
    def _loading(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        self.fetch()  # it may be a state that this optimizer gave away itself
        self._given = {_memory(local(value)) for _, _, value in _tensors(state["state"])}

    @torch.no_grad()
    def _replaced(self, *unused: Any) -> None:
        self._waiting.clear()
        self._buffers.clear()
        # torch takes the tensors themselves, and the memory of a checkpoint is its owner's.
        for owner, name, value in _tensors(self._optimizer.state):
            if _memory(local(value)) in self._given:
                owner[name] = value.clone()
        self._given = set()

    def _large(self) -> list[Tensor]:
        """State tensors with memory of their own; single numbers stay where they are."""
        parts = [local(value) for _, _, value in _tensors(self._optimizer.state)]
        used = self._used()
        return [p for p in parts if p.numel() > 1 and _alone(p) and _memory(p) not in used]

    def _used(self) -> set[int]:
        """Memory of parameters and gradients, which some rules keep as state, too."""
        held = [p for group in self._optimizer.param_groups for p in group["params"]]
        return {_memory(local(t)) for p in held for t in (p, p.grad) if t is not None}


def _tensors(state: Mapping[Any, dict[str, Any]]) -> list[tuple[dict[str, Any], str, Tensor]]:
    """Owner, name and tensor."""
    every = ((owner, *item) for owner in state.values() for item in owner.items())
    return [entry for entry in every if isinstance(entry[2], Tensor)]


def _alone(part: Tensor) -> bool:
    return part.untyped_storage().nbytes() == part.numel() * part.element_size()


def _memory(part: Tensor) -> int:
    return part.untyped_storage().data_ptr()
