"""``fleet.log`` and the trackers of the running job."""

import atexit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from reprlib import repr as shortened
from typing import Any

import numpy as np
from torch import Tensor

from fleetx import roles
from fleetx.expected import MAPPING, WHOLE, takes
from fleetx.plan.all_or_none import all_or_none
from fleetx.plan.option import unknown
from fleetx.tracking.known_trackers import NAMES
from fleetx.tracking.meter import Meter
from fleetx.tracking.tracker import Tracker
from fleetx.tracking.tracks import Tracks

Given = str | Tracker


@dataclass
class _Open:
    """What one ``init`` began, on worker 0."""

    tracks: Tracks
    meter: Meter


_open: list[_Open] = []
"""Empty or one: a process is part of one job at a time."""


def checked_trackers(given: Any) -> list[Any]:
    """Trackers by name, or as they were given; refuses what is none."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(
            'fleet.init() takes as trackers a list such as ["tensorboard", "wandb"]; got '
            f"{shortened(given)}"
        )
    return [_tracker(each) for each in given]


def _tracker(given: Any) -> Any:
    if isinstance(given, str):
        if given not in NAMES:
            raise ValueError(unknown(f"fleet.init(trackers=[{given!r}])", given, NAMES))
        return NAMES[given]()
    if isinstance(given, type) or not callable(getattr(given, "log", None)):
        raise TypeError(
            "fleet.init() takes trackers by name (tensorboard, wandb, mlflow) or objects with a "
            f"method log(values, step); got {shortened(given)}"
        )
    return given


def begin_trackers(trackers: list[Any], every: int) -> Callable[..., Any] | None:
    """Open them on worker 0; every worker of the job calls it, and fails if worker 0 does.

    Returns:
        On worker 0, what looks at models before they are laid out.
    """
    found = roles.identity("init")
    if not found.is_worker:
        return None
    # Workers of a job with servers wait for nobody, and need not hear of it.
    together = all_or_none if found.is_collective else _alone
    together(lambda: _begin(trackers, every) if found.index == 0 else None)
    return _open[0].meter.follow if _open else None


def _alone(action: Callable[[], None]) -> None:
    action()


def _begin(trackers: list[Any], every: int) -> None:
    found, tracks = roles.identity("init"), Tracks(trackers)
    tracks.begin()
    meter = Meter(tracks.log, every, 1 if found.is_collective else found.worker_num)
    _open.append(_Open(tracks, meter))
    roles.at_stop(_close)
    # Packages end their runs at exit themselves, with what they know of the process; whoever
    # registers later comes first, and what is left must come before that.
    atexit.register(meter.rest)


def _close() -> None:
    while _open:
        known = _open.pop()
        atexit.unregister(known.meter.rest)
        known.meter.rest()
        known.tracks.close()


@takes("fleet.log", values=MAPPING.such_as("a dict of numbers by name"), step=WHOLE | None)
def log(values: Mapping[str, Any], step: int | None = None) -> None:
    """Give numbers to the trackers of ``fleet.init(trackers=[...])``; those of worker 0 count.

    Nothing happens where no tracker was named, so that a script need not ask.

    Args:
        values: names -> numbers, or tensors and arrays of one number.
        step: what they belong to; the number of updates so far if not said.
    """
    roles.identity("log")
    for name, value in values.items():
        _check(name, value)
    if _open:
        numbers = {name: _number(value) for name, value in values.items()}
        known = _open[0]
        known.tracks.log(numbers, known.meter.updates if step is None else int(step))


def _check(name: Any, value: Any) -> None:
    """Refuse, on every worker, what is no number, without asking a device for it."""
    if not isinstance(name, str):
        raise TypeError(f"fleet.log() takes numbers by name; got {shortened(name)} as a name")
    one = (Tensor, np.ndarray, np.generic)
    if isinstance(value, Real) or (isinstance(value, one) and _size(value) == 1):
        return
    said = f"shape {list(value.shape)}" if isinstance(value, one) else shortened(value)
    raise TypeError(
        f"fleet.log() takes numbers, got {name}={said}; take its mean(), or give anything else to "
        "the tracker itself, on worker 0."
    )


def _number(value: Any) -> float:
    return float(value.item() if isinstance(value, Tensor | np.ndarray) else value)


def _size(value: Any) -> int:
    return value.numel() if isinstance(value, Tensor) else int(value.size)
