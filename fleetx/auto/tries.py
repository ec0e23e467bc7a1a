"""Which plans to try on the machines at hand, when all are expected and few can be measured.

What is expected of a kind of plan may be wrong in the same way for all of its kind: after each try
the expectations of plans that resemble it are corrected by what it took.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

COMPANY = {"amp"}
"""What plain data parallel may have and still be called so."""


@dataclass(frozen=True)
class Candidate:
    """A plan that may be tried."""

    flags: frozenset[str]
    """Strategies that it switches on."""
    spread: frozenset[tuple[str, int]]
    """Axes of its mesh with more than one rank, and how many."""
    expected: float
    """Seconds of an update."""

    @property
    def is_plain(self) -> bool:
        """Whether it is data parallel and no more."""
        return {axis for axis, _ in self.spread} <= {"dp"} and self.flags <= COMPANY

    def unlike(self, other: "Candidate") -> int:
        """In how many strategies they differ, and whether they do in the layout."""
        return len(self.flags ^ other.flags) + (self.spread != other.spread)


@dataclass
class Tries:
    """The plans of a search, and what those took that were tried.

    Args:
        plans: all that are considered, the one that is expected to be fastest first.
    """

    plans: Sequence[Candidate]
    took: dict[int, float] = field(default_factory=dict)
    """Place among the plans -> seconds of an update."""

    def next(self) -> int | None:
        """The plan to try now: plain data parallel first, then the most promising; None: no more.

        Whoever chooses a plan wants it to be no slower than the plain one, with and without amp.
        """
        left = [at for at in range(len(self.plans)) if at not in self.took]
        plain = [at for at in left if self.plans[at].is_plain]
        return min(plain or left, key=self._corrected, default=None)

    @property
    def best(self) -> int:
        """The fastest of those that were tried; without a try the one that is expected to be."""
        return min(self.took, key=lambda at: self.took[at], default=0)

    def _corrected(self, at: int) -> float:
        """What is expected, times what the most similar plan took of what was expected of it."""
        own = self.plans[at]
        ratios = [
            (own.unlike(self.plans[tried]), seconds / self.plans[tried].expected)
            for tried, seconds in self.took.items()
        ]
        return own.expected * min(ratios, default=(0, 1.0))[1]
