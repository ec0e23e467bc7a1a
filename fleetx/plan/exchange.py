"""What a plan costs: traffic between ranks and memory on each, for explanations."""

from dataclasses import dataclass, replace


def ring_bytes(count: int, ranks: int) -> int:
    """What one rank sends in an all-reduce of ``count`` bytes."""
    return 2 * (ranks - 1) * count // ranks


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

    def in_halves(self, option: str) -> "Exchange":
        """The same with gradients in 16 bits, as the option asks; nothing when they are already."""
        if not self.wide_bytes:
            return self
        return replace(
            self,
            sent_bytes=self.sent_bytes - self.wide_bytes // 2,
            decided_by="; ".join(filter(None, (self.decided_by, option))),
            wide_bytes=0,
        )


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Something that a rank keeps between steps."""

    what: str
    kept_bytes: int
    decided_by: str = ""
