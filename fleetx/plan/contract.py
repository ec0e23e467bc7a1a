"""What a strategy promises before it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum


class Phase(IntEnum):
    """A strategy's place in the fold; a lower phase sits closer to the user's model."""

    DRIVE = 10  # who runs forward and backward: eager, pipeline
    PRODUCT = 15  # how one layer multiplies, inside of what lays it out: fp8
    LAYOUT = 20  # how one layer is laid out over ranks: tensor_parallel
    MEMORY = 30  # what is kept for backward: recompute
    GUARD = 40  # checks between gradients and update: clip
    CODE = 45  # into which code the forward is translated: compile
    PRECISION = 50  # in which number format the model computes: amp
    WIRE = 55  # in which number format gradients travel: fp16_allreduce
    CODEC = 60  # what travels in a gradient bucket: dgc
    CARRIER = 70  # how replicas agree: data_parallel, sharding, localsgd, ps
    CADENCE = 80  # which batches end in an update: gradient_merge
    RULE = 90  # which update rule: lars, lamb
    CAPTURE = 100  # what of the finished step runs as one piece: cuda_graph


AT_UPDATE = frozenset({"optimizer", "scale", "due", "reduce", "wire", "unless", "update", "settle"})
"""What of ``touches`` comes into force with a distributed optimizer; the rest, with the model."""


@dataclass(frozen=True, kw_only=True)
class Contract:
    """Declared once per strategy and checked against what the strategy does."""

    phase: Phase

    touches: frozenset[str] = frozenset()
    """Any of "model", "optimizer" and the verbs of ``Step``."""

    provides: frozenset[str] = frozenset()
    """Capabilities of which a job has exactly one provider."""

    requires: frozenset[str] = frozenset()
    """Capabilities that another strategy in the plan must provide."""

    conflicts: Mapping[str, str] = field(default_factory=dict)
    """Strategy name -> reason, for the clashes that ``provides`` cannot express."""

    reads: frozenset[str] = frozenset()
    """Options of the whole job, such as ``find_unused_parameters``, that the strategy obeys."""

    tolerance: float | None = None
    """How far the weights may move away from those of the same plan without this strategy,
    relative to how far they moved; None when the strategy changes the update by design."""

    axis: str | None = None
    """The mesh axis this strategy spreads over, if any."""

    partners: tuple[str, ...] = ()
    """The mesh axes between whose ranks it acts, if that is not its own axis; so do the options of
    the whole job that it reads. Without a second rank along one of them there is nothing to do."""

    @property
    def between(self) -> tuple[str, ...]:
        """The axes between whose ranks it acts; none if each rank acts by itself."""
        return self.partners or ((self.axis,) if self.axis else ())
