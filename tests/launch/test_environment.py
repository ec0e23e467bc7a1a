"""The variables of each process, without starting any."""

import os
from dataclasses import replace

import pytest

from fleetx import PaddleCloudRoleMaker
from fleetx.launch import collective, devices
from fleetx.launch.arguments import Arguments
from fleetx.launch.cluster import Process, collective_world
from fleetx.launch.environment import documented, torch_variables, variables
from fleetx.launch.ports import Ports


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "count", lambda: 4)


@pytest.mark.usefixtures("cards")
def test_a_worker_s_card_is_its_local_rank() -> None:
    with Ports() as ports:
        job = collective.plan(Arguments(gpus="3,1"), {}, ports)
    assert job.world is not None
    for rank, process in enumerate(job.world.local):
        ours = variables(job, job.world, process, attempt=0, environ={})
        assert ours["CUDA_VISIBLE_DEVICES"] == "3,1"
        assert ours["FLAGS_selected_gpus"] == str(rank)
        assert "PADDLE_DISTRI_BACKEND" not in ours
        assert ours["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
        chosen = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
        mine = variables(job, job.world, process, attempt=0, environ=chosen)
        assert mine["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    shared = replace(job, world=collective_world([job.endpoints[:1]], 0))
    assert shared.world is not None
    assert documented(shared, shared.world, shared.world.local[0])["FLAGS_selected_gpus"] == "0,1"


def test_users_threads_are_left_alone() -> None:
    world = collective_world([["127.0.0.1:1"]], 0)
    with Ports() as ports:
        job = collective.plan(Arguments(gpus="none"), {}, ports)
    mine = variables(job, world, world.local[0], attempt=0, environ={"OMP_NUM_THREADS": "7"})
    assert mine["OMP_NUM_THREADS"] == "7"


def test_ranks_continue_over_machines_of_different_size() -> None:
    world = collective_world([["a:1", "a:2"], ["b:1"], ["c:1"]], 1)
    assert world.workers == ("a:1", "a:2", "b:1", "c:1")
    assert world.local == (Process(role="TRAINER", rank=2, local_rank=0, endpoint="b:1"),)
    found = torch_variables(world, world.local[0], master=("a", 9), attempt=1, restarts=3)
    assert (found["RANK"], found["WORLD_SIZE"], found["GROUP_RANK"]) == ("2", "4", "1")


def test_the_launcher_s_process_is_named_to_its_workers() -> None:
    world = collective_world([["127.0.0.1:1"]], 0)
    with Ports() as ports:
        job = collective.plan(Arguments(gpus="none"), {}, ports)
    mine = variables(job, world, world.local[0], attempt=2, environ={})
    assert mine["FLEETX_LAUNCHER_PID"] == str(os.getpid())
    assert mine["PADDLE_RESTART"] == "2"


@pytest.mark.usefixtures("cards")
def test_cards_are_hidden_from_cpu_workers() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "0,1", "FLAGS_selected_gpus": "3"}
    with Ports() as ports:
        job = collective.plan(Arguments(gpus="none"), environ, ports)
    assert job.world is not None
    mine = variables(job, job.world, job.world.local[0], attempt=0, environ=environ)
    assert mine["CUDA_VISIBLE_DEVICES"] == mine["FLAGS_selected_gpus"] == ""


def test_variables_of_another_job_are_not_inherited() -> None:
    environ = {"PADDLE_PSERVERS_IP_PORT_LIST": "a:1", "PADDLE_LOCAL_DEVICE_IDS": "3"}
    with Ports() as ports:
        job = collective.plan(Arguments(gpus="none"), environ, ports)
    assert job.world is not None
    mine = variables(job, job.world, job.world.local[0], attempt=0, environ=environ)
    seen = environ | mine  # as a process is started
    assert seen["PADDLE_PSERVERS_IP_PORT_LIST"] == seen["PADDLE_LOCAL_DEVICE_IDS"] == ""
    maker = PaddleCloudRoleMaker(is_collective=True, environ=seen)
    assert maker.identity().is_collective
