"""The variables each process is started with."""

import os
from collections.abc import Mapping

from fleetx.launch.addresses import split_endpoint
from fleetx.launch.cluster import Job, Process, World
from fleetx.roles.card_queues import MOST as MOST_QUEUES
from fleetx.roles.card_queues import VARIABLE as QUEUES

_OF_ONE_JOB = ("FLAGS_selected_gpus", "PADDLE_LOCAL_DEVICE_IDS", "PADDLE_PSERVERS_IP_PORT_LIST")
"""Variables of which a process must not see another job's value."""


def documented(job: Job, world: World, process: Process) -> dict[str, str]:
    """The variables of the printed table: who the process is and where the others are."""
    table = {
        "PADDLE_CURRENT_ENDPOINT": process.endpoint,
        "PADDLE_TRAINERS_NUM": str(len(world.workers)),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(world.workers),
    }
    if job.cards:
        table["FLAGS_selected_gpus"] = _cards(job, world, process)
    if process.role == "TRAINER":
        table["PADDLE_TRAINER_ID"] = str(process.rank)
    if world.servers:
        table |= {
            "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(world.servers),
            "TRAINING_ROLE": process.role,
        }
    return table


def variables(
    job: Job, world: World, process: Process, *, attempt: int, environ: Mapping[str, str]
) -> dict[str, str]:
    """Everything of ours, `documented` included; torch's own variables are in `torch_variables`."""
    host, port = split_endpoint(process.endpoint, "endpoint")
    ours = documented(job, world, process) | {
        "TRAINING_ROLE": process.role,
        "PADDLE_TRAINING_ROLE": process.role,
        "PADDLE_RANK_IN_NODE": str(process.local_rank),
        "PADDLE_LOCAL_RANK": str(process.local_rank),
        "PADDLE_LOCAL_SIZE": str(world.local_workers),
        "PADDLE_GLOBAL_SIZE": str(len(world.workers)),
        "PADDLE_NNODES": str(world.nnodes),
        "PADDLE_PORT": str(port),
        "POD_IP": host,
        "PADDLE_RESTART": str(attempt),
        "FLEETX_LAUNCHER": "fleetrun",
        "FLEETX_LAUNCHER_PID": str(os.getpid()),
        "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS") or _threads(world),
    }
    if process.role == "TRAINER":
        ours["PADDLE_GLOBAL_RANK"] = str(process.rank)
    elif job.metrics_port is not None:
        ours["FLEETX_PS_METRICS_PORT"] = str(job.metrics_port + process.local_rank)
    if job.cards:
        ours["CUDA_VISIBLE_DEVICES"] = ",".join(job.cards)
        # A script may use its card before fleet.init(), which would be too late to say this.
        ours[QUEUES] = environ.get(QUEUES) or str(MOST_QUEUES)
    else:
        ours["PADDLE_DISTRI_BACKEND"] = "gloo"
    if job.hide_cards:
        ours["CUDA_VISIBLE_DEVICES"] = ""
    return ours if job.is_parameter_server else _without_inherited(ours, environ)


def _without_inherited(ours: dict[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Empties what another job or a platform has left and this job does not set."""
    return {name: "" for name in _OF_ONE_JOB if name in environ} | ours


def torch_variables(
    world: World, process: Process, *, master: tuple[str, int], attempt: int, restarts: int
) -> dict[str, str]:
    """What `torch.distributed` reads; a server belongs to no process group and gets no rank."""
    address, port = master
    shared = {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "PADDLE_MASTER": f"{address}:{port}",
        "WORLD_SIZE": str(len(world.workers)),
        "TORCHELASTIC_RUN_ID": "fleetrun",
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(restarts),
        # The launcher keeps the store, a fresh one for every attempt: no port is chosen twice
        # and no key of a failed attempt is found by the next one.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    if process.role == "PSERVER":
        return shared
    return shared | {
        "RANK": str(process.rank),
        "LOCAL_RANK": str(process.local_rank),
        "LOCAL_WORLD_SIZE": str(world.local_workers),
        "GROUP_RANK": str(world.node_rank),
        "GROUP_WORLD_SIZE": str(world.nnodes),
        "ROLE_NAME": "trainer",
        "ROLE_RANK": str(process.rank),
        "ROLE_WORLD_SIZE": str(len(world.workers)),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


def _cards(job: Job, world: World, process: Process) -> str:
    # Strided, so that card LOCAL_RANK always belongs to the worker of that local rank.
    indexes = range(process.local_rank, len(job.cards), world.local_workers)
    return ",".join(str(index) for index in indexes)


def _threads(world: World) -> str:
    return str(max(1, (os.cpu_count() or 1) // max(1, len(world.local))))
