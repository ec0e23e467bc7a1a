"""Jobs of two machines, tried on loopback with two launchers."""

import signal
import socket
import time

import pytest

from fleetx.testing.limits import stretched
from tests.launch.conftest import Gone, Launcher, Outcome
from tests.ports import await_port, free_ports

BOTH = "127.0.0.1,127.0.0.2"


@pytest.fixture
def port() -> int:
    """The second of four ports in a row."""
    return free_ports(4)[1]


def by_list(launcher: Launcher, port: int, script: str, *more: str) -> list[Outcome]:
    jobs = [
        launcher.start(
            f"--cluster_node_ips={BOTH}",
            f"--node_ip=127.0.0.{node + 1}",
            f"--started_port={port}",
            f"--log_dir=log{node}",
            *more,
            script,
        )
        for node in range(2)
    ]
    return [launcher.finish(job) for job in jobs]


def by_meeting(launcher: Launcher, port: int, script: str, *more: str) -> list[Outcome]:
    jobs = [
        launcher.start(
            "--nnodes=2", f"--master=127.0.0.1:{port}", f"--log_dir=log{node}", *more, script
        )
        for node in range(2)
    ]
    return [launcher.finish(job) for job in jobs]


def test_a_list_of_machines_gives_ranks_and_endpoints(launcher: Launcher, port: int) -> None:
    script = launcher.script(
        """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1); dist.all_reduce(x)
names = ("RANK", "GROUP_RANK", "PADDLE_NNODES", "PADDLE_CURRENT_ENDPOINT", "MASTER_ADDR")
print("sum", x.item(), *(os.environ[name] for name in names))
print(os.environ["PADDLE_TRAINER_ENDPOINTS"])
dist.destroy_process_group()
"""
    )
    outcomes = by_list(launcher, port, script, "--nproc_per_node=2")
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    everyone = ",".join(f"127.0.0.{n}:{port + i}" for n in (1, 2) for i in (0, 1))
    for rank in range(4):
        node = rank // 2
        endpoint = f"127.0.0.{node + 1}:{port + rank % 2}"
        log = launcher.log(f"workerlog.{rank}", f"log{node}")
        assert f"sum 4.0 {rank} {node} 2 {endpoint} 127.0.0.1\n{everyone}" in log
    assert "sum 4.0 0" in outcomes[0].out, "rank 0 is echoed on its machine"
    assert "sum 4.0" not in outcomes[1].out


def test_machines_meet_and_agree_on_ranks(launcher: Launcher, port: int) -> None:
    script = launcher.script(
        "import os; print('RANK', os.environ['RANK'], os.environ['WORLD_SIZE'], "
        "os.environ['PADDLE_TRAINER_ENDPOINTS'].count(':'))"
    )
    outcomes = by_meeting(launcher, port, script)
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    logs = sorted(path.read_text().strip() for path in launcher.folder.glob("log*/workerlog.*"))
    assert logs == ["RANK 0 2 2", "RANK 1 2 2"]


def test_a_machine_joins_a_running_job(launcher: Launcher, port: int) -> None:
    script = launcher.script(
        """
import os, time, torch, torch.distributed as dist
print("attempt", os.environ["PADDLE_RESTART"], "size", os.environ["WORLD_SIZE"], flush=True)
if os.environ["WORLD_SIZE"] == "1":
    open("alone", "w").write("yes")
    time.sleep(100)
dist.init_process_group("gloo")
x = torch.ones(1); dist.all_reduce(x)
print("sum", x.item())
dist.destroy_process_group()
"""
    )
    flags = ("--nnodes=1:2", f"--master=127.0.0.1:{port}")
    first = launcher.start(*flags, "--log_dir=log0", script)
    launcher.await_file("alone")
    second = launcher.start(*flags, "--log_dir=log1", script)
    outcomes = [launcher.finish(job) for job in (first, second)]
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    logs = sorted(path.read_text() for path in launcher.folder.glob("log*/workerlog.*"))
    # A machine that stood still for seconds misses a meeting, and comes to the one after it.
    alone = [f"attempt {number} size 1\n" for number in range(len(logs) - 2)]
    joined = f"attempt {len(alone)} size 2\nsum 2.0\n"
    assert alone
    assert logs == [*alone, joined, joined], "a log is lost, or an attempt miscounted"


FAIL_ON_1 = """
import os, sys, time
print("hello from", os.environ["RANK"])
if os.environ["RANK"] == "1":
    time.sleep(1)
    open("failed_at", "w").write(str(time.time()))
    raise ValueError("boom")
time.sleep(100)
"""


@pytest.mark.parametrize("start", [by_list, by_meeting])
def test_a_failure_stops_both_machines(launcher: Launcher, port: int, start: object) -> None:
    assert callable(start)
    outcomes: list[Outcome] = start(launcher, port, launcher.script(FAIL_ON_1))
    assert time.time() - float(launcher.await_file("failed_at")) < 10
    for outcome in outcomes:
        assert outcome.code == 1
        assert "rank 1 on 127.0.0." in outcome.err
        assert "failed first (exit code 1)" in outcome.err
        assert "ValueError: boom" in outcome.err
        assert "    hello from 1" in outcome.err
        assert "Traceback (most" not in outcome.err.replace("    Traceback", "")


def test_both_machines_restart_together(launcher: Launcher, port: int) -> None:
    script = launcher.script(
        """
import os, sys, time
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("attempt", attempt, "store", os.environ["MASTER_PORT"])
if attempt == "0":
    if os.environ["RANK"] == "1": sys.exit(3)
    time.sleep(100)
"""
    )
    outcomes = by_list(launcher, port, script, "--max_restart=1")
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    second = [launcher.log(f"workerlog.{rank}", f"log{rank}") for rank in range(2)]
    assert second[0] == second[1]
    assert second[0].startswith("attempt 1")


def test_a_stopped_launcher_stops_the_other(
    launcher: Launcher, port: int, gone: type[Gone]
) -> None:
    script = launcher.script(
        "import os, time\nopen(f'pid{os.environ[\"RANK\"]}', 'w').write(str(os.getpid()))\n"
        "time.sleep(100)"
    )
    jobs = [
        launcher.start(
            "--ips", BOTH, "--node_ip", f"127.0.0.{n}", "--started_port", str(port), script
        )
        for n in (1, 2)
    ]
    pids = [int(launcher.await_file(f"pid{rank}")) for rank in range(2)]
    jobs[0].send_signal(signal.SIGTERM)
    outcomes = [launcher.finish(job, 15) for job in jobs]
    assert [outcome.code for outcome in outcomes] == [143, 143]
    assert "stopped by SIGTERM" in outcomes[1].err
    assert gone.wait(pids) == []


@pytest.mark.real_processes
def test_a_killed_launcher_is_noticed(launcher: Launcher, port: int, gone: type[Gone]) -> None:
    script = launcher.script(
        "import os, time\nopen(f'pid{os.environ[\"RANK\"]}', 'w').write(str(os.getpid()))\n"
        "time.sleep(100)"
    )
    jobs = [
        launcher.start(
            "--ips", BOTH, "--node_ip", f"127.0.0.{n}", "--started_port", str(port), script
        )
        for n in (1, 2)
    ]
    pids = [int(launcher.await_file(f"pid{rank}")) for rank in range(2)]
    jobs[0].kill()
    outcome = launcher.finish(jobs[1], 15)
    assert outcome.code == 1
    assert f"the launcher at 127.0.0.1:{port - 1} is gone" in outcome.err
    assert outcome.err.count("\n") <= 2
    assert gone.wait(pids) == []


@pytest.mark.parametrize("code", [0, 3])
def test_machines_meet_on_one_that_does_not_train(launcher: Launcher, port: int, code: int) -> None:
    keeper = launcher.start("--meeting_point", f"127.0.0.1:{port}")
    await_port(port)
    script = launcher.script(f"import os, sys; sys.exit({code} * int(os.environ['RANK']))")
    outcomes = [*by_meeting(launcher, port, script), launcher.finish(keeper)]
    assert [outcome.code for outcome in outcomes] == [code] * 3, outcomes
    assert f"fleetrun --master 127.0.0.1:{port}; this ends with the job" in outcomes[-1].out
    assert ("rank 1 failed first (exit code 3)" in outcomes[-1].err) is bool(code)


def test_an_unreachable_master_is_named(launcher: Launcher, port: int) -> None:
    outcome = launcher.run(
        "--nnodes=2", f"--master=127.0.0.1:{port}", "--rank=1", "--timeout=1", launcher.script("")
    )
    assert outcome.code == 2
    assert f"nobody answered at 127.0.0.1:{port} for 1 s" in outcome.err


def test_machines_that_do_not_come_are_counted(launcher: Launcher, port: int) -> None:
    outcome = launcher.run(
        "--ips", BOTH, "--node_ip=127.0.0.1", f"--started_port={port}", "--timeout=1",
        launcher.script(""),
    )  # fmt: skip
    assert outcome.code == 2
    assert "only 1 of 2 machines came within 1 s" in outcome.err


def test_a_foreign_program_at_the_meeting_point(launcher: Launcher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        outcome = launcher.run("--nnodes=2", f"--master={address}", launcher.script(""))
    assert outcome.code == 2
    assert f"{address} is in use by a program that is not fleetrun" in outcome.err
    assert outcome.seconds < stretched(30)
