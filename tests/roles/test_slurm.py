"""SLURM's host lists and task counts."""

import pytest

from fleetx.roles.environment import Environment
from fleetx.roles.slurm import Slurm, expand_hosts

STEP = {
    "SLURM_JOB_ID": "123",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_NTASKS": "99",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NODELIST": "gpu[08-10]",
}


@pytest.mark.parametrize(
    ("names", "hosts"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1 n2"),
        ("n[1-3]", "n1 n2 n3"),
        ("n[08-10,12],login", "n08 n09 n10 n12 login"),
        ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
        ("a[1,3]-ib.site, b", "a1-ib.site a3-ib.site b"),
    ],
)
def test_host_lists(names: str, hosts: str) -> None:
    assert list(expand_hosts(names)) == hosts.split()


@pytest.mark.parametrize("names", ["n[1-", "n[3-1]", "n[a-b]", "n[]", "n1]"])
def test_malformed_host_lists(names: str) -> None:
    with pytest.raises(ValueError, match="host list"):
        list(expand_hosts(names))


def test_the_step_is_counted_not_the_job() -> None:
    found = Slurm(environ=STEP).identity()
    assert found.source == "SLURM job 123"
    assert (found.index, found.worker_num) == (4, 5)
    assert (found.local_rank, found.local_size, found.node_num) == (0, 1, 3)
    assert found.rendezvous.startswith("gpu08:")


def test_every_task_derives_the_same_port_and_other_steps_another() -> None:
    def place(**change: str) -> str:
        return Slurm(environ=STEP | change).identity().rendezvous

    assert place(SLURM_PROCID="0", SLURM_LOCALID="1") == place()
    ports = {place(SLURM_STEP_ID=str(i)) for i in range(5)} | {place(SLURM_JOB_ID="124")}
    assert len(ports) == 6


def test_tasks_of_this_machine_may_be_unknown() -> None:
    environ = STEP | {"SLURM_STEP_TASKS_PER_NODE": ""}
    assert Slurm(environ=environ).identity().local_size == 0
    assert Slurm.found_in(Environment(environ))
