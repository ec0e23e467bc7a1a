"""The life of a parameter-server job: ``init_server`` to ``stop_worker``, and saving."""

import logging
from itertools import chain
from pathlib import Path
from typing import Any

from torch import nn

from fleetx import roles
from fleetx.api import session
from fleetx.engine.engine import Engine
from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.server.server import Server
from fleetx.ps.tables import safetensors_file, save_folder
from fleetx.ps.wire.channel import Access
from fleetx.ps.wire.handshake import Claim
from fleetx.ps.worker import worker
from fleetx.ps.worker.sparse_module import SparseModule
from fleetx.ps.worker.worker import Worker
from fleetx.roles import secrets
from fleetx.roles.addresses import split_endpoint
from fleetx.roles.exchange import patience

logger = logging.getLogger(__name__)

_handlers: list[RequestHandler] = []
"""Empty or one: what ``init_server`` made, for ``run_server``."""


def has_servers() -> bool:
    """Whether this process is part of a job with parameter servers."""
    return roles.started() and not roles.identity().is_collective


def init_server(
    model_dir: str | None = None, var_names: list[str] | None = None, *, durable: bool = False
) -> None:
    """Prepare this server's tables.

    Args:
        model_dir: a folder that ``save_persistables`` wrote, by any number of servers; tables begin
            with what it holds.
        var_names: the tables to load from it; all of them if not said.
        durable: wait for the disk before a push is acknowledged, so that the log survives the death
            of the machine and not only that of the process.
    """
    found = _server("init_server")
    if model_dir is not None and not (Path(model_dir) / save_folder.MANIFEST).is_file():
        raise ValueError(
            f"init_server({model_dir!r}): there is no {save_folder.MANIFEST}, so this is no "
            "complete save; pass a folder that fleet.save_persistables() wrote"
        )
    folder = secrets.state_folder(found.index)
    if durable and folder is None:
        raise ValueError(
            "init_server(durable=True): this server keeps no log that could be durable; start it "
            f"with fleetrun, or set {secrets.STATE} to a folder"
        )
    handler = RequestHandler(
        Membership(found.worker_num),
        server=found.index,
        servers=len(found.server_endpoints),
        folder=folder,
        patience=patience().total_seconds(),
        durable=durable,
    )
    handler.preload(Path(model_dir) if model_dir else None, var_names)
    _handlers[:] = [handler]


def run_server() -> None:
    """Serve until the last worker has called ``stop_worker``."""
    found = _server("run_server")
    if not _handlers:
        init_server()
    endpoint = found.server_endpoints[found.index]
    host, port = split_endpoint(endpoint, where="server endpoints")
    token = secrets.job_token(found.server_endpoints)
    with Server((host, port), _handlers.pop(), token, tls=secrets.server_tls()) as server:
        logger.info("serving %d workers at %s", found.worker_num, endpoint)
        server.run()


def init_worker() -> None:
    """Connect to the servers; waits for those that are still starting.

    If they began with a save, the models that exist take over what it holds, and all workers meet.
    Otherwise models meet their servers with their first batches.
    """
    found = roles.identity("init_worker")
    if not found.is_worker or found.is_collective:
        raise RuntimeError(
            f"fleet.init_worker() was called by {found.noun} {found.index} of "
            f"{'a collective job' if found.is_collective else 'a parameter-server job'}; call it "
            "where fleet.is_worker() is true, in a job with servers"
        )
    if worker.running() is not None:
        return
    roles.refuse_without_servers("fleet.init_worker()")
    access = Access(
        token=secrets.job_token(found.server_endpoints),
        claim=Claim(found.index, 0),
        tls=secrets.client_tls(),
        patience=patience().total_seconds(),
    )
    if worker.start(found.server_endpoints, access, found.worker_num).resumes:
        open_tables()


def settle_workers() -> None:
    """Between two stretches of data: all that any worker has pushed is in the tables and here.

    All workers must call it; does nothing in a job without servers.
    """
    connected = worker.running()
    if connected is None:
        return
    for carrier in _all_carriers():
        if carrier.joined:
            carrier.flush()
        else:
            carrier.prepare()  # it had no batch here, but others may train it; it joins at rest
    connected.rest()
    for carrier in _carriers():
        carrier.catch_up()


def furthest(count: int) -> int:
    """The largest count of any worker, after a stretch of data; all workers must ask.

    Gives the count back in a job without servers.
    """
    connected = worker.running()
    return count if connected is None else connected.furthest(count)


def open_tables() -> None:
    """Let the servers make all tables now, and not when the first batches of their models come.

    All workers must call it, for they meet there; does nothing in a job without servers.
    """
    if not has_servers():
        return
    for carrier in _all_carriers():
        carrier.join()


def _all_carriers() -> list[Any]:
    """Those of programs that were not begun among them."""
    begun = chain.from_iterable(map(_carriers_of, session.begin_programs()))
    return [*dict.fromkeys([*_carriers(), *begun])]


def _flush() -> None:
    for carrier in _carriers():
        carrier.flush()


def stop_worker() -> None:
    """Send what is left and part from the servers, which end after the last worker."""
    if worker.running() is None:
        return
    for carrier in _carriers():
        carrier.close()
    worker.stop()


def save_persistables(*args: Any, **kwargs: Any) -> None:
    """Write all tables, while training may go on: ``save_persistables(dirname, mode=0)``.

    ``mode`` 0 or "full" writes everything, 1 or "delta" what changed since the last save. The old
    form with an executor before the folder is understood. Workers may all call it or only the
    first one; the first one writes. Loading needs no servers of the same number.
    """
    folder, mode = _folder("save_persistables", args, kwargs)
    connected = _worker("save_persistables")
    _open_before_the_first_batch(connected)
    if connected.index == 0:
        save(connected, Path(folder), delta=_is_delta(mode))


def _open_before_the_first_batch(connected: Worker) -> None:
    """All workers make such a call then; later the first may be the only one, and would wait."""
    if not connected.carriers:
        open_tables()


def save(connected: Worker, folder: Path, *, delta: bool, mark: bool = True) -> None:
    """Let every server write its share, then the list of them.

    Args:
        connected: the first worker.
        folder: where to.
        delta: only what changed since the last save.
        mark: whether the next delta begins here.
    """
    _open_before_the_first_batch(connected)
    _flush()
    folder.mkdir(parents=True, exist_ok=True)
    message = {"method": "save", "folder": str(folder.resolve()), "delta": delta, "mark": mark}
    answers = connected.client.call_all(message)
    manifest = {
        "tables": answers[0]["tables"],
        "servers": len(answers),
        "mode": "delta" if delta else "full",
    }
    save_folder.write_json(folder / save_folder.MANIFEST, manifest)


def save_inference_model(dirname: str, model: nn.Module | None = None) -> None:
    """Write what serving a model takes: its dense parameters and buffers, and all tables.

    ``dense.safetensors`` holds the former by name, ``tables`` is a save like any other. Workers may
    all call it or only the first one; the first one writes.

    Args:
        dirname: the folder.
        model: which one; the only distributed model if not said.
    """
    if _others("save_inference_model"):
        return
    held = [engine.job.model for engine in session.engines()]
    if model is None and len(held) != 1:
        raise ValueError(
            f"save_inference_model() found {len(held)} distributed models; pass the one to save"
        )
    save_tables(Path(dirname) / "tables")
    save_dense(model or held[0], Path(dirname))


def save_tables(folder: Path | None) -> bool:
    """Bring dense parameters up to date, and let servers write; whether we are the first worker."""
    if _others("save_inference_model"):
        return False
    if folder is not None:
        save(_worker("save_inference_model"), folder, delta=False, mark=False)
    else:
        _flush()
    return True


def save_dense(model: nn.Module, folder: Path) -> None:
    """Write the parameters and buffers of a model that are no rows of a table."""
    anchors = {id(m.anchor) for m in model.modules() if isinstance(m, SparseModule)}
    tensors = model.state_dict(keep_vars=True)
    dense = {name: t.detach().cpu() for name, t in tensors.items() if id(t) not in anchors}
    whole = {name: t.float() if t.is_floating_point() else t.long() for name, t in dense.items()}
    safetensors_file.write(
        folder / "dense.safetensors", {name: t.numpy() for name, t in whole.items()}
    )


def load_persistables(dirname: str, tables: list[str] | None = None) -> None:
    """Set the tables to a save, after ``distributed_optimizer``; all workers must call it.

    The first one does it, when the others have pushed all that they had learned.
    """
    connected = _worker("load_persistables")
    open_tables()
    _flush()
    connected.agree(0, topic="load")
    if connected.index == 0:
        message = {"method": "load", "folder": str(Path(dirname).resolve()), "tables": tables}
        connected.client.call_all(message)
    connected.agree(0, topic="loaded")
    for carrier in _carriers():
        carrier.catch_up()


def shrink(threshold: int = 30, table: str | None = None) -> int:
    """End a day on all servers: drop rows unseen for so many days; returns how many."""
    message = {"method": "shrink", "threshold": threshold, "table": table}
    answers = _worker("shrink").client.call_all(message)
    return sum(int(answer["removed"]) for answer in answers)


def server_report() -> list[dict[str, Any]]:
    """What each server says of its tables: rows, bytes, updates and staleness."""
    return _worker("server_report").client.call_all({"method": "describe"})


def _others(call: str) -> bool:
    return roles.identity(call).index != 0


def _worker(call: str) -> Worker:
    found = worker.running()
    if found is None:
        roles.refuse_without_servers(f"fleet.{call}()")
        raise RuntimeError(
            f"fleet.{call}() needs the servers, and this process is not connected to them; call "
            "fleet.init_worker() first"
        )
    return found


def _server(call: str) -> roles.Identity:
    found = roles.identity(call)
    if found.is_worker:
        roles.refuse_without_servers(f"fleet.{call}()")
        raise RuntimeError(
            f"fleet.{call}() was called by worker {found.index}; call it where fleet.is_server() "
            "is true"
        )
    return found


def _carriers() -> list[Any]:
    """Those at work, static programs' among them, and those of models that wait for a batch."""
    connected = worker.running()
    if connected is None:
        return []
    waiting = chain.from_iterable(map(_carriers_of, session.engines()))
    return [*dict.fromkeys([*connected.carriers, *waiting])]


def _carriers_of(engine: Engine) -> list[Any]:
    found = [getattr(strategy, "carrier", None) for strategy in engine.plan.strategies]
    return [carrier for carrier in found if carrier is not None]


def _folder(call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any]:
    """The folder and the mode, in the old order or the new one."""
    texts = [value for value in args if isinstance(value, str | Path)]
    folder = kwargs.get("dirname", texts[0] if texts else None)
    if folder is None:
        raise TypeError(f"fleet.{call}() needs a folder; call fleet.{call}('model')")
    after = args[args.index(folder) + 1 :] if folder in args else ()
    modes = [value for value in after if isinstance(value, int) and not isinstance(value, bool)]
    return str(folder), kwargs.get("mode", modes[0] if modes else 0)


def _is_delta(mode: Any) -> bool:
    if mode not in (0, 1, "full", "delta"):
        raise ValueError(f"mode={mode!r} is not known; use 0 or 'full', 1 or 'delta'")
    return mode in (1, "delta")
