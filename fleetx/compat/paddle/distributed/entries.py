"""When a row of a table begins to exist: ``CountFilterEntry`` and its like."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CountFilterEntry:
    """With its n-th use."""

    count_filter: int


@dataclass(frozen=True)
class ProbabilityEntry:
    """With a chance at each use."""

    probability: float


@dataclass(frozen=True)
class ShowClickEntry:
    """By the slots that count showings and clicks."""

    show_name: str
    click_name: str
