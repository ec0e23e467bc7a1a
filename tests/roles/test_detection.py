"""Which launcher is found, in which order, and what each of them says."""

from typing import Any

import pytest

from fleetx import roles
from fleetx.roles import Identity, detect

MASTER = {"MASTER_ADDR": "m", "MASTER_PORT": "29500"}
TORCH = {"RANK": "1", "WORLD_SIZE": "2", **MASTER}
AGENT = {**TORCH, "TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
PADDLE = {"PADDLE_TRAINER_ID": "2", "PADDLE_TRAINER_ENDPOINTS": "a:1,a:2,b:1"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}
STEP = {**BATCH, "SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_NODELIST": "n[3-4]"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "6", **MASTER}
PMI = {"PMI_RANK": "3", "PMI_SIZE": "6", **MASTER}
FLEETRUN = {
    **AGENT,
    "FLEETX_LAUNCHER": "fleetrun",
    "PADDLE_TRAINER_ID": "1",
    "PADDLE_TRAINERS_NUM": "2",
}
VOLCANO = {"VC_TASK_INDEX": "1", "VC_WORKER_HOSTS": "w0,w1"}
INDEXED = {"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "4", **MASTER}


def find(environ: dict[str, str]) -> Identity:
    return detect(environ, is_collective=True).identity()


@pytest.mark.parametrize(
    ("environ", "source", "place"),
    [
        ({}, "one process", (0, 1)),
        (POD, "one process", (0, 1)),
        ({"WORLD_SIZE": "1", "LOCAL_RANK": "0"}, "one process", (0, 1)),
        ({"TRAINING_ROLE": "TRAINER"}, "one process", (0, 1)),
        ({"RANK": "", "WORLD_SIZE": " "}, "one process", (0, 1)),
        (FLEETRUN, "fleetrun", (1, 2)),
        (PADDLE, "PaddleCloud", (2, 3)),
        (AGENT, "torchrun", (1, 2)),
        (TORCH, "RANK and WORLD_SIZE", (1, 2)),
        (TORCH | POD, "Kubernetes PyTorchJob", (1, 2)),
        (VOLCANO | POD, "Volcano job on Kubernetes", (1, 2)),
        (INDEXED | POD, "Kubernetes Indexed Job", (1, 4)),
        (INDEXED | {"WORLD_SIZE": "1"}, "Kubernetes Indexed Job", (0, 1)),
        (STEP, "SLURM job 7", (5, 8)),
        (STEP | {"SLURM_STEP_NUM_TASKS": "1"}, "one process", (0, 1)),
        (OPENMPI, "OpenMPI", (3, 6)),
        (PMI, "MPI", (3, 6)),
        # two at once: the inner launcher knows better
        (FLEETRUN | STEP | POD, "fleetrun", (1, 2)),
        (AGENT | PADDLE, "torchrun", (1, 2)),
        (AGENT | STEP, "torchrun", (1, 2)),
        (AGENT | INDEXED | POD | {"WORLD_SIZE": "2"}, "torchrun", (1, 2)),
        (PADDLE | POD, "PaddleCloud", (2, 3)),
        (PADDLE | STEP, "PaddleCloud", (2, 3)),
        (TORCH | STEP, "RANK and WORLD_SIZE", (1, 2)),
        (STEP | {"WORLD_SIZE": "8"}, "SLURM job 7", (5, 8)),
        (OPENMPI | STEP, "OpenMPI", (3, 6)),
        (OPENMPI | POD | {"JOB_COMPLETION_INDEX": "0"}, "OpenMPI", (3, 6)),
        (PMI | STEP, "SLURM job 7", (5, 8)),
        (PMI | STEP | {"MPI_LOCALRANKID": "1"}, "MPI", (3, 6)),
    ],
)
def test_who_is_found(environ: dict[str, str], source: str, place: tuple[int, int]) -> None:
    found = find(environ)
    assert found.source.partition(" (")[0] == source
    assert (found.index, found.worker_num) == place
    assert found.is_collective
    assert found.is_worker


def test_batch_shell_is_one_process_and_says_how_to_use_the_rest() -> None:
    assert find(BATCH).source == (
        "one process (in SLURM job 7; start the script with srun to use its 8 tasks)"
    )


@pytest.mark.parametrize(
    ("environ", "complaint"),
    [
        ({"RANK": "0"}, "WORLD_SIZE is not set, but RANK is set"),
        ({"WORLD_SIZE": "2"}, "RANK is not set, but WORLD_SIZE is set"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR is not set, but WORLD_SIZE=2 workers"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "m"}, "MASTER_PORT is not set"),
        (TORCH | {"RANK": "2"}, "RANK=2 does not fit WORLD_SIZE=2; set RANK to a number from 0 to"),
        (TORCH | {"RANK": "one"}, "RANK='one' is not a number"),
        (TORCH | {"RANK": "-1"}, "RANK='-1' is not a number"),
        (TORCH | {"MASTER_PORT": "99999"}, "MASTER_PORT: 'm:99999' is not an endpoint"),
        (AGENT | {"LOCAL_RANK": "2"}, "LOCAL_RANK=2 does not fit LOCAL_WORLD_SIZE=2"),
        (TORCH | {"LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK is not set"),
        (TORCH | {"FLAGS_selected_gpus": "gpu0"}, "FLAGS_selected_gpus='gpu0' is not a list"),
        (
            INDEXED | {"WORLD_SIZE": ""},
            "a pod cannot see how many pods its Job has; set WORLD_SIZE",
        ),
        (INDEXED | {"MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
        (INDEXED | {"JOB_COMPLETION_INDEX": "4"}, "JOB_COMPLETION_INDEX=4 does not fit WORLD_SIZE"),
        (VOLCANO | {"VC_TASK_INDEX": "2"}, "VC_TASK_INDEX=2 does not fit the 2 hosts"),
        (VOLCANO | {"VC_MASTER_HOSTS": "m0"}, "add Volcano's pytorch plugin"),
        (STEP | {"SLURM_PROCID": "8"}, "SLURM_PROCID=8 does not fit SLURM_NTASKS=8"),
        (STEP | {"SLURM_LOCALID": ""}, "SLURM_LOCALID is not set"),
        (STEP | {"SLURM_NODELIST": ""}, "SLURM_NODELIST is not set"),
        (STEP | {"WORLD_SIZE": "4"}, "WORLD_SIZE=4 contradicts SLURM_NTASKS=8"),
        (OPENMPI | {"OMPI_COMM_WORLD_SIZE": ""}, "OMPI_COMM_WORLD_SIZE is not set"),
        (PMI | {"PMI_RANK": "6"}, "PMI_RANK=6 does not fit PMI_SIZE=6"),
        (FLEETRUN | {"WORLD_SIZE": "4"}, "WORLD_SIZE=4 contradicts PADDLE_TRAINERS_NUM=2"),
    ],
)
def test_half_set_and_contradictory(environ: dict[str, str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        find(environ)


@pytest.mark.parametrize(
    ("environ", "where"),
    [
        (FLEETRUN, "env"),
        (AGENT, "env"),
        (TORCH, "m:29500"),
        (PADDLE, "a:1"),
        (PADDLE | MASTER, "m:29500"),
        (INDEXED, "m:29500"),
        (VOLCANO, "w0:29500"),
        (VOLCANO | {"MASTER_PORT": "1"}, "w0:1"),
        (STEP, "n3:12007"),
        (STEP | {"SLURM_STEP_ID": "1"}, "n3:19926"),
        (STEP | MASTER, "m:29500"),
        (OPENMPI, "m:29500"),
        ({}, ""),
    ],
)
def test_where_workers_meet(environ: dict[str, str], where: str) -> None:
    assert find(environ).rendezvous == where


@pytest.mark.parametrize("environ", [{}, {"RANK": "0", "WORLD_SIZE": "1"}, POD])
def test_one_process_may_run_a_script_for_servers(environ: dict[str, str]) -> None:
    found = detect(environ, is_collective=False).identity()
    assert (found.is_collective, found.worker_num, found.server_endpoints) == (False, 1, ())


@pytest.mark.parametrize("environ", [AGENT, STEP, FLEETRUN, PADDLE, INDEXED])
def test_workers_without_servers_are_no_job_for_servers(environ: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"no server; call fleet.init\(is_collective=True\)"):
        detect(environ, is_collective=False).identity()


def test_mpirun_without_collective_makes_pairs() -> None:
    assert isinstance(detect(OPENMPI, is_collective=False), roles.MPISymetricRoleMaker)
    alone = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    assert detect(alone, is_collective=False).identity().worker_num == 1


@pytest.mark.parametrize(
    ("environ", "device"),
    [
        (FLEETRUN, None),
        (FLEETRUN | {"FLAGS_selected_gpus": "3"}, 3),
        ({"FLAGS_selected_gpus": "2,3"}, 2),
    ],
)
def test_device_of_the_launcher(environ: dict[str, str], device: int | None) -> None:
    assert find(environ).device_index == device


def test_paddle_cloud_role_maker_asks_the_same_table() -> None:
    maker = roles.PaddleCloudRoleMaker(is_collective=True, environ=AGENT)
    assert maker.identity() == find(AGENT)
    with pytest.raises(TypeError, match="is not a bool"):
        roles.PaddleCloudRoleMaker(is_collective=1)  # type: ignore[arg-type]
    unknown: dict[str, Any] = {"path": "x"}
    with pytest.raises(TypeError, match="path"):
        roles.PaddleCloudRoleMaker(**unknown)
