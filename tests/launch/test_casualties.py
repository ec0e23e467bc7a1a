"""Deaths that a parameter-server job survives."""

from torch.distributed import HashStore  # type: ignore[attr-defined]

from fleetx.launch.cluster import Process, World
from fleetx.launch.job_board import JobBoard
from fleetx.launch.restart_policy import RestartPolicy

KILLED = -9


def machine(store: HashStore, rank: int) -> RestartPolicy:
    """One of two machines, with one of the two workers."""
    local = Process(role="TRAINER", rank=rank, local_rank=0, endpoint=f"m{rank}:1")
    world = World(workers=("m0:1", "m1:1"), servers=("m0:2",), local=(local,), nnodes=2)
    return RestartPolicy(world, lambda: JobBoard(store).lose(0))


def test_a_job_survives_a_killed_worker_but_not_the_last_one_of_all_machines() -> None:
    store = HashStore()
    one, two = machine(store, 0), machine(store, 1)
    assert one.survived({0: KILLED}) == {0: 0}
    assert one.survived({0: KILLED}) == {0: 0}, "a death counts once, however often it is seen"
    assert two.survived({0: None}) == {0: None}
    assert two.survived({0: KILLED}) == {0: KILLED}
    assert two.survived({0: KILLED}) == {0: KILLED}
