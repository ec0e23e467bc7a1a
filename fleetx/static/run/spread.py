"""The values of a program while strategies lay them out over workers."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fleetx.api.weights import load_whole_state, whole
from fleetx.engine.engine import Engine
from fleetx.plan.strategy import Plan
from fleetx.record.state import State
from fleetx.roles.worker_util import util


def spreads(plan: Plan) -> bool:
    """Whether a plan gives each worker a part of the parameters."""
    return any(ranks > 1 for axis, ranks in plan.mesh.items() if axis != "dp")


class Spread:
    """Brings whole values to a program that reads them, and parts of new ones to the workers.

    Between two readings the program's parameters are NaN where this worker trains a part of them,
    or none: whole ones would take the memory that the layout saves, and old ones would deceive.
    """

    def __init__(self, state: State, engine: Engine) -> None:
        self._state, self._engine = state, engine
        held = {id(p) for p in engine.job.model.parameters()}
        gone = (p for p in state.root.parameters() if id(p) not in held)
        self._away = [p for p in gone if p.is_floating_point() or p.is_complex()]
        self._current = True
        self.moved()

    def moved(self) -> None:
        """Note that a run has changed the parts, so that whole values are old."""
        if self._current:
            for parameter in self._away:
                kind, device = parameter.dtype, parameter.device
                nothing = torch.full((), torch.nan, dtype=kind, device=device)
                parameter.data = nothing.expand(parameter.shape)
        self._current = False

    @torch.no_grad()
    def gather(self, call: str) -> None:
        """Let the program have whole values; all workers come here, or learn who did not."""
        if self._current:
            return
        util.meet(call)
        device = self._engine.job.device
        for parameter in self._away:
            parameter.data = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
        known = self._state.root.state_dict()
        for name, value in self._parts():
            known[name].copy_(value)
        self._current = True

    def deal(self) -> None:
        """Let every worker train its part of what the program has now, which is the same on all."""
        assert self._current, "gather() comes first"
        load_whole_state(self._engine, self._state.root.state_dict())

    def on_host(self, own: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Copies of whole tensors, of which each worker gives its part; of the values if None."""
        found = self._parts() if own is None else whole(self._engine, own)
        return {name: value.detach().cpu().clone() for name, value in found}

    def _parts(self) -> Iterable[tuple[str, Tensor]]:
        return whole(self._engine, self._engine.job.model.state_dict())
