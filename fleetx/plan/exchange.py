"""What a plan costs: traffic between ranks and memory on each, for explanations."""

from dataclasses import dataclass, replace


def ring_bytes(count: int, ranks: int) -> int:
    """What one rank sends in an all-reduce of ``count`` bytes."""
    return 2 * (ranks - 1) * count // ranks


def half_ring_bytes(count: int, ranks: int) -> int:
    """What one rank sends in an all-gather to, or a reduce-scatter of, ``count`` bytes."""
    return (ranks - 1) * count // ranks


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One kind of traffic: which collective, on what, how often, how much per rank."""

    collective: str
    what: str
    when: str
    sent_bytes: int
    """Bytes that one rank sends each time; 0 where they depend on the batch."""

    decided_by: str = ""
    """The options that made it so."""

    wide_bytes: int = 0
    """How many of them are gradients in 32 bits, which a narrower wire halves."""

    moved_bytes: int = 0
    """Bytes of the whole tensors that it is about each time, as the collectives see them."""

    pieces: int = 0
    """Collectives of which it consists each time; 0: as many as it has buckets of a usual size."""

    times: float | None = 1
    """How often for each update; None where only the run decides."""

    axis: str = ""
    """The axes of the mesh between whose ranks it happens."""

    beside: bool = False
    """Whether computing goes on meanwhile."""

    def in_halves(self, option: str) -> "Exchange":
        """The same with gradients in 16 bits, as the option asks; nothing when they are already."""
        if not self.wide_bytes:
            return self
        narrow = self.wide_bytes / (2 * self.sent_bytes)
        return replace(
            self,
            sent_bytes=self.sent_bytes - self.wide_bytes // 2,
            moved_bytes=self.moved_bytes - int(self.moved_bytes * narrow),
            decided_by="; ".join(filter(None, (self.decided_by, option))),
            wide_bytes=0,
        )

    @property
    def sent_per_update(self) -> float | None:
        """Bytes that one rank sends for each update; None where only the run decides."""
        return None if self.times is None else self.sent_bytes * self.times


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Something that a rank keeps besides parameters, gradients, state and activations."""

    what: str
    kept_bytes: int
    decided_by: str = ""
    passing: bool = False
    """Whether it is there for a moment of each step alone."""
