"""Saving and loading what parameter servers hold."""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fleetx import roles
from fleetx.api import servers, session
from fleetx.ps.tables import safetensors_file, save_lock, saves
from fleetx.ps.tables.real_numbers import as_real
from fleetx.ps.tables.save_folder import TABLES
from fleetx.ps.wire.arrays import Array
from fleetx.ps.worker.sparse_module import SparseModule
from fleetx.ps.worker.worker import Worker

logger = logging.getLogger(__name__)


def save_persistables(*args: Any, **kwargs: Any) -> None:
    """Write all tables, while training may go on: ``save_persistables(dirname, mode=0)``.

    ``mode`` 0 or "full" writes everything, 1 or "delta" what changed since the last save, 2 or
    "base" what a ``ShowClickEntry`` says is worth it, and 3 or "daily" everything. The old form
    with an executor before the folder is understood. Workers may all call it or only the first
    one; the first one writes. Loading needs no servers of the same number.
    """
    folder, mode = _folder("save_persistables", args, kwargs)
    connected = servers.connected_worker("save_persistables")
    _open_before_the_first_batch(connected)
    if connected.index == 0:
        chosen = _mode(mode)
        for carrier in servers.carriers():
            carrier.brought.refuse_written()
        save(connected, Path(folder), delta=chosen == "delta", worthy=chosen in ("delta", "base"))


def _open_before_the_first_batch(connected: Worker) -> None:
    """All workers make such a call then; later the first may be the only one, and would wait."""
    if not connected.carriers:
        servers.open_tables()


def save(
    connected: Worker, folder: Path, *, delta: bool, mark: bool = True, worthy: bool = False
) -> None:
    """Let every server write its share, then the list of them.

    Args:
        connected: the first worker.
        folder: where to.
        delta: only what changed since the last save.
        mark: whether the next delta begins here: of a save that is a part of something larger it
            does not, and buffers of models are elsewhere there.
        worthy: leave out rows that are worth little, by shows and clicks.
    """
    _open_before_the_first_batch(connected)
    servers.flush()
    message = {"method": "save", "folder": str(folder.resolve()), "delta": delta, "mark": mark}
    message["worthy"] = worthy
    with save_lock.held(folder, save_lock.WORKER):
        saves.remove_replaced(folder)
        answers = connected.client.call_all(message)
        saves.write_list(folder, answers, delta=delta, buffers=_buffers() if mark else None)
    if mark:  # only now: one that failed on any server is nothing that a delta could continue
        connected.client.call_all({"method": "saved"})


def _buffers() -> dict[str, Array]:
    """What the models of the first worker have and no server, such as running statistics."""
    every = (carrier.buffers() for carrier in servers.carriers())
    return {name: array for buffers in every for name, array in buffers.items()}


def save_inference_model(dirname: str, model: nn.Module | None = None) -> None:
    """Write what serving a model takes: its dense parameters and buffers, and all tables.

    ``dense.safetensors`` holds the former by name, ``tables`` is a save like any other. Workers may
    all call it or only the first one; the first one writes.

    Args:
        dirname: the folder.
        model: which one; the only distributed model if not said.
    """
    _check_model(model)
    if _others("save_inference_model"):
        return
    held = [engine.job.model for engine in session.engines()]
    if model is None and len(held) != 1:
        raise ValueError(
            f"save_inference_model() found {len(held)} distributed models; pass the one to save"
        )
    with held_by_the_first(Path(dirname)):
        save_tables(Path(dirname) / TABLES)
        save_dense(model or held[0], Path(dirname))


def _check_model(model: Any) -> None:
    """Refuse what is no model before the servers write their tables."""
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(
            f"save_inference_model(dirname, {model!r}): {type(model).__name__} is no model that "
            "could be saved; pass what fleet.distributed_model() returned, or nothing where there "
            "is one; a static program: save_inference_model(executor, dirname, feeds, targets)"
        )


def save_tables(folder: Path | None) -> bool:
    """Bring dense parameters up to date, and let servers write; whether we are the first worker."""
    if _others("save_inference_model"):
        return False
    if folder is not None:
        save(servers.connected_worker("save_inference_model"), folder, delta=False, mark=False)
    else:
        servers.flush()
    return True


@contextlib.contextmanager
def held_by_the_first(folder: Path) -> Iterator[None]:
    """Let no other job with servers save into a folder; workers that do not write hold nothing."""
    writes = servers.has_servers() and not _others("save_inference_model")
    with save_lock.held(folder, save_lock.WORKER) if writes else contextlib.nullcontext():
        yield


def save_dense(model: nn.Module, folder: Path) -> str:
    """Write the parameters and buffers of a model that are no rows of a table.

    Returns:
        The checksum of the tables beside them, to which they belong.
    """
    anchors = {id(m.anchor) for m in model.modules() if isinstance(m, SparseModule)}
    tensors = model.state_dict(keep_vars=True)
    dense = {k: as_real(t.detach()).cpu() for k, t in tensors.items() if id(t) not in anchors}
    whole = {name: t.float() if t.is_floating_point() else t.long() for name, t in dense.items()}
    arrays = {name: t.numpy() for name, t in whole.items()}
    # A worker that dies here leaves the dense parameters of an older save beside the new tables.
    tables = saves.Save.opened(folder / TABLES).checksum
    safetensors_file.write(folder / "dense.safetensors", arrays, beside=tables)
    return tables


def load_persistables(dirname: str, tables: list[str] | None = None) -> None:
    """Set the tables to a save, after ``distributed_optimizer``; all workers must call it.

    The first one does it, when the others have pushed all that they had learned. Buffers of models,
    such as running statistics, are those of the save, too, unless ``tables`` chooses among it.
    """
    load(dirname, tables)
    if tables is None:
        for carrier in servers.carriers():
            carrier.take_buffers(str(Path(dirname).resolve()))


def load(dirname: str, tables: list[str] | None = None) -> None:
    """The same without what models have and no server."""
    connected = servers.connected_worker("load_persistables")
    servers.open_tables()
    for carrier in servers.carriers():
        carrier.brought.forget()  # what was written is to be written over
    servers.flush()
    connected.agree(0, topic="load")
    if connected.index == 0:
        folder = str(Path(dirname).resolve())
        saved = connected.saved_sizes(folder)
        wanted = {name: each for name, each in saved.items() if tables is None or name in tables}
        for carrier in servers.carriers():
            carrier.refuse_other_sizes(wanted, "fleet.load_persistables(folder, tables=['words'])")
        message = {"method": "load", "folder": folder, "tables": tables}
        _say_apart(folder, connected.client.call_all(message)[0])
    connected.agree(0, topic="loaded")
    for carrier in servers.carriers():
        carrier.catch_up()


def _say_apart(folder: str, answer: Mapping[str, Any]) -> None:
    """A table of another name, or one that came after the save, is no part of what was loaded."""
    kept, left = (", ".join(answer.get(name, ())) for name in ("kept", "left"))
    if kept:
        logger.warning(
            "%s holds nothing of %s, which stays as it is while the rest is that of the save%s",
            folder,
            kept,
            f"; it holds {left}, which no model of this job has" if left else "",
        )


def _others(call: str) -> bool:
    return roles.identity(call).index != 0


def _folder(call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any]:
    """The folder and the mode, in the old order or the new one."""
    if unknown := sorted(kwargs.keys() - {"dirname", "mode"}):
        raise TypeError(
            f"fleet.{call}({unknown[0]}=...) is not known in a job with servers, which write all "
            f"that they hold; call fleet.{call}('model'), or fleet.{call}('model', mode='delta')"
        )
    given = [*args]
    if "dirname" not in kwargs:
        # What stands before the folder is an executor.
        at = next((at for at, value in enumerate(given) if isinstance(value, str | Path)), None)
        if at is None:
            raise TypeError(f"fleet.{call}() needs a folder; call fleet.{call}('model')")
        kwargs, given = {"dirname": given[at]} | kwargs, given[at + 1 :]
    modes = given + ([kwargs["mode"]] if "mode" in kwargs else [])
    if len(modes) > 1:
        raise TypeError(
            f"fleet.{call}() got {modes[0]!r} and {modes[1]!r} for the mode of one save; call "
            f"fleet.{call}('model', mode='delta')"
        )
    return str(kwargs["dirname"]), modes[0] if modes else 0


_MODES = ("full", "delta", "base", "daily")
"""How saves are called here, in the order of Paddle's numbers."""


def _mode(mode: Any) -> str:
    if isinstance(mode, int) and not isinstance(mode, bool) and 0 <= mode < len(_MODES):
        return _MODES[mode]
    if mode not in _MODES:
        known = ", ".join(f"{number} or {name!r}" for number, name in enumerate(_MODES))
        raise ValueError(f"mode={mode!r} is not known; use {known}")
    return str(mode)
