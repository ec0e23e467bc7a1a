"""One call of a whole model, as a plan would make it for a micro-batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from fleetx.plan.run import Run


@dataclass(frozen=True, kw_only=True)
class WholeCall:
    """Whoever measures it may run a copy of the model."""

    model: nn.Module
    inputs: Any
    targets: Any
    criterion: Callable[[Any, Any], Any] | None
    run: Run
    """What the model runs under."""
    samples: int
    """Of the micro-batch, which may have others than the inputs here."""
    needed: int
    """Bytes of the copy, of its gradients and of what its forward keeps."""
