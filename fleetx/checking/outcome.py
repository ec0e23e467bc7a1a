"""What a run of a few updates leaves behind, to be held against another run."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fleetx.engine.engine import Engine
from fleetx.engine.weights import whole_state
from fleetx.plan.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Weights before and after, as the mean over the workers."""

    start: Tensor
    end: Tensor
    apart: float
    """How far the workers are from each other at the end."""

    meets: bool
    """Whether the workers should be equal at the end: some plans let them drift for a while."""

    losses: tuple[float, ...]
    """Of the batches whose loss is known; a script may keep it to itself."""

    batches: int
    tolerances: dict[str, float | None]
    """Strategy -> its tolerance, for every strategy with a switch."""

    @property
    def moved(self) -> float:
        """How far training moved the weights."""
        return float(torch.linalg.vector_norm(self.end - self.start))

    def away_from(self, other: "Outcome") -> float:
        """The distance to where another run ended, in units of how far that one moved."""
        distance = float(torch.linalg.vector_norm(self.end - other.end))
        return distance / max(other.moved, 1e-30)

    def losses_away_from(self, other: "Outcome") -> float:
        """The largest difference between the losses of a batch, relative to the largest loss."""
        if not self.losses or len(self.losses) != len(other.losses):
            return math.inf
        largest = max(abs(loss) for loss in other.losses)
        pairs = zip(self.losses, other.losses, strict=True)
        return max(abs(ours - theirs) for ours, theirs in pairs) / max(largest, 1e-30)


def flat_weights(engine: Engine) -> Tensor:
    """All parameters in one vector, in double precision and on the host; a collective."""
    state = whole_state(engine, everywhere=True)
    return torch.cat([state[name].double().reshape(-1) for name in engine.parameter_names])


def tolerances(plan: Plan) -> dict[str, float | None]:
    """The promise of every strategy that a user switched on."""
    return {s.name: s.contract.tolerance for s in plan.strategies if not s.internal}
