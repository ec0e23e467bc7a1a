"""The kept pool: results, reuse, failures, hangs, skips, and no process left behind."""

import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

from fleetx.testing import pool, world
from fleetx.testing.limits import stretched

SCALE = 3


class OwnError(Exception):
    """An exception that only this test module knows."""


class Fussy(Exception):
    """An exception that pickle cannot rebuild."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def total(value: float) -> torch.Tensor:
    tensor = torch.full((2,), value * (dist.get_rank() + 1))
    dist.all_reduce(tensor)
    return tensor


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_every_rank_answers_in_order(size: int) -> None:
    assert world(size).run(dist.get_rank) == list(range(size))
    results = world(size).run(total, 2.0)
    assert [r.tolist() for r in results] == [[size * (size + 1)] * 2] * size


def test_processes_are_kept_and_shared_by_size() -> None:
    first = world(2).run(os.getpid)
    assert world(2, timeout=5).run(os.getpid) == first == world(2).pids
    assert os.getpid() not in first


def test_functions_without_an_importable_name() -> None:
    offset = 10

    def nested(depth: int, *, extra: int = 1) -> int:
        return nested(depth - 1, extra=extra) if depth else offset + SCALE + extra

    assert world(2).run(lambda: dist.get_rank() + offset) == [10, 11]
    assert world(2).run(nested, 3, extra=5) == [18, 18]


def test_a_local_class_travels_with_its_closure() -> None:
    class Net(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 1)

        @property
        def size(self) -> int:
            return self.in_features

    assert world(2).run(lambda: Net().size) == [2, 2]


@world(2)
def test_as_a_decorator() -> None:
    assert dist.get_world_size() == 2
    assert total(1.0).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("value", [1, 2])
@world(2)
def test_as_a_decorator_with_fixtures(value: int, tmp_path: Path) -> None:
    (tmp_path / f"{value}-{dist.get_rank()}").touch()
    dist.barrier()
    assert len(list(tmp_path.iterdir())) == 2


def test_state_does_not_leak_into_the_next_call() -> None:
    def spoil() -> None:
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.set_num_threads(2)
        torch.manual_seed(dist.get_rank())
        torch.use_deterministic_algorithms(True)
        os.environ["FLEETX_SPOILED"] = "1"
        os.chdir("/")
        dist.new_group([0, 1])

    def look() -> tuple[object, ...]:
        groups = len(dist.distributed_c10d._world.pg_map)
        switches = (torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled())
        rest = (torch.get_num_threads(), os.environ.get("FLEETX_SPOILED"), os.getcwd(), groups)
        return (torch.get_default_dtype(), *switches, *rest, torch.rand(1).item(), random.random())

    before = world(2).run(look)
    world(2).run(spoil)
    assert world(2).run(look) == before
    assert before[0] == before[1]


def test_the_first_failing_rank_is_raised_and_the_pool_restarts() -> None:
    def fail() -> None:
        if dist.get_rank() == 1:
            print("last words")
            raise OwnError("lost")
        dist.barrier()

    before = world(2).run(os.getpid)
    with pytest.raises(OwnError, match="lost") as caught:
        world(2).run(fail)
    notes = "\n".join(caught.value.__notes__)
    assert "rank 1 of 2" in notes
    assert 'raise OwnError("lost")' in notes
    assert "last words" in notes
    assert not set(world(2).run(os.getpid)) & set(before)
    assert not any(map(alive, before))


def test_first_means_first_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_GRACE", 60.0)

    def fail() -> None:
        time.sleep(0.0 if dist.get_rank() == 1 else 2.0)
        raise ValueError(f"rank {dist.get_rank()}")

    with pytest.raises(ValueError, match="rank 1") as caught:
        world(2).run(fail)
    assert "failed later" in caught.value.__notes__[0]


def test_assertions_explain_themselves() -> None:
    with pytest.raises(AssertionError, match="assert 4 == 5"):
        world(2).run(lambda: check(4, 5))


def check(one: int, two: int) -> None:
    assert one == two


def test_an_exception_that_pickle_breaks_is_told_as_text() -> None:
    with pytest.raises(RuntimeError, match="Fussy: 1 and 2"):
        world(2).run(raise_fussy)


def raise_fussy() -> None:
    raise Fussy(1, 2)


def test_a_hung_call_ends_and_says_where() -> None:
    def hang() -> None:
        if dist.get_rank() == 1:
            dist.barrier()

    before = world(2).run(os.getpid)
    started = time.monotonic()
    with pytest.raises(TimeoutError) as caught:
        world(2, timeout=0.5).run(hang)
    assert time.monotonic() - started < stretched(5)
    text = str(caught.value)
    assert "rank 0 had finished" in text
    assert "rank 1 was here" in text
    assert "in hang" in text
    assert world(2).run(dist.get_rank) == [0, 1]
    assert not any(map(alive, before))


def test_a_sleeping_call_is_ended_too() -> None:
    with pytest.raises(TimeoutError, match="in sleepy"):
        world(1, timeout=0.3).run(sleepy)


def sleepy() -> None:
    time.sleep(60)


def test_a_dying_rank_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"rank \d of 2 exited with code 3"):
        world(2).run(os._exit, 3)
    with pytest.raises(RuntimeError, match=r"rank \d of 2 was ended by SIGSEGV inside .*<lambda>"):
        world(2).run(lambda: os.kill(os.getpid(), signal.SIGSEGV))


def test_sys_exit_in_a_rank_is_an_error_like_others() -> None:
    with pytest.raises(SystemExit):
        world(2).run(sys.exit, 4)


def test_a_skip_travels_and_the_pool_stays() -> None:
    before = world(2).run(os.getpid)
    with pytest.raises(pytest.skip.Exception, match="not here"):
        world(2).run(pytest.skip, "not here")
    with pytest.raises(pytest.xfail.Exception, match="not yet"):
        world(2).run(pytest.xfail, "not yet")
    assert world(2).run(os.getpid) == before


def test_a_failure_goes_before_a_skip() -> None:
    def mixed() -> None:
        if dist.get_rank() == 0:
            pytest.skip("first")
        time.sleep(0.05)
        raise KeyError("second")

    with pytest.raises(KeyError):
        world(2).run(mixed)


def test_output_of_ranks_reaches_our_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    world(2).run(lambda: print("hello from", dist.get_rank()))
    text = capsys.readouterr().out
    assert "hello from 0" in text
    assert "output of rank 1" in text


def test_a_destroyed_group_is_made_anew() -> None:
    world(2).run(dist.destroy_process_group)
    assert world(2).run(dist.is_initialized) == [True, True]


def test_groups_and_meshes_can_be_made_again() -> None:
    def meshed() -> float:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        tensor = distribute_tensor(torch.arange(16.0).reshape(4, 4), mesh, [Shard(0), Shard(1)])
        product = tensor @ tensor
        assert isinstance(product, DTensor)
        return float(product.full_tensor().sum())

    before = world(4).run(os.getpid)
    assert [world(4).run(meshed) for _ in range(3)] == [[3920.0] * 4] * 3
    assert world(4).run(os.getpid) == before


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_groups_of_earlier_calls_leave_no_threads() -> None:
    """Each group has three, and hundreds of kept groups have slowed whole machines down."""

    def meshed() -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("a",))
        tensor = distribute_tensor(torch.arange(16.0).reshape(4, 4), mesh, [Shard(0)])
        product = tensor @ tensor
        assert isinstance(product, DTensor)
        product.redistribute(mesh, [Shard(1)])
        cycle: list[object] = [dist.new_group()]
        cycle.append(cycle)
        dist.barrier()  # nobody lets go of the group while the other still connects to it

    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    world(2).run(meshed)
    before = world(2).run(threads)
    for _ in range(5):
        world(2).run(meshed)
    assert world(2).run(threads) == before


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_ranks_are_forked_from_a_single_thread() -> None:
    parents = world(2).run(os.getppid)
    assert len(os.listdir(f"/proc/{parents[0]}/task")) == 1


@pytest.mark.parametrize("how", ["pass", "os.kill(os.getpid(), signal.SIGKILL)"])
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_no_process_outlives_the_parent(how: str) -> None:
    program = (
        "import os, signal, threading, time\n"
        "from fleetx.testing import world\n"
        "print(*world(2).run(os.getpid), *world(2).run(os.getppid), flush=True)\n"
        "threading.Thread(target=world(2).run, args=(time.sleep, 30), daemon=True).start()\n"
        f"time.sleep(0.2); {how}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, timeout=60
    )
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 4
    deadline = time.monotonic() + stretched(10)
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))


def test_what_cannot_be_sent_is_refused_before_it_starts() -> None:
    before = world(2).run(os.getpid)
    with pytest.raises(TypeError, match="cannot be sent to the ranks"):
        world(2).run(print, sys.stdout)
    assert world(2).run(os.getpid) == before


@pytest.mark.parametrize("size", [0, -1])
def test_a_world_has_ranks(size: int) -> None:
    with pytest.raises(ValueError, match="at least one rank"):
        world(size)


def test_a_limit_is_positive() -> None:
    with pytest.raises(ValueError, match="timeout"):
        world(2, timeout=0)


def test_a_warm_call_is_cheap() -> None:
    world(2).run(dist.get_rank)
    times = []
    for _ in range(20):
        started = time.perf_counter()
        world(2).run(dist.get_rank)
        times.append(time.perf_counter() - started)
    assert min(times) < 0.05  # 3 to 5 ms when the machine is idle


def test_an_interrupt_leaves_nothing_half_done() -> None:
    before = world(2).run(os.getpid)
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with pytest.raises(KeyboardInterrupt):
        world(2).run(sleepy)
    signal.signal(signal.SIGALRM, previous)
    assert world(2).run(dist.get_rank) == [0, 1]
    assert not any(map(alive, before))


def test_worlds_of_two_sizes_from_two_threads() -> None:
    with ThreadPoolExecutor(2) as threads:
        jobs = [threads.submit(world(size).run, dist.get_rank) for size in (1, 2, 3, 2, 1, 3)]
        assert [len(job.result()) for job in jobs] == [1, 2, 3, 2, 1, 3]


def state(pid: int) -> str:
    """What the kernel says of a process: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_kept_ranks_rest_between_calls() -> None:
    pids = world(2).run(os.getpid)
    deadline = time.monotonic() + stretched(30)
    while {state(pid) for pid in pids} != {"T"}:  # where every core is busy it takes a while
        assert time.monotonic() < deadline, "gloo's threads would take time from other tests"
        time.sleep(0.01)
    assert world(2).run(os.getpid) == pids


def groups_of_a_job() -> int:
    """Train with a group of the job's own, in a cycle, as models and their hooks are."""
    group = dist.new_group()
    model: list[object] = [torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2)), group]
    model.append(model)
    return len(os.listdir("/proc/self/task"))


def test_threads_of_groups_end_with_the_call_that_made_them() -> None:
    counts = [world(2).run(groups_of_a_job)[0] for _ in range(8)]
    assert max(counts) <= counts[1] + 3, "each group has three threads, which wake up all the time"
