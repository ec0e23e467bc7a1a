"""Random numbers that workers draw alike, though their generators are not."""

from types import TracebackType

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from fleetx.graph.recording import recording

_RECORDED = (
    "a rule draws random numbers, and the workers that share its parameters agree on them through "
    "their hosts, which take no part in a step that is replayed; train with a rule that draws none"
)


class SameNumbers:
    """Inside, from the first draw on, all workers of a mesh draw what the first of them draws.

    Workers whose generators were like the first one's go on like it, as one process would; the
    others go on as if nothing had been drawn.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        self._own: list[Tensor] = []
        self._shared: list[Tensor] = []

    def agree(self) -> None:
        """Called on all workers, before they draw."""
        if self._own:
            return
        if recording(torch.device(self._mesh.device_type)):
            raise RuntimeError(_RECORDED)
        self._own = self._states()
        self._shared = [self._first(state) for state in self._own]
        self._set(self._shared)

    def __enter__(self) -> "SameNumbers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if any(not torch.equal(*pair) for pair in zip(self._own, self._shared, strict=True)):
            self._set(self._own)

    def _states(self) -> list[Tensor]:
        cards = [torch.cuda.get_rng_state()] if self._mesh.device_type == "cuda" else []
        return [torch.get_rng_state(), *cards]

    def _set(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        for state in states[1:]:
            torch.cuda.set_rng_state(state)

    def _first(self, state: Tensor) -> Tensor:
        """The first worker's, by way of those that share one coordinate after the other."""
        found = state.to(self._mesh.device_type, copy=True)
        for axis in range(self._mesh.ndim):
            dist.broadcast(found, group=self._mesh.get_group(axis), group_src=0)
        return found.cpu()
