"""Role makers spelled out by the script: both forms, and every check."""

from typing import Any

import pytest

from fleetx.roles import Role, UserDefinedCollectiveRoleMaker, UserDefinedRoleMaker

SERVERS = ["127.0.0.1:6001", "127.0.0.1:6002"]
WORKERS = ["127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003"]
JOB: dict[str, Any] = {"worker_num": 3, "server_endpoints": SERVERS, "environ": {"HOME": "/"}}


def test_the_example_of_the_documents() -> None:
    found = UserDefinedRoleMaker(
        current_id=0, role=Role.WORKER, worker_num=3, server_endpoints=SERVERS
    ).identity()
    assert (found.role, found.index, found.worker_num) == (Role.WORKER, 0, 3)
    assert found.server_endpoints == tuple(SERVERS)
    assert not found.is_collective
    assert found.rendezvous == ""


def test_both_forms_by_position() -> None:
    old = UserDefinedRoleMaker(1, Role.SERVER, 3, SERVERS).identity()
    new = UserDefinedRoleMaker(False, False, current_id=1, role=Role.SERVER, **JOB).identity()
    assert old == new


def test_collective() -> None:
    maker = UserDefinedRoleMaker(is_collective=True, current_id=2, worker_endpoints=WORKERS)
    found = maker.identity()
    assert (found.index, found.worker_num, found.is_collective) == (2, 3, True)
    assert found.is_worker
    assert found.rendezvous == WORKERS[0]
    assert UserDefinedCollectiveRoleMaker(2, WORKERS).identity() == found


def test_workers_meet_at_the_first_endpoint_or_at_the_master() -> None:
    assert UserDefinedRoleMaker(**JOB, worker_endpoints=WORKERS).identity().rendezvous == WORKERS[0]
    master = {"MASTER_ADDR": "m", "MASTER_PORT": "1"}
    assert UserDefinedRoleMaker(**JOB | {"environ": master}).identity().rendezvous == "m:1"


@pytest.mark.parametrize(
    ("change", "error", "complaint"),
    [
        ({"server_endpoints": None}, TypeError, "server_endpoints=None is not a list"),
        ({"server_endpoints": "a:1"}, TypeError, "server_endpoints='a:1' is not a list"),
        ({"server_endpoints": [1]}, TypeError, "server_endpoints holds 1, which is not a string"),
        ({"server_endpoints": []}, ValueError, "server_endpoints is empty"),
        ({"server_endpoints": ["a:1", "a:1"]}, ValueError, "a:1 is listed more than once"),
        ({"server_endpoints": ["a"]}, ValueError, "'a' is not an endpoint"),
        ({"role": 7}, TypeError, "role=7 is not a Role"),
        ({"role": "WORKER"}, TypeError, "role='WORKER' is not a Role"),
        ({"role": True}, TypeError, "role=True is not a Role"),
        ({"role": Role.HETER_WORKER}, ValueError, "role HETER_WORKER does not exist"),
        ({"current_id": "0"}, TypeError, "current_id='0' is not an int"),
        ({"current_id": -1}, ValueError, "current_id=-1 is too small"),
        (
            {"current_id": 2, "role": Role.SERVER},
            ValueError,
            "current_id=2 does not fit role=SERVER",
        ),
        ({"current_id": 3}, ValueError, "current_id=3 does not fit role=WORKER with 3"),
        ({"worker_num": 2.0}, TypeError, "worker_num=2.0 is not an int"),
        ({"worker_num": 0}, ValueError, "worker_num=0 is too small; pass 1 or more"),
        ({"worker_endpoints": WORKERS[:2]}, ValueError, "worker_num=3 contradicts the 2 worker"),
        ({"is_collective": 1}, TypeError, "is_collective=1 is not a bool"),
        ({"is_collective": True}, ValueError, "has no servers, but server_endpoints is given"),
        ({"init_gloo": True}, ValueError, "pass worker_endpoints"),
        ({"server_endpoint": []}, TypeError, "did you mean 'server_endpoints'?"),
        ({"zzz": []}, TypeError, "known: current_id, environ"),
    ],
)
def test_complaints(change: dict[str, Any], error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        UserDefinedRoleMaker(**JOB | change)


@pytest.mark.parametrize(
    ("args", "kwargs", "complaint"),
    [
        ((0, Role.WORKER, 3, SERVERS, 9), {}, "pass the others by name"),
        ((True, False, 0), {}, "takes is_collective, init_gloo by position"),
        ((0,), {"current_id": 0}, "got current_id twice"),
    ],
)
def test_complaints_about_positions(
    args: tuple[Any, ...], kwargs: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(TypeError, match=complaint):
        UserDefinedRoleMaker(*args, **kwargs)


@pytest.mark.parametrize(
    ("current_id", "endpoints", "error"),
    [
        (0, None, TypeError),
        (0, [], ValueError),
        (3, WORKERS, ValueError),
        (-1, WORKERS, ValueError),
    ],
)
def test_collective_complaints(current_id: int, endpoints: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        UserDefinedCollectiveRoleMaker(current_id, endpoints)


def test_collective_has_no_servers() -> None:
    with pytest.raises(ValueError, match="a collective job has only workers"):
        UserDefinedRoleMaker(True, role=Role.SERVER, worker_endpoints=WORKERS)
