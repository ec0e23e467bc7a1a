"""A checked plan: who takes part in which order, on which mesh."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleetx.plan.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Strategies in the order in which they are folded, and the mesh they live on."""

    strategies: tuple["Strategy", ...]
    mesh: Mapping[str, int]
    options: Mapping[str, Any]
    resting: Mapping[str, str] = field(default_factory=dict)
    """Flags that are on and have nothing to do in this job, as users spell them -> why; said when
    it starts."""

    def cuts(self) -> tuple[str, ...]:
        """Names at which a static program must be split before it is laid out."""
        return tuple(name for strategy in self.strategies for name in strategy.cuts())

    def stages(self) -> int:
        """Into how many stages a static program must be split, by the devices that it names."""
        return max(strategy.stages(self) for strategy in self.strategies)
