"""What PaddleCloud, Kubernetes and MPI say about a job."""

import pytest

from fleetx.launch import collective, platforms
from fleetx.launch.arguments import Arguments
from fleetx.launch.errors import LaunchError
from fleetx.launch.ports import Ports

CLOUD = {
    "PADDLE_TRAINERS": "127.0.0.1,127.0.0.2",
    "POD_IP": "127.0.0.2",
    "PADDLE_TRAINER_ID": "1",
    "PADDLE_PORT": "6270",
}


def test_paddlecloud_gives_the_cluster() -> None:
    arguments, lines = platforms.complete(Arguments(use_paddlecloud=True, gpus="none"), CLOUD)
    with Ports() as ports:
        job = collective.plan(arguments, CLOUD, ports)
    assert job.world is not None
    assert job.world.workers == ("127.0.0.1:6270", "127.0.0.2:6270")
    assert (job.node_rank, job.master) == (1, ("127.0.0.1", 6269))
    assert "PADDLE_TRAINERS" in lines[0]


@pytest.mark.parametrize("name", sorted(CLOUD))
def test_a_missing_cloud_variable_is_named(name: str) -> None:
    environ = {key: value for key, value in CLOUD.items() if key != name}
    with pytest.raises(LaunchError, match=f"variable {name}, which is not set"):
        platforms.complete(Arguments(use_paddlecloud=True), environ)


def test_the_platform_may_choose_every_port() -> None:
    environ = CLOUD | {"DISTRIBUTED_TRAINER_ENDPOINTS": "127.0.0.1:7001,127.0.0.2:7002"}
    arguments, _ = platforms.complete(Arguments(use_paddlecloud=True, gpus="none"), environ)
    with Ports() as ports:
        job = collective.plan(arguments, environ, ports)
    assert job.world is not None
    assert job.world.workers == ("127.0.0.1:7001", "127.0.0.2:7002")
    assert job.master == ("127.0.0.1", 7000)
    with Ports() as ports, pytest.raises(LaunchError, match=r"gives 127\.0\.0\.1 1 ports"):
        collective.plan(Arguments(**vars(arguments) | {"nproc_per_node": 2}), environ, ports)


def test_contradictions_of_the_platform_are_shown() -> None:
    _, lines = platforms.complete(Arguments(use_paddlecloud=True, started_port=7000), CLOUD)
    assert "--started_port 7000 wins over PADDLE_PORT=6270" in lines
    environ = {"PADDLE_NNODES": "4"}
    arguments, lines = platforms.complete(Arguments(nnodes="2"), environ)
    assert arguments.nnodes == "2"
    assert lines == ("--nnodes 2 wins over PADDLE_NNODES=4",)


def test_variables_of_an_outer_fleetrun_are_not_the_platform_s() -> None:
    environ = {"PADDLE_NNODES": "2", "PADDLE_MASTER": "a:1", "FLEETX_LAUNCHER": "fleetrun"}
    assert platforms.complete(Arguments(), environ) == (Arguments(), ())


def test_nesting_in_mpirun_is_refused() -> None:
    environ = {"OMPI_COMM_WORLD_SIZE": "2"}
    with pytest.raises(LaunchError, match=r"mpirun -n 2 python train\.py"):
        platforms.complete(Arguments(), environ)
    one_each = Arguments(nnodes="2", master="a:1")
    assert platforms.complete(one_each, environ) == (one_each, ())
    by_variables = environ | {"PADDLE_NNODES": "2", "PADDLE_MASTER": "a:1"}
    assert platforms.complete(Arguments(), by_variables)[0] == one_each
