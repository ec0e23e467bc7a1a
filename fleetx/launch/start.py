"""From a planned job to its exit code; the only part that needs torch."""

import contextlib
import logging
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.elastic.rendezvous import RendezvousError

from fleetx.launch.agent import FleetAgent
from fleetx.launch.cluster import Job
from fleetx.launch.console import warn
from fleetx.launch.departure import ASKS_FOR_RESTART
from fleetx.launch.errors import Interrupted, LaunchError
from fleetx.launch.failure import Failure
from fleetx.launch.job_board import JobBoard
from fleetx.launch.logs import WorkerLogs
from fleetx.launch.rendezvous import (
    ElasticMembers,
    FixedMembers,
    JobEnded,
    Membership,
    Rendezvous,
)
from fleetx.launch.saving import Saving
from fleetx.launch.store import Store, control_store
from fleetx.launch.stuck import Limits
from fleetx.launch.telling import Telling


def start(
    job: Job,
    command: Sequence[str],
    *,
    listener: socket.socket | None,
    log_dir: Path,
    max_restart: int,
    timeout: float,
    limits: Limits,
    saving: Saving,
) -> int:
    """Runs the job and returns the exit code of the launcher."""
    # The agent's own log lines repeat what the report says, with a line per process.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    # Our handlers stay: torch's would replace them when the first process starts.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ""
    # Torch's own store for workers, which ours replaces, keeps the address of an earlier round:
    # a machine that joins later would wait for one that nobody tells.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    errors = Path(tempfile.mkdtemp(prefix="fleetrun-"))
    logs = WorkerLogs(log_dir, errors)
    telling = Telling(log_dir, " ".join(command))
    try:
        store = control_store(job, listener, timeout)
        board = JobBoard(store)
        rendezvous = Rendezvous(job, board, _members(job, store, board, timeout), timeout=timeout)
        agent = FleetAgent(
            job,
            command,
            rendezvous=rendezvous,
            board=board,
            logs=logs,
            max_restart=max_restart,
            limits=limits,
            saving=saving,
            telling=telling,
            keeper=listener is not None,
        )
        try:
            with telling:
                return telling.ended_with(_run(agent, job, board))
        finally:
            agent.tidy()
            others = (rendezvous.world.nnodes if rendezvous.world else job.max_nodes) - 1
            _part(board, keeper=listener is not None, others=others)
    except (DistNetworkError, DistStoreError, RendezvousError) as error:
        raise _lost(job, error) from None
    finally:
        shutil.rmtree(errors, ignore_errors=True)


def _members(job: Job, store: Store, board: JobBoard, timeout: float) -> Membership:
    if job.node_rank is None:
        return ElasticMembers(store, job, timeout)
    return FixedMembers(store, board, job, timeout)


def _run(agent: FleetAgent, job: Job, board: JobBoard) -> int:
    try:
        result = agent.run()
        if not result.is_failed():
            with contextlib.suppress(DistNetworkError, DistStoreError):
                board.succeed()  # the keeper may be gone already
            return 0
        if agent.left is not None:  # the others go on without this machine
            warn(agent.left.headline())
            return agent.left.exit_code
    except JobEnded:
        with contextlib.suppress(DistNetworkError, DistStoreError):
            agent.hear()
    except Interrupted as stop:
        if agent.goes_alone(stop):
            warn(f"stopped by {stop.name} (exit code {ASKS_FOR_RESTART}); the others meet again")
            return ASKS_FOR_RESTART
        board.post(_stopped(job, stop))
        raise
    failure = board.first_failure()
    warn(failure.report(job.host, several=job.max_nodes > 1))
    return failure.exit_code


def _part(board: JobBoard, *, keeper: bool, others: int) -> None:
    if others < 1:
        return
    try:
        board.farewell(keeper=keeper, others=others)
    except (DistNetworkError, DistStoreError):
        return  # the keeper is gone already


def _stopped(job: Job, stop: Interrupted) -> Failure:
    return Failure(
        title="the launcher",
        node=job.host,
        exit_code=stop.code,
        time=time.time(),
        message=f"stopped by {stop.name}",
    )


def _lost(job: Job, error: Exception) -> LaunchError:
    host, port = job.master or (job.host, 0)
    advice = "look at what it printed"
    if job.min_nodes != job.max_nodes:
        advice += (
            " and start the job again, which goes on from its last checkpoint. A job survives the "
            "loss of any machine that trains if another one keeps the meeting point (fleetrun "
            "--meeting_point)"
        )
    return LaunchError(
        f"the launcher at {host}:{port} is gone ({type(error).__name__}), where the machines meet, "
        f"so this one has stopped its processes; {advice}",
        code=1,
    )
