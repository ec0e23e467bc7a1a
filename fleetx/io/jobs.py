"""``fleet.save_persistables`` and its like: to files here, or by the servers of a job."""

from typing import Any

from fleetx import roles
from fleetx.engine import servers
from fleetx.io import persistables


def save_persistables(*args: Any, **kwargs: Any) -> None:
    """Save all that training needs to go on.

    In a job with servers they write their tables: ``save_persistables(dirname, mode=0)``.
    Elsewhere the values of a program: ``save_persistables(executor, dirname, main_program)``.
    """
    call = servers.save_persistables if _has_servers() else persistables.save_persistables
    call(*args, **kwargs)


def load_persistables(*args: Any, **kwargs: Any) -> None:
    """Load what ``save_persistables`` saved."""
    call = servers.load_persistables if _has_servers() else persistables.load_persistables
    call(*args, **kwargs)


def _has_servers() -> bool:
    return roles.started() and not roles.identity().is_collective
