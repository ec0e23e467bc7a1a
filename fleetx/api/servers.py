"""The life of a parameter-server job: ``init_server`` to ``stop_worker``."""

import contextlib
import logging
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from fleetx import roles
from fleetx.api import session
from fleetx.engine.engine import Engine
from fleetx.ps.server import metrics_page, state_lock
from fleetx.ps.server.membership import Membership
from fleetx.ps.server.not_finite import ANSWERS
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.server.server import Server
from fleetx.ps.tables import save_folder
from fleetx.ps.tables.entries import check_unseen_days
from fleetx.ps.tables.saves import Save
from fleetx.ps.wire.channel import Access
from fleetx.ps.wire.handshake import Claim
from fleetx.ps.worker import worker
from fleetx.ps.worker.worker import Worker
from fleetx.roles import secrets
from fleetx.roles.addresses import split_endpoint
from fleetx.roles.stores import patience

logger = logging.getLogger(__name__)

_handlers: list[tuple[RequestHandler, int | None]] = []
"""Empty or one: what ``init_server`` made, and where its figures are served."""


def has_servers() -> bool:
    """Whether this process is part of a job with parameter servers."""
    return roles.started() and not roles.identity().is_collective


def init_server(
    model_dir: str | None = None,
    var_names: list[str] | None = None,
    *,
    durable: bool = False,
    metrics_port: int | None = None,
    on_nan: Literal["skip", "raise", "apply"] = "skip",
) -> None:
    """Prepare this server's tables.

    Args:
        model_dir: a folder that ``save_persistables`` wrote, by any number of servers; tables begin
            with what it holds.
        var_names: the tables to load from it; all of them if not said.
        durable: wait for the disk before a push is acknowledged, so that the log survives the death
            of the machine and not only that of the process.
        metrics_port: serves figures to Prometheus at this port of the server's address, under
            ``/metrics``; what ``fleetrun --metrics_port`` says if not said.
        on_nan: what becomes of gradients that are NaN or infinite. "skip" leaves those rows, or
            numbers of dense parameters, out, counts them (``fleet.server_report()``) and tells in
            the server's log; "raise" refuses the push, so that its worker stops; "apply" takes
            them.
    """
    found = _server("init_server")
    _check_port(metrics_port)
    if on_nan not in ANSWERS:
        raise ValueError(f"init_server(on_nan={on_nan!r}): use 'skip', 'raise' or 'apply'")
    if model_dir is not None and not (Path(model_dir) / save_folder.MANIFEST).is_file():
        raise ValueError(
            f"init_server({model_dir!r}): there is no {save_folder.MANIFEST}, so this is no "
            "complete save; pass a folder that fleet.save_persistables() wrote"
        )
    if model_dir is not None:
        Save.opened(Path(model_dir)).require_full("init_server()")
    folder = secrets.state_folder(found.index)
    if durable and folder is None:
        raise ValueError(
            "init_server(durable=True): this server keeps no log that could be durable; start it "
            f"with fleetrun, or set {secrets.STATE} to a folder"
        )
    if folder is not None:
        state_lock.hold(folder)
    handler = RequestHandler(
        Membership(found.worker_num),
        server=found.index,
        servers=len(found.server_endpoints),
        folder=folder,
        patience=patience().total_seconds(),
        durable=durable,
        on_nan=on_nan,
    )
    handler.preload(Path(model_dir) if model_dir else None, var_names)
    if metrics_port is None:
        metrics_port = secrets.metrics_port()
    _handlers[:] = [(handler, metrics_port)]


def _check_port(port: Any) -> None:
    whole = isinstance(port, int) and not isinstance(port, bool)
    if port is not None and (not whole or not 0 < port < 65536):
        raise ValueError(f"init_server(metrics_port={port!r}): pass a port from 1 to 65535")


def run_server() -> None:
    """Serve until the last worker has called ``stop_worker``."""
    found = _server("run_server")
    if not _handlers:
        init_server()
    endpoint = found.server_endpoints[found.index]
    host, port = split_endpoint(endpoint, where="server endpoints")
    token = secrets.job_token(found.server_endpoints)
    handler, metrics_port = _handlers.pop()
    with contextlib.ExitStack() as open_:
        open_.callback(state_lock.release)
        if metrics_port is not None:
            open_.enter_context(metrics_page.served(host, metrics_port, handler.report))
        server = open_.enter_context(Server((host, port), handler, token, tls=secrets.server_tls()))
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
    """Between two passes over data: all that any worker has pushed is in the tables and here.

    All workers must call it; does nothing in a job without servers.
    """
    connected = worker.running()
    if connected is None:
        return
    for carrier in _all_carriers():
        if carrier.joined:
            carrier.brought.refuse_written()
            carrier.flush()
        else:
            carrier.prepare()  # it had no batch here, but others may train it; it joins at rest
    connected.rest()
    for carrier in carriers():
        carrier.catch_up()


def furthest(count: int) -> int:
    """The largest count of any worker, after a pass over data; all workers must ask.

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
    return [*dict.fromkeys([*carriers(), *begun])]


def flush() -> None:
    """Send what this worker has learned to the servers."""
    for carrier in carriers():
        carrier.flush()


def stop_worker() -> None:
    """Send what is left and part from the servers, which end after the last worker."""
    if worker.running() is None:
        return
    for carrier in carriers():
        carrier.close()
    worker.stop()


def shrink(threshold: int | None = None, table: str | None = None) -> int:
    """End a day on all servers: rows go that are unseen for long; returns how many.

    Args:
        threshold: whole days without a row being met, the one that ends among them, after which it
            goes; from 1, at which all rows go that were not met today. If not said, what a table's
            ``ShowClickEntry(delete_after_unseen_days=...)`` says, else 30.
        table: the only table whose day ends; all of them if not said.
    """
    days = None if threshold is None else check_unseen_days(threshold)
    message = {"method": "shrink", "threshold": days, "table": table}
    answers = connected_worker("shrink").client.call_all(message)
    return sum(int(answer["removed"]) for answer in answers)


def server_report() -> list[dict[str, Any]]:
    """What each server says of itself and of its tables: memory, log, rates, staleness."""
    return connected_worker("server_report").client.call_all({"method": "describe"})


def connected_worker(call: str) -> Worker:
    """The worker that this process is; else an error that names the call."""
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


def carriers() -> list[Any]:
    """Those at work, static programs' among them, and those of models that wait for a batch."""
    connected = worker.running()
    if connected is None:
        return []
    waiting = chain.from_iterable(map(_carriers_of, session.engines()))
    return [*dict.fromkeys([*connected.carriers, *waiting])]


def _carriers_of(engine: Engine) -> list[Any]:
    found = [getattr(strategy, "carrier", None) for strategy in engine.plan.strategies]
    return [carrier for carrier in found if carrier is not None]
