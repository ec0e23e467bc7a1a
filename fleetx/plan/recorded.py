"""What strategies may know of a step that is recorded to run again without the host."""

from dataclasses import dataclass

from torch import Tensor


@dataclass
class Recorded:
    """A step that is being recorded: what it keeps must be written where it lies."""

    undone: Tensor | None = None
    """A flag on the device (a tensor of one number) that is set when the update of the step shall
    leave no trace; None when each counts."""
