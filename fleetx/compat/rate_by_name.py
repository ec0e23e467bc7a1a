"""The learning rate of programs among the values of a scope, where old scripts set it by hand."""

import weakref
from typing import Any

import numpy as np

from fleetx.compat import scopes
from fleetx.compat.parameters import current_scope
from fleetx.record.error import ProgramError
from fleetx.static.lr import NAME


class _Offered:
    """Optimizers that train programs of one scope, and whose rate is a number or a scheduler."""

    def __init__(self) -> None:
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()


_everywhere = _Offered()


def offer(optimizer: Any) -> None:
    """Let ``global_scope().find_var("learning_rate_0")`` find the rate of an optimizer."""
    kept = current_scope().attachments.setdefault(_Offered, _Offered())
    for offered in (kept, _everywhere):
        offered.optimizers.add(optimizer)
    scopes.register(NAME, _read, _write)


def _only() -> Any:
    """The one optimizer; Paddle numbers the rates of several, and here all have one name."""
    kept = current_scope().attachments.get(_Offered, _everywhere)
    found = list(kept.optimizers)
    if len(found) == 1:
        return found[0]
    raise ProgramError(
        f"{len(found)} optimizers train programs of this script, so {NAME!r} does not say whose "
        "rate is meant; call optimizer.get_lr() or optimizer.set_lr(0.01) of one."
    )


def _read() -> Any:
    return np.array([_only().get_lr()], dtype="float32")


def _write(value: Any) -> None:
    optimizer = _only()
    if optimizer.follows_scheduler:
        raise ProgramError(
            f"{NAME!r} was set, and the learning rate follows a scheduler, which sets it in every "
            "run; move the scheduler, or give the optimizer a number as learning_rate."
        )
    optimizer.set_lr(np.asarray(value).item())
