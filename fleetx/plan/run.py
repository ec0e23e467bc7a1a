"""How the forward of a batch runs, as strategies change it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleetx.plan.trace import Forward

Change = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, kw_only=True)
class Run:
    """How the forward of a batch runs, which must be known before it can be traced."""

    micro_batches: int = 1
    """Parts of a batch that run one after the other, or one behind the other."""
    batches: int = 1
    """Batches for one update."""
    contexts: tuple[Callable[[], AbstractContextManager[Any]], ...] = ()
    """What every forward runs under."""
    changes: tuple[Change, ...] = ()
    """What becomes of the forward of the model, the innermost first."""
    forward: "Forward | None" = None
    """How the model is called, where it is not called as a whole."""
    key: tuple[Any, ...] = ()
    """Tells two ways to run apart, so that each is traced once."""
