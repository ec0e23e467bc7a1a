"""The best plans that were found, as data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

from typing_extensions import override

from fleetx.auto.cluster import Cluster
from fleetx.auto.estimate import Estimate
from fleetx.auto.search import Planned
from fleetx.config.distributed_strategy import DistributedStrategy
from fleetx.plan.subject import Subject


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """One plan."""

    strategy: DistributedStrategy
    """What a script would set for it."""
    planned: Planned

    @property
    def expected(self) -> Estimate:
        """What an update takes."""
        return self.planned.estimate

    @property
    def batch(self) -> int:
        """Samples that a share of the data takes at once."""
        return self.planned.batch

    @property
    def merged(self) -> int:
        """Batches of an update."""
        on = self.strategy.gradient_merge
        return int(self.strategy.gradient_merge_configs["k_steps"]) if on else 1


@dataclass(frozen=True, kw_only=True)
class Proposals(Sequence[Proposal]):
    """The best plans, the best one first."""

    proposals: tuple[Proposal, ...]
    cluster: Cluster
    subject: Subject
    samples: int
    """Of one update, all workers together."""
    looked_at: int
    """How many plans were compared."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Why others were left out -> how many."""
    changes: tuple[str, ...] = ()
    """What would change the choice, in a sentence each."""

    @overload
    def __getitem__(self, at: int) -> Proposal: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Proposal]: ...

    @override
    def __getitem__(self, at: int | slice) -> Proposal | Sequence[Proposal]:
        return self.proposals[at]

    @override
    def __len__(self) -> int:
        return len(self.proposals)

    @override
    def __iter__(self) -> Iterator[Proposal]:
        return iter(self.proposals)

    @property
    def best(self) -> Proposal:
        """The one to take."""
        return self.proposals[0]
