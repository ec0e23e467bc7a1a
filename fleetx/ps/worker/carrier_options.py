"""Options of a carrier: how often it exchanges, how much at once, and how far ahead it runs."""

from dataclasses import dataclass, field

from fleetx.ps.tables.sparse_spec import Pace
from fleetx.ps.worker.parameter_split import ParameterSplit


@dataclass(frozen=True, kw_only=True)
class CarrierOptions:
    """How a carrier exchanges with the servers."""

    split: ParameterSplit = field(default_factory=ParameterSplit)
    pace: Pace = field(default_factory=Pace)
    merge: int = 1
    """Batches that make one push."""
    queue: int = 16
    """Pushes that may wait to be sent."""
    refresh: int = 1
    """Pushes between two looks at the dense parameters."""
    every: int = 1
    """Batches between two exchanges of workers that train copies."""
    bound: int = -1
    """Steps by which a worker may be ahead of the slowest; negative for any number."""
    unsent: int = 1
    """A worker's own pushes that may be under way when it begins a batch."""
