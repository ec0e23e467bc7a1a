"""Figures of this process: its loss, its memory, its rows. One place to put them and to read them.

Whoever has a figure puts it here, or says how to ask for it between two batches.
`fleetx.launch.reporter` reads them twice a second from a thread of its own and tells the launcher,
which keeps them for `fleetx watch`; anything else that shows or logs figures reads `now()`.
Nothing here needs torch.
"""

from collections.abc import Callable, Mapping
from typing import Any

_put: dict[str, Any] = {}
_sources: dict[str, Callable[[], Mapping[str, Any]]] = {}
_facts: dict[str, Any] = {}


def put(**figures: Any) -> None:
    """Keep the latest values under their names; plain ones, which JSON knows."""
    _put.update(figures)


def source(topic: str, ask: Callable[[], Mapping[str, Any]]) -> None:
    """Ask for figures now and then, at the end of a batch; a topic has one source.

    Not from the thread that tells the launcher: what waits for others may hold what is asked for,
    and whoever asks would wait with it, and could not tell of the wait.
    """
    _sources[topic] = ask


def ask() -> None:
    """Put down what all sources know; a source that fails has nothing."""
    for source in list(_sources.values()):
        try:
            put(**source())
        except Exception:  # figures must never end a job
            continue


def fact(topic: str, what: Any) -> None:
    """Something about the whole run that rarely changes, such as its plan; plain values."""
    _facts[topic] = what


def now() -> dict[str, Any]:
    """All figures."""
    return dict(_put)


def facts() -> dict[str, Any]:
    """What is known about the run."""
    return dict(_facts)


def forget() -> None:
    """A new job begins in this process."""
    for kept in (_put, _sources, _facts):
        kept.clear()
