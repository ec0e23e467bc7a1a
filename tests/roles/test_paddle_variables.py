"""PaddleCloud's variables, in collective and in parameter-server jobs."""

import pytest

from fleetx.roles import Identity, PaddleCloudRoleMaker, Role

WORKERS = {"PADDLE_TRAINER_ENDPOINTS": "a:1,a:2,b:1,b:2"}
SERVERS = {"PADDLE_PSERVERS_IP_PORT_LIST": "s:1,s:2", "PADDLE_TRAINERS_NUM": "4"}
TRAINER = {**SERVERS, "TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": "3"}
PSERVER = {**SERVERS, "TRAINING_ROLE": "PSERVER", "POD_IP": "s", "PADDLE_PORT": "2"}


def make(environ: dict[str, str], *, is_collective: bool) -> Identity:
    return PaddleCloudRoleMaker(is_collective, environ=environ).identity()


def test_collective_counts_from_the_endpoints() -> None:
    found = make({**WORKERS, "PADDLE_TRAINER_ID": "3"}, is_collective=True)
    assert (found.index, found.worker_num) == (3, 4)
    assert (found.local_rank, found.local_size, found.node_num) == (1, 2, 2)
    assert found.worker_endpoints == ("a:1", "a:2", "b:1", "b:2")


def test_collective_takes_what_the_launcher_counted() -> None:
    told = {"PADDLE_RANK_IN_NODE": "0", "PADDLE_LOCAL_SIZE": "1", "PADDLE_NNODES": "4"}
    more = {"PADDLE_TRAINER_ID": "3", "PADDLE_LOCAL_DEVICE_IDS": "0,1"}
    found = make(WORKERS | told | more, is_collective=True)
    assert (found.local_rank, found.local_size, found.node_num) == (0, 1, 4)
    assert found.local_device_ids == (0, 1)


def test_collective_without_endpoints_meets_at_the_master() -> None:
    environ = {"PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2", "PADDLE_MASTER": "m:1"}
    assert make(environ, is_collective=True).rendezvous == "m:1"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"PADDLE_TRAINER_ID": ""}, "PADDLE_TRAINER_ID is not set, but there are 4 workers"),
        ({"PADDLE_TRAINER_ID": "4"}, "PADDLE_TRAINER_ID=4 does not fit 4 workers"),
        ({"PADDLE_TRAINERS_NUM": "3"}, "PADDLE_TRAINERS_NUM=3 contradicts the 4 endpoints"),
        ({"PADDLE_TRAINERS_NUM": "0"}, "PADDLE_TRAINERS_NUM=0 contradicts the 4 endpoints"),
        ({"PADDLE_CURRENT_ENDPOINT": "c:1"}, "c:1 is not entry 0"),
        ({"PADDLE_TRAINER_ENDPOINTS": "a:1,a:1"}, "a:1 is listed more than once"),
        ({"PADDLE_TRAINER_ENDPOINTS": "a"}, "PADDLE_TRAINER_ENDPOINTS: 'a' is not an endpoint"),
        (
            {"PADDLE_TRAINER_ENDPOINTS": "", "PADDLE_TRAINERS_NUM": "2"},
            "2 workers must meet somewhere, but PADDLE_TRAINER_ENDPOINTS is not set",
        ),
        ({"TRAINING_ROLE": "PSERVER"}, "is_collective=True asks for workers only"),
        (
            {"TRAINING_ROLE": "BOSS"},
            "TRAINING_ROLE='BOSS' is no role; set it to TRAINER or PSERVER",
        ),
        (SERVERS, "started parameter servers"),
    ],
)
def test_collective_complaints(change: dict[str, str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make(WORKERS | {"PADDLE_TRAINER_ID": "0"} | change, is_collective=True)


def test_worker_of_servers() -> None:
    found = make(TRAINER, is_collective=False)
    assert (found.role, found.index, found.worker_num) == (Role.WORKER, 3, 4)
    assert found.server_endpoints == ("s:1", "s:2")
    assert found.rendezvous == ""
    assert make(TRAINER | WORKERS, is_collective=False).rendezvous == "a:1"


def test_server_finds_itself_by_its_endpoint() -> None:
    found = make(PSERVER, is_collective=False)
    assert (found.role, found.index, found.worker_num) == (Role.SERVER, 1, 4)


def test_fleetrun_with_servers_does_not_look_at_torch_ranks() -> None:
    agent = {"FLEETX_LAUNCHER": "fleetrun", "RANK": "5", "WORLD_SIZE": "6"}
    found = make(TRAINER | WORKERS | agent, is_collective=False)
    assert (found.source, found.index, found.rendezvous) == ("fleetrun", 3, "a:1")


def test_fleetrun_with_servers_keeps_a_store_for_the_workers() -> None:
    agent = {"FLEETX_LAUNCHER": "fleetrun", "RANK": "3", "WORLD_SIZE": "4"}
    found = make(TRAINER | WORKERS | agent, is_collective=False)
    assert found.rendezvous == "env"


@pytest.mark.parametrize(
    ("environ", "complaint"),
    [
        (TRAINER | {"PADDLE_TRAINER_ID": ""}, "PADDLE_TRAINER_ID is not set"),
        (TRAINER | {"PADDLE_TRAINER_ID": "4"}, "PADDLE_TRAINER_ID=4 does not fit 4 workers"),
        (TRAINER | {"PADDLE_TRAINERS_NUM": ""}, "PADDLE_TRAINERS_NUM is not set"),
        (TRAINER | {"TRAINING_ROLE": ""}, "TRAINING_ROLE is not set"),
        (TRAINER | {"TRAINING_ROLE": "HETER_TRAINER"}, "'HETER_TRAINER' is not supported here"),
        (PSERVER | {"PADDLE_PSERVERS_IP_PORT_LIST": ""}, "PADDLE_PSERVERS_IP_PORT_LIST is not set"),
        (PSERVER | {"POD_IP": ""}, "POD_IP is not set, but TRAINING_ROLE is PSERVER"),
        (PSERVER | {"PADDLE_PORT": ""}, "PADDLE_PORT is not set"),
        (PSERVER | {"PADDLE_PORT": "3"}, "POD_IP and PADDLE_PORT make s:3, which is not in"),
    ],
)
def test_complaints_with_servers(environ: dict[str, str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make(environ, is_collective=False)
