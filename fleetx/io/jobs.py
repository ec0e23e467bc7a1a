"""``fleet.save_persistables`` and its like: to files here, or by the servers of a job."""

from typing import Any

from fleetx import roles
from fleetx.engine import servers
from fleetx.io import inference, persistables


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


def save_inference_model(*args: Any, **kwargs: Any) -> Any:
    """Save what is needed to compute outputs.

    In a job with servers the tables and the dense parameters: ``save_inference_model(dirname,
    model)``. Elsewhere a program as an archive that plain torch loads:
    ``save_inference_model(executor, dirname, feeded_var_names, target_vars)``.
    """
    call = servers.save_inference_model if _has_servers() else inference.save_inference_model
    return call(*args, **kwargs)


def _has_servers() -> bool:
    return roles.started() and not roles.identity().is_collective
