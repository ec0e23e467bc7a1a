"""From a planned job to its exit code; the only part that needs torch."""

import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch.distributed import DistNetworkError, DistStoreError, Store
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousError

from fleetx.launch.agent import FleetAgent
from fleetx.launch.bulletin import Bulletin
from fleetx.launch.cluster import Job
from fleetx.launch.console import warn
from fleetx.launch.errors import Interrupted, LaunchError
from fleetx.launch.logs import WorkerLogs
from fleetx.launch.rendezvous import (
    ElasticMembers,
    FixedMembers,
    JobEnded,
    Meeting,
    Membership,
)
from fleetx.launch.store import control_store


def start(
    job: Job,
    command: Sequence[str],
    *,
    listener: socket.socket | None,
    log_dir: Path,
    max_restart: int,
    timeout: float,
) -> int:
    """Runs the job and returns the exit code of the launcher."""
    # The agent's own log lines repeat what the report says, with a line per process.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    # Our handlers stay: torch's would replace them when the first process starts.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"
    store = control_store(job, listener, timeout)
    bulletin = Bulletin(store, node=job.host)
    meeting = Meeting(job, store, bulletin, _members(job, store, timeout))
    errors = Path(tempfile.mkdtemp(prefix="fleetrun-"))
    agent = FleetAgent(
        job,
        command,
        meeting=meeting,
        bulletin=bulletin,
        logs=WorkerLogs(log_dir, errors),
        max_restart=max_restart,
    )
    try:
        return _run(agent, job, bulletin)
    finally:
        shutil.rmtree(errors, ignore_errors=True)


def _members(job: Job, store: Store, timeout: float) -> Membership:
    if job.node_rank is None:
        return ElasticMembers(store, job, timeout)
    return FixedMembers(store, rank=job.node_rank, size=job.max_nodes, timeout=timeout)


def _run(agent: FleetAgent, job: Job, bulletin: Bulletin) -> int:
    several = job.max_nodes > 1
    try:
        code = _outcome(agent, job, bulletin)
        if several:
            bulletin.farewell(keeper=agent.is_keeper, others=agent.others)
    except SignalException as stop:
        raise Interrupted(stop.sigval) from None
    except (DistNetworkError, DistStoreError, RendezvousError) as error:
        host, port = job.master or (job.host, 0)
        raise LaunchError(
            f"the launcher at {host}:{port} is gone ({type(error).__name__}), so this machine has "
            "stopped its processes; look at its log",
            code=1,
        ) from None
    return code


def _outcome(agent: FleetAgent, job: Job, bulletin: Bulletin) -> int:
    try:
        result = agent.run()
        if not result.is_failed():
            return 0
    except JobEnded:
        pass
    failure = bulletin.first_failure()
    warn(failure.report(job.host, several=job.max_nodes > 1))
    return failure.exit_code
