"""Who runs where: devices, platforms, variables and the printed table, without processes."""

import json
import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fleetx.launch import banner, collective, devices, platforms
from fleetx.launch.arguments import Arguments
from fleetx.launch.cluster import Process, collective_world
from fleetx.launch.environment import documented, torch_variables, variables
from fleetx.launch.errors import LaunchError
from fleetx.launch.failure import Failure, Watch, first
from fleetx.launch.ports import Ports

CLOUD = {
    "PADDLE_TRAINERS": "127.0.0.1,127.0.0.2",
    "POD_IP": "127.0.0.2",
    "PADDLE_TRAINER_ID": "1",
    "PADDLE_PORT": "6270",
}


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "count", lambda: 4)


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize(
    ("gpus", "nproc", "limit", "expected"),
    [
        (None, None, None, (("0", "1", "2", "3"), 4)),
        (None, 2, None, (("0", "1"), 2)),
        (None, None, "2,3", (("2", "3"), 2)),
        ("3,1", None, None, (("3", "1"), 2)),
        ("3", None, "2,3", (("3",), 1)),
        ("0,1,2,3", 2, None, (("0", "1", "2", "3"), 2)),
        ("none", 3, None, ((), 3)),
        (None, 2, "", ((), 2)),
        (None, None, "-1", ((), 1)),
        (None, None, "0,9,1", (("0",), 1)),
    ],
)
def test_cards_are_chosen(
    gpus: str | None, nproc: int | None, limit: str | None, expected: tuple[tuple[str, ...], int]
) -> None:
    environ = {} if limit is None else {"CUDA_VISIBLE_DEVICES": limit}
    assert devices.choose(gpus, nproc, environ) == expected


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize(
    ("gpus", "nproc", "limit", "words"),
    [
        ("4", None, None, "asks for card 4, but this machine shows only 0,1,2,3"),
        ("0", None, "2,3", "CUDA_VISIBLE_DEVICES is '2,3'"),
        ("0,0", None, None, "names 0 twice"),
        ("0,1,2", 2, None, "does not divide the 3 cards"),
        (None, 5, None, "more than the 4 cards"),
    ],
)
def test_impossible_cards_are_refused(
    gpus: str | None, nproc: int | None, limit: str | None, words: str
) -> None:
    environ = {} if limit is None else {"CUDA_VISIBLE_DEVICES": limit}
    with pytest.raises(LaunchError, match=words):
        devices.choose(gpus, nproc, environ)


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
    with pytest.raises(LaunchError, match="mpirun -n 2 python train.py"):
        platforms.complete(Arguments(), environ)
    one_each = Arguments(nnodes="2", master="a:1")
    assert platforms.complete(one_each, environ) == (one_each, ())


def test_the_table_is_laid_out_as_documented() -> None:
    text = banner.table({"PADDLE_TRAINER_ID": "0", "PADDLE_TRAINER_ENDPOINTS": "x" * 100})
    lines = text.splitlines()
    assert lines[0] == "    +" + "=" * 87 + "+"
    assert lines[1] == f"    |{'Distributed Envs':>40}{' ' * 22}Value{' ' * 20}|"
    assert {len(line) for line in lines} == {93}
    assert "... " + "x" * 41 in text


def test_the_configuration_is_sorted() -> None:
    lines = banner.configuration(Arguments(gpus="0,1", script="t.py")).splitlines()
    assert lines[0] == "-----------  Configuration Arguments -----------"
    assert lines[-1] == "-" * 48
    assert "gpus: 0,1" in lines
    assert lines[1:-1] == sorted(lines[1:-1])


def test_held_ports_are_ours_but_usable() -> None:
    with Ports() as ports, Ports() as others:
        mine = {ports.free("127.0.0.1") for _ in range(20)}
        assert mine.isdisjoint(others.free("127.0.0.1") for _ in range(20))
        with socket.socket() as worker:
            worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            worker.bind(("127.0.0.1", mine.pop()))
            worker.listen()


def workers(number: int) -> tuple[Process, ...]:
    return tuple(
        Process(role="TRAINER", rank=rank, local_rank=rank, endpoint="") for rank in range(number)
    )


def write_error(path: Path, *, at: float, message: str, code: int = 1) -> None:
    extra = {"time": at, "timestamp": str(int(at)), "exit_code": code}
    path.write_text(json.dumps({"message": {"message": message, "extraInfo": extra}}))


def test_a_killed_process_precedes_the_exception_it_causes(tmp_path: Path) -> None:
    files = [tmp_path / str(rank) for rank in range(3)]
    watch = Watch(workers(3), files)
    assert watch.look({0: None, 1: None, 2: None}) is None
    time.sleep(0.01)
    write_error(files[0], at=time.time(), message="ConnectionError: gone")
    found = watch.look({0: 1, 1: -9, 2: None})
    assert found is not None
    assert found[0].rank == 1
    assert (found[1].exit_code, found[1].message) == (137, "killed by SIGKILL")


def test_the_earliest_exception_wins_even_of_a_process_still_ending(tmp_path: Path) -> None:
    files = [tmp_path / str(rank) for rank in range(2)]
    watch = Watch(workers(2), files)
    now = time.time()
    write_error(files[1], at=now + 0.001, message="ValueError: cause", code=3)
    assert watch.look({0: None, 1: None}) is None, "it may still end by itself"
    write_error(files[0], at=now + 0.002, message="ConnectionError: consequence")
    found = watch.look({0: 1, 1: None})
    assert found is not None
    assert (found[0].rank, found[1].exit_code) == (1, 3)


def test_a_failed_script_may_not_hang(tmp_path: Path) -> None:
    file = tmp_path / "0"
    write_error(file, at=time.time() - 60, message="ValueError: long ago")
    found = Watch(workers(1), [file]).look({0: None})
    assert found is not None
    assert found[1].message == "ValueError: long ago"


def test_good_endings_are_counted(tmp_path: Path) -> None:
    watch = Watch(workers(2), [tmp_path / "0", tmp_path / "1"])
    assert watch.look({0: 0, 1: None}) is None
    assert watch.finished("TRAINER") == 1
    assert watch.look({0: 0, 1: 0}) is None
    assert watch.finished("TRAINER") == 2


def test_a_failure_travels_and_tells_where() -> None:
    late = Failure(title="rank 0", node="a", exit_code=1, time=2.0, message="late")
    early = replace(late, title="rank 1", node="b", time=1.0, log="log/x", lines=("end",))
    assert first([late, early]) == early
    assert Failure.from_json(early.to_json()) == early
    text = early.report("a", several=True)
    assert text.startswith("rank 1 on b failed first (exit code 1) at ")
    assert text.endswith("last lines of log/x:\n    end\nthe log is on b")
    assert "on b" not in early.report("b", several=False)


def test_torch_s_version_decides_without_its_import(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(devices, "_count_hardware", lambda: 8)
    usable = torch.version.cuda is not None or torch.version.hip is not None
    assert devices.count() == (8 if usable else 0)


def test_the_launcher_s_process_is_named_to_its_workers() -> None:
    world = collective_world([["127.0.0.1:1"]], 0)
    with Ports() as ports:
        job = collective.plan(Arguments(gpus="none"), {}, ports)
    mine = variables(job, world, world.local[0], attempt=2, environ={})
    assert mine["FLEETX_LAUNCHER_PID"] == str(os.getpid())
    assert mine["PADDLE_RESTART"] == "2"
