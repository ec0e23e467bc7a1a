"""Splitting MPI ranks into pairs, and what is said when mpi4py is of no use."""

import sys
from collections.abc import Iterator

import pytest

from fleetx.roles import Role, mpi
from fleetx.roles.mpi import MPIWorkers, MPIWorld, pair_up

ENDPOINTS = ("a:1", "a:2", "a:3", "a:4", "b:1", "b:2")
RANKS = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    mpi.mpi_world.cache_clear()
    yield
    mpi.mpi_world.cache_clear()


def test_even_ranks_serve_and_odd_ranks_train() -> None:
    found = [
        pair_up(MPIWorld(rank=rank, machines=tuple("aaaabb"), endpoints=ENDPOINTS))
        for rank in range(6)
    ]
    assert [one.role for one in found] == [Role.SERVER, Role.WORKER] * 3
    assert [one.index for one in found] == [0, 0, 1, 1, 2, 2]
    assert {one.server_endpoints for one in found} == {("a:1", "a:3", "b:1")}
    assert {one.worker_endpoints for one in found} == {("a:2", "a:4", "b:2")}
    assert [one.local_rank for one in found] == [0, 0, 1, 1, 0, 0]
    assert {(one.worker_num, one.node_num, one.rendezvous) for one in found} == {(3, 2, "a:2")}


def test_an_odd_number_of_ranks_forms_no_pairs() -> None:
    with pytest.raises(ValueError, match=r"which 3 ranks cannot form; .* mpirun -n 4"):
        pair_up(MPIWorld(rank=0, machines=("a",) * 3, endpoints=ENDPOINTS[:3]))


def test_without_mpi4py_the_remedies_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ValueError, match=r"pip install 'fleetx\[mpi\]', or set MASTER_ADDR"):
        MPIWorkers(environ=RANKS).identity()


def test_mpi4py_of_another_mpi_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    lone = MPIWorld(rank=0, machines=("a",), endpoints=("a:1",))
    monkeypatch.setattr(mpi, "mpi_world", lambda: lone)
    with pytest.raises(ValueError, match="mpirun started 2 ranks, but mpi4py sees 1"):
        MPIWorkers(environ=RANKS).identity()
    monkeypatch.undo()


def test_local_ranks_are_read() -> None:
    local = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    place = {"MASTER_ADDR": "m", "MASTER_PORT": "1"}
    found = MPIWorkers(environ=RANKS | local | place).identity()
    assert (found.local_rank, found.local_size, found.worker_endpoints) == (1, 2, ())
