"""Checkpoints inside of models: what ``torch.utils.checkpoint`` replays in backward."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Replay:
    """One call of ``checkpoint()`` while a program was recorded."""

    given: frozenset[str]
    """Names of the nodes that it was called with; others were found in a closure."""
    options: Mapping[str, Any]
