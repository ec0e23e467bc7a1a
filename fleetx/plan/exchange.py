"""What a strategy makes the ranks send, for explanations."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One kind of traffic: which collective, on what, how often, how much per rank."""

    collective: str
    what: str
    when: str
    sent_bytes: int
    """Bytes that one rank sends each time."""
