"""Starting, asking and stopping in one process."""

import logging
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist

import fleetx.roles as fleet

QUERIES = [
    "worker_num",
    "worker_index",
    "worker_endpoints",
    "server_num",
    "server_index",
    "server_endpoints",
    "is_worker",
    "is_server",
    "is_coordinator",
    "is_first_worker",
    "barrier_worker",
    "node_num",
    "local_rank",
    "local_device_ids",
    "world_device_ids",
    "rank",
    "nranks",
    "world_size",
    "device",
    "identity",
]
SERVERS = ["127.0.0.1:6001", "127.0.0.1:6002"]


def server_job(**change: Any) -> fleet.UserDefinedRoleMaker:
    job = {"current_id": 0, "worker_num": 1, "server_endpoints": SERVERS}
    return fleet.UserDefinedRoleMaker(**job | change)


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_before_start_says_so(query: str) -> None:
    with pytest.raises(fleet.NotInitializedError) as raised:
        getattr(fleet, query)()
    assert str(raised.value) == (
        f"fleet.{query}() was called before fleet.init(); call fleet.init(is_collective=True) first"
    )
    assert isinstance(raised.value, RuntimeError)


@pytest.mark.parametrize(
    ("call", "query"),
    [
        (lambda: fleet.util.all_reduce(1), "util.all_reduce"),
        (lambda: fleet.util.all_gather(1), "util.all_gather"),
        (fleet.util.barrier, "util.barrier"),
        (lambda: fleet.util.get_file_shard([]), "util.get_file_shard"),
        (lambda: fleet.util.print_on_rank("", 0), "util.print_on_rank"),
        (lambda: fleet.mesh({"dp": 1}), "mesh"),
    ],
)
def test_a_collective_before_start_says_so(call: Any, query: str) -> None:
    with pytest.raises(fleet.NotInitializedError, match=rf"fleet\.{query}\(\) was called before"):
        call()


def test_one_process() -> None:
    me = fleet.start(is_collective=True)
    assert (fleet.worker_num(), fleet.worker_index(), fleet.is_first_worker()) == (1, 0, True)
    assert (fleet.rank(), fleet.nranks(), fleet.world_size()) == (0, 1, 1)
    assert (fleet.node_num(), fleet.local_rank()) == (1, 0)
    assert fleet.worker_endpoints() == ["127.0.0.1:6170"]
    assert fleet.worker_endpoints(to_string=True) == "127.0.0.1:6170"
    assert (fleet.server_num(), fleet.server_endpoints(), fleet.is_server()) == (0, [], False)
    assert not fleet.is_coordinator()
    assert fleet.identity() is me
    assert dist.get_world_size() == 1
    fleet.barrier_worker()
    assert fleet.mesh({"dp": 1, "tp": 1}).mesh_dim_names == ("dp", "tp")
    with pytest.raises(RuntimeError, match="asked by worker 0, which is no server"):
        fleet.server_index()


def test_stop_forgets_and_destroys_what_start_made() -> None:
    fleet.start(is_collective=True)
    fleet.stop()
    assert not dist.is_initialized()
    with pytest.raises(fleet.NotInitializedError):
        fleet.identity()
    fleet.stop()


def test_start_again() -> None:
    me = fleet.start(is_collective=True)
    assert fleet.start(is_collective=True) is me
    assert fleet.start(fleet.PaddleCloudRoleMaker(is_collective=True)) is me
    with pytest.raises(RuntimeError, match="it cannot become worker 0 of 1 in a parameter-server"):
        fleet.start()


def test_a_group_of_the_script_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    me = fleet.start(is_collective=True)
    assert me.source == "the script's own process group"
    assert fleet.start(is_collective=True) is me
    fleet.stop()
    assert dist.is_initialized()
    dist.destroy_process_group()


def test_a_fake_world_has_no_collectives() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=64)
    try:
        assert fleet.start(is_collective=True).worker_num == 64
        assert fleet.mesh({"dp": 8, "tp": 8}).shape == (8, 8)
        with pytest.raises(RuntimeError, match="needs a group of the 64 workers"):
            fleet.barrier_worker()
        with pytest.raises(RuntimeError, match="the endpoints of the workers are not known"):
            fleet.worker_endpoints()
    finally:
        fleet.stop()
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("role_maker", "is_collective", "error", "complaint"),
    [
        (None, 1, TypeError, "is_collective=1"),
        ("worker", True, TypeError, "role_maker='worker'"),
        (fleet.PaddleCloudRoleMaker, True, TypeError, "is no role maker"),
        (server_job(), True, ValueError, "contradicts its role maker"),
    ],
)
def test_wrong_arguments(
    role_maker: Any, is_collective: Any, error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        fleet.start(role_maker, is_collective=is_collective)
    assert not dist.is_initialized()


def test_server() -> None:
    fleet.start(server_job(current_id=1, role=fleet.Role.SERVER, worker_num=2))
    assert (fleet.is_server(), fleet.is_worker(), fleet.is_first_worker()) == (True, False, False)
    assert (fleet.server_index(), fleet.server_num(), fleet.worker_num()) == (1, 2, 2)
    assert fleet.server_endpoints(to_string=True) == "127.0.0.1:6001,127.0.0.1:6002"
    assert fleet.device() == torch.device("cpu")
    assert not dist.is_initialized()
    fleet.util.print_on_rank("servers print nothing", 0)
    for call in (fleet.barrier_worker, lambda: fleet.util.all_reduce(1), fleet.rank):
        with pytest.raises(RuntimeError, match="server 1"):
            call()
    with pytest.raises(RuntimeError, match=r"worker_endpoints=\[...\]"):
        fleet.worker_endpoints()
    with pytest.raises(RuntimeError, match=r"worker_endpoints=\[...\]"):
        fleet.node_num()


def test_worker_without_peers_to_meet_counts_machines_from_endpoints() -> None:
    endpoints = ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1"]
    role = fleet.Role.SERVER
    fleet.start(server_job(role=role, worker_num=3, worker_endpoints=endpoints))
    assert fleet.node_num() == 2
    assert fleet.worker_endpoints() == endpoints


def test_workers_that_cannot_meet_are_told_instead_of_getting_local_results() -> None:
    fleet.start(server_job(current_id=1, worker_num=2))
    assert not dist.is_initialized()
    for call in (
        fleet.barrier_worker,
        lambda: fleet.all_reduce(1),
        lambda: fleet.util.all_gather(1),
    ):
        with pytest.raises(RuntimeError, match=r"group of the 2 workers, .*pass worker_endpoints="):
            call()


def test_only_worker_of_servers() -> None:
    fleet.start(server_job())
    assert fleet.all_reduce([1, 2]).tolist() == [1, 2]
    assert fleet.split_files(["a", "b"]) == ["a", "b"]
    assert fleet.identity().server_endpoints == tuple(SERVERS)


def test_what_was_found_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fleetx"):
        fleet.start(is_collective=True)
        fleet.start(is_collective=True)
        fleet.stop()
        fleet.start(server_job())
    assert caplog.messages[0].startswith("fleetx: one process; backend ")
    assert "1 worker and 2 servers on 1 node, found by the script" in caplog.messages[1]
    assert len(caplog.messages) == 2


def test_the_pure_part_loads_no_torch() -> None:
    code = (
        "import sys, fleetx.roles.detection, fleetx.roles.user_defined; "
        "from fleetx.roles import detect; detect({}, is_collective=True).identity(); "
        "print('torch' in sys.modules or 'mpi4py' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'wrker_num'"):
        getattr(fleet, "wrker_num")  # noqa: B009
    assert all(getattr(fleet, name) is not None for name in fleet.__all__)
