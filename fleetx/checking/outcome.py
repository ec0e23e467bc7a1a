"""What a run of a few updates leaves behind, to be held against another run."""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fleetx.api.weights import whole_state
from fleetx.engine.engine import Engine
from fleetx.plan.strategy import Plan
from fleetx.torch_internals import tree_leaves

DRAWN = 20_000
"""Weights that a plot has."""


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

    sizes: dict[str, int] = field(default_factory=dict)
    """Parameter -> how many numbers of ``start`` and ``end`` are its, in their order."""

    torn: tuple[str, ...] = ()
    """Parameters that differ between workers at the end, the one that differs most first."""

    given: tuple[str, ...] = ()
    """Parameters that differed between workers before they were made equal."""

    begun: tuple[str, ...] = ()
    """Parameters that differed between workers when the first batch came."""

    fed: tuple[str, ...] = ()
    """A digest of what all workers fed the model, for each batch."""

    @property
    def moved(self) -> float:
        """How far training moved the weights."""
        return float(torch.linalg.vector_norm(self.end - self.start))

    def away_from(self, other: "Outcome") -> float:
        """The distance to where another run ended, in units of how far that one moved."""
        distance = float(torch.linalg.vector_norm(self.end - other.end))
        return distance / max(other.moved, 1e-30)

    def distances(self, other: "Outcome") -> tuple[float, ...]:
        """How far single weights are from another run's; a sample where there are many."""
        apart = (self.end - other.end).abs()
        chosen = apart[:: max(1, apart.numel() // DRAWN)]
        return tuple(chosen.tolist())

    def losses_away_from(self, other: "Outcome") -> float:
        """The largest difference between the losses of a batch, relative to the largest loss."""
        if not self.losses or len(self.losses) != len(other.losses):
            return math.inf
        largest = max(abs(loss) for loss in other.losses)
        pairs = zip(self.losses, other.losses, strict=True)
        return max(abs(ours - theirs) for ours, theirs in pairs) / max(largest, 1e-30)

    def parameters_unlike(self, other: "Outcome", *, at_start: bool = False) -> tuple[str, ...]:
        """The parameters that differ from another run's, the one that differs most first."""
        ours, theirs = (self.start, other.start) if at_start else (self.end, other.end)
        return differing((ours - theirs).abs(), self.sizes)

    def batch_unlike(self, other: "Outcome") -> int | None:
        """The first batch, from 1, in which another run was fed other numbers."""
        pairs = enumerate(zip(self.fed, other.fed, strict=False), 1)
        return next((at for at, (ours, theirs) in pairs if ours != theirs), None)


def differing(distance: Tensor, sizes: dict[str, int]) -> tuple[str, ...]:
    """The parameters whose part of a vector of distances is not zero, the largest first."""
    if not sizes:
        return ()
    # Not a number is farther than any number.
    parts = distance.nan_to_num(nan=math.inf).split(list(sizes.values()))
    pairs = zip(sizes, parts, strict=True)
    most = {name: float(part.max()) if part.numel() else 0.0 for name, part in pairs}
    return tuple(sorted((n for n in most if most[n] > 0), key=lambda n: -most[n]))


def listed(names: tuple[str, ...]) -> str:
    """A few names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def weights(engine: Engine) -> dict[str, Tensor]:
    """All parameters by name, as vectors in double precision on the host; a collective."""
    state = whole_state(engine, everywhere=True)
    return {name: state[name].double().reshape(-1) for name in engine.parameter_names}


def flat_weights(engine: Engine) -> Tensor:
    """All parameters in one vector; a collective."""
    return torch.cat([*weights(engine).values()])


def digest(values: Any) -> str:
    """A few letters for all tensors in arguments, the same for the same numbers alone."""
    found = hashlib.blake2b(digest_size=8)
    for leaf in _tensors(values):
        found.update(f"{leaf.dtype}{list(leaf.shape)}".encode())
        numbers = leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        found.update(numbers.numpy().tobytes())
    return found.hexdigest()


def _tensors(values: Any) -> Iterable[Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and leaf.numel())


def tolerances(plan: Plan) -> dict[str, float | None]:
    """The promise of every strategy that a user switched on."""
    return {s.name: s.contract.tolerance for s in plan.strategies if not s.internal}
