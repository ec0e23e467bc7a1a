"""What a plan costs: traffic between ranks and memory on each, for explanations."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One kind of traffic: which collective, on what, how often, how much per rank."""

    collective: str
    what: str
    when: str
    sent_bytes: int
    """Bytes that one rank sends each time."""

    decided_by: str = ""
    """The options that made it so."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Something that a rank keeps between steps."""

    what: str
    kept_bytes: int
    decided_by: str = ""
