"""Clipping as part of an optimizer, in the spelling of Paddle's ``grad_clip``."""

from dataclasses import dataclass
from typing import Any

from fleetx.expected import NUMBER, expect


@dataclass(frozen=True)
class ClipGradByGlobalNorm:
    """Shrink all gradients together when their common norm is above ``clip_norm``."""

    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        expect("ClipGradByGlobalNorm", "clip_norm", self.clip_norm, NUMBER)

    def options(self) -> dict[str, Any]:
        """What the strategy ``clip`` is told."""
        return {"by": "global_norm", "limit": self.clip_norm}


@dataclass(frozen=True)
class ClipGradByNorm:
    """Shrink each gradient whose norm is above ``clip_norm``."""

    clip_norm: float

    def __post_init__(self) -> None:
        expect("ClipGradByNorm", "clip_norm", self.clip_norm, NUMBER)

    def options(self) -> dict[str, Any]:
        """What the strategy ``clip`` is told."""
        return {"by": "norm", "limit": self.clip_norm}


@dataclass(frozen=True)
class ClipGradByValue:
    """Force every number into ``[min, max]``; ``min`` is ``-max`` when it is not given."""

    max: float
    min: float | None = None

    def __post_init__(self) -> None:
        expect("ClipGradByValue", "max", self.max, NUMBER)
        expect("ClipGradByValue", "min", self.min, NUMBER | None)

    def options(self) -> dict[str, Any]:
        """What the strategy ``clip`` is told."""
        lowest = {} if self.min is None else {"lowest": self.min}
        return {"by": "value", "limit": self.max, **lowest}


GradClip = ClipGradByGlobalNorm | ClipGradByNorm | ClipGradByValue
