"""How a plan turns what a rank computes into time, beyond the work itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Parts of a step that strategies make longer or shorter; all 1 or 0 where none does."""

    idle: float = 0.0
    """What a rank waits for ranks before and after it, in times of what it computes."""
    starts: float = 1.0
    """What is left of the host's time for starting kernels and running Python."""
    dispatched_updates: int = 0
    """Parameters that are DTensors, whose update takes the host longer."""
    replays: float = 0.0
    """Tensors that are not kept for the backward of a micro-batch but computed once more."""
    segments: int = 0
    """Modules that are replayed in the backward of a micro-batch."""
    moved: float = 1.0
    """What is left of the bytes of `casts`, where those are a part of what was computed before."""
    casts: float = 0.0
    """Bytes that each micro-batch reads and writes, besides, to bring numbers to another format; a
    third of them in its forward."""
    cast_by_kernels: float = 0.0
    """The same by kernels with which nothing is fused."""
    copied: float = 0.0
    """Bytes that each update reads and writes, besides, such as by copies into what is sent."""
    whole_gradients: bool = False
    """Whether batches add to whole gradients until the update, although a rank keeps parts."""
    to_host: float = 0.0
    """Bytes that go to the host and come back, for each update."""
    chores: Mapping[str, float] = field(default_factory=dict)
    """What the host does besides for each update: the name of a chore -> how often. What each of
    them takes is measured on the machine."""

    def with_chores(self, **counts: float) -> "Pace":
        """With more for the host to do; underscores stand for spaces."""
        named = {name.replace("_", " "): count for name, count in counts.items()}
        return replace(self, chores={**self.chores, **named})
