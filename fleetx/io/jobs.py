"""``fleet.save_persistables`` and its like: to files here, or by the servers of a job."""

from typing import Any

from fleetx.api import servers, table_saves
from fleetx.io import inference, persistables
from fleetx.static.record.program import Program
from fleetx.static.run.compiled import CompiledProgram
from fleetx.static.run.executor import Executor


def save_persistables(*args: Any, **kwargs: Any) -> None:
    """Save all that training needs to go on.

    In a job with servers they write their tables: ``save_persistables(dirname, mode=0)``.
    Elsewhere the values of a program: ``save_persistables(executor, dirname, main_program)``.
    """
    if not servers.has_servers():
        return persistables.save_persistables(*args, **kwargs)
    return table_saves.save_persistables(*_of_tables("save_persistables", args, kwargs), **kwargs)


def load_persistables(*args: Any, **kwargs: Any) -> None:
    """Load what ``save_persistables`` saved."""
    if not servers.has_servers():
        return persistables.load_persistables(*args, **kwargs)
    return table_saves.load_persistables(*_of_tables("load_persistables", args, kwargs), **kwargs)


def save_inference_model(*args: Any, **kwargs: Any) -> Any:
    """Save what is needed to compute outputs.

    A program as an archive that plain torch loads, and in a job with servers its tables beside it:
    ``save_inference_model(executor, dirname, feeded_var_names, target_vars)``. In such a job also
    the tables and dense parameters of a model: ``save_inference_model(dirname, model)``.
    """
    by_program = "executor" in kwargs or (bool(args) and isinstance(args[0], Executor))
    eager = servers.has_servers() and not by_program
    call = table_saves.save_inference_model if eager else inference.save_inference_model
    return call(*args, **kwargs)


def _of_tables(call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """What servers need of a call that also names an executor and a program: they save all."""
    kwargs.pop("executor", None)
    kwargs.pop("main_program", None)
    fourth = args[3] if len(args) > 3 and isinstance(args[0], Executor | None) else None
    if kwargs.pop("filename", fourth) is not None:
        raise ValueError(
            f"{call}(filename=...): every server writes files of its own, so they make a folder; "
            "leave the name out"
        )
    idle = (Executor, Program, CompiledProgram, type(None))
    return [given for given in args if not isinstance(given, idle)]
