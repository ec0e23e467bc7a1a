"""Jobs of one machine; where a test is about processes themselves, with real ones."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from fleetx.testing.limits import stretched
from tests.launch.conftest import Gone, Launcher

real = pytest.mark.real_processes

SHOW = """
import json, os
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "PADDLE_TRAINER_ID",
    "PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ENDPOINTS", "PADDLE_CURRENT_ENDPOINT", "TRAINING_ROLE",
    "PADDLE_RANK_IN_NODE", "PADDLE_DISTRI_BACKEND", "FLAGS_selected_gpus", "OMP_NUM_THREADS",
    "PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_PORT", "POD_IP", "FLEETX_LAUNCHER")
print("ENV", json.dumps({n: os.environ.get(n) for n in names}))
"""


def environment(text: str) -> dict[str, str | None]:
    line = next(line for line in text.splitlines() if line.startswith("ENV "))
    found: dict[str, str | None] = json.loads(line[4:])
    return found


@real
def test_two_workers_see_their_variables(launcher: Launcher) -> None:
    outcome = launcher.run("--verbose", "--nproc_per_node", "2", launcher.script(SHOW))
    assert outcome.code == 0, outcome.err
    workers = [environment(launcher.log(f"workerlog.{rank}")) for rank in range(2)]
    assert [worker["RANK"] for worker in workers] == ["0", "1"]
    endpoints = (workers[0]["PADDLE_TRAINER_ENDPOINTS"] or "").split(",")
    assert len(set(endpoints)) == 2
    for rank, worker in enumerate(workers):
        assert worker["PADDLE_TRAINER_ID"] == worker["LOCAL_RANK"] == str(rank)
        assert worker["PADDLE_TRAINERS_NUM"] == worker["WORLD_SIZE"] == "2"
        assert worker["PADDLE_CURRENT_ENDPOINT"] == endpoints[rank]
        assert worker["TRAINING_ROLE"] == "TRAINER"
        assert worker["PADDLE_DISTRI_BACKEND"] == "gloo"
        assert worker["FLAGS_selected_gpus"] is None
        assert worker["OMP_NUM_THREADS"] == str(max(1, (os.cpu_count() or 1) // 2))
    # the table that was printed is the one the workers have
    assert f" {endpoints[0]} " in outcome.out
    assert "Distributed Envs" in outcome.out


def test_rank_0_is_echoed_whole_and_in_order(launcher: Launcher) -> None:
    script = """
import os, sys
for i in range(3000):
    print("out", i) if i % 2 else print("err", i, file=sys.stderr)
sys.stdout.write("the end")
"""
    process = launcher.start("--nproc_per_node", "2", launcher.script(script))
    assert process.stdout is not None
    out = process.stdout.buffer.read().decode()  # type: ignore[attr-defined]
    assert process.wait() == 0
    expected = "".join(f"{'out' if i % 2 else 'err'} {i}\n" for i in range(3000))
    assert expected in out, "a part of rank 0's output is missing or out of order"
    assert out.count("out 1\n") == 1, "rank 1 was echoed too"
    assert out.endswith("the end")
    said = "fleetrun: 2 workers on the CPU of this machine; logs in log; watch: fleetx watch log\n"
    assert out == said + expected + "the end", "by default the launcher says one line"
    assert expected in launcher.log("workerlog.1")


def test_closed_stdout_does_not_end_the_job(launcher: Launcher) -> None:
    script = launcher.script(
        "import time\nfor i in range(20): print('line' * 100); time.sleep(0.02)\n"
        "open('done', 'w').write('yes')"
    )
    process = launcher.start(script)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(stretched(60)) == 0
    assert launcher.await_file("done", 1) == "yes"


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("raise ValueError('boom')", 1, "ValueError: boom"),
        ("sys.exit(3)", 3, "SystemExit: 3"),
        ("os.kill(os.getpid(), 9)", 137, "killed by SIGKILL"),
        ("os._exit(5)", 5, "without a Python exception"),
    ],
)
def test_the_failing_rank_is_named(launcher: Launcher, body: str, code: int, words: str) -> None:
    # Rank 0 fails as soon as rank 1 is gone, as it would when a connection breaks.
    script = f"""
import os, sys, time
print("hello from", os.environ["RANK"])
if os.environ["RANK"] == "1":
    open("pid.part", "w").write(str(os.getpid()))
    os.rename("pid.part", "pid")
    {body}
while not os.path.exists("pid"): time.sleep(0.02)
pid = open("pid").read()
def lives():
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            about = open("/proc/" + process + "/stat").read()
        except OSError:
            continue
        title, _, state = about.partition(" (")[2].rpartition(") ")
        # The one that the launcher knows may stand in for it, under its number as a title.
        if pid in (process, title) and state[0] != "Z":
            return True
    return False
while lives(): time.sleep(0.02)
raise ConnectionError("peer is gone")
"""
    outcome = launcher.run("--nproc_per_node", "2", launcher.script(script))
    assert outcome.code == code
    assert f"fleetrun: rank 1 failed first (exit code {code})" in outcome.err
    assert words in outcome.err
    assert "    hello from 1" in outcome.err
    assert "log/workerlog.1" in outcome.err
    assert "ConnectionError" not in outcome.err


def test_messages_of_different_sizes_are_named_where_gloo_ends_the_process(
    launcher: Launcher,
) -> None:
    script = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    dist.send(torch.zeros(2000), 1)
    time.sleep(60)  # until the launcher ends it
dist.recv(torch.zeros(10), 0)
"""
    outcome = launcher.run("--nproc_per_node", "2", launcher.script(script))
    assert outcome.code == 134
    assert "rank 1 failed first (exit code 134)" in outcome.err
    assert "ranks sent each other tensors of different sizes: under sharding" in outcome.err
    assert "    terminate called after throwing an instance of 'gloo::" in outcome.err


def test_syntax_errors_reach_the_user(launcher: Launcher) -> None:
    outcome = launcher.run(launcher.script("x = (\n"))
    assert outcome.code == 1
    assert "SyntaxError" in outcome.err
    assert "runner.py" not in launcher.log("workerlog.0")


def test_the_true_first_failure_wins_although_it_ends_last(launcher: Launcher) -> None:
    script = """
import atexit, os, time
if os.environ["RANK"] == "1":
    atexit.register(time.sleep, 1.5)
    atexit.register(lambda: open("failed", "w").close())
    raise ValueError("the cause")
while not os.path.exists("failed"): time.sleep(0.02)
raise ConnectionError("the consequence")
"""
    outcome = launcher.run("--nproc_per_node", "2", launcher.script(script))
    assert "rank 1 failed first (exit code 1)" in outcome.err
    assert "ValueError: the cause" in outcome.err


@real
def test_a_deaf_peer_is_gone_within_ten_seconds(launcher: Launcher, gone: type[Gone]) -> None:
    script = """
import os, signal, subprocess, sys, time
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import signal, time;"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(100)"])
    time.sleep(0.5)
    open("pids", "w").write(f"{os.getpid()} {child.pid}")
    time.sleep(100)
while not os.path.exists("pids"): time.sleep(0.05)
open("failed_at", "w").write(str(time.time()))
sys.exit(4)
"""
    outcome = launcher.run("--nproc_per_node", "2", launcher.script(script))
    elapsed = time.time() - float(launcher.await_file("failed_at"))
    assert outcome.code == 4
    assert elapsed < stretched(10)
    assert gone.wait([int(pid) for pid in launcher.await_file("pids").split()]) == []


def test_restart_runs_again_and_keeps_the_old_log(launcher: Launcher) -> None:
    script = """
import os, sys
import torch, torch.distributed as dist
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("attempt", attempt, os.environ["PADDLE_RESTART"])
dist.init_process_group("gloo")
x = torch.ones(1); dist.all_reduce(x)
if attempt == 0 and dist.get_rank() == 1: sys.exit(7)
dist.barrier()
print("sum", x.item())
dist.destroy_process_group()
"""
    outcome = launcher.run("--nproc_per_node", "2", "--max_restart", "1", launcher.script(script))
    assert outcome.code == 0, outcome.err
    assert "restart 1 of 1" in outcome.err
    assert "sum 2.0" in launcher.log("workerlog.1")
    assert "attempt 0 0" in launcher.log("workerlog.1.attempt0")
    assert "attempt 1 1" in outcome.out


def test_restarts_are_limited(launcher: Launcher) -> None:
    script = launcher.script("open('count', 'a').write('x'); raise OSError('again')")
    outcome = launcher.run("--max_restart", "2", script)
    assert outcome.code == 1
    assert launcher.await_file("count") == "xxx"
    assert "OSError: again" in outcome.err


def test_concurrent_jobs_do_not_collide(launcher: Launcher) -> None:
    # Every worker waits until all workers of all jobs run, so that all ports are in use at once.
    script = launcher.script(
        """
import glob, os, sys, time
print("PORTS", os.environ["MASTER_PORT"], os.environ["PADDLE_TRAINER_ENDPOINTS"])
open(f"here.{sys.argv[1]}.{os.environ['RANK']}", "w").close()
while len(glob.glob("here.*")) < 6: time.sleep(0.05)
"""
    )
    jobs = [
        launcher.start("--nproc_per_node", "2", "--log_dir", f"log{i}", script, str(i))
        for i in range(3)
    ]
    outcomes = [launcher.finish(job) for job in jobs]
    assert [outcome.code for outcome in outcomes] == [0, 0, 0]
    ports = [
        port
        for outcome in outcomes
        for line in re.findall(r"^PORTS (.*)$", outcome.out, re.MULTILINE)
        for port in re.findall(r"\d{4,}", line)
    ]
    assert len(ports) == 9
    assert len(set(ports)) == 9


@real
@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (signal.SIGINT, 130, "interrupted\nfinally\n"),
        (signal.SIGTERM, 143, "finally\n"),
        (signal.SIGQUIT, 131, "finally\n"),
        (signal.SIGABRT, 134, "finally\n"),
    ],
)
def test_signals_leave_no_orphan(
    launcher: Launcher, gone: type[Gone], number: signal.Signals, code: int, words: str
) -> None:
    script = """
import atexit, os, time
atexit.register(print, "at exit")
try:
    open(f"pid{os.environ['RANK']}", "w").write(str(os.getpid()))
    time.sleep(100)
except KeyboardInterrupt:
    print("interrupted")
finally:
    print("finally")
"""
    process = launcher.start("--nproc_per_node", "2", launcher.script(script))
    pids = [int(launcher.await_file(f"pid{rank}")) for rank in range(2)]
    process.send_signal(number)
    outcome = launcher.finish(process)
    assert outcome.code == code
    assert outcome.seconds < stretched(10)
    assert outcome.err.count("\n") == 1
    assert number.name in outcome.err
    assert gone.wait(pids) == []
    assert launcher.log("workerlog.1") == f"{words}at exit\n", "as under python"


@real
def test_signals_of_the_script_are_passed_on(launcher: Launcher) -> None:
    script = """
import os, signal
def save(number, frame):
    print("saved on", signal.Signals(number).name); raise SystemExit(0)
signal.signal(signal.SIGUSR1, save)
open(f"pid{os.environ['RANK']}", "w").write("here")
while True: signal.pause()
"""
    process = launcher.start("--nproc_per_node", "2", launcher.script(script))
    for rank in range(2):
        launcher.await_file(f"pid{rank}")
    process.send_signal(signal.SIGUSR1)
    outcome = launcher.finish(process)
    assert outcome.code == 0, outcome.err
    assert launcher.log("workerlog.1") == "saved on SIGUSR1\n"


@real
def test_children_of_a_script_end_as_their_parent_expects(launcher: Launcher) -> None:
    script = """
import multiprocessing, os, signal, time
def wait():
    try: time.sleep(100)
    finally: print("the child ran on")
child = multiprocessing.get_context("fork").Process(target=wait)
child.start(); time.sleep(0.2); child.terminate(); child.join()
print("child", child.exitcode)
os.kill(os.getpid(), signal.SIGTERM)
"""
    outcome = launcher.run(launcher.script(script))
    assert outcome.code == 143
    assert "rank 0 failed first (exit code 143)" in outcome.err
    assert "killed by SIGTERM" in outcome.err
    assert launcher.log("workerlog.0") == "child -15\n"


@real
def test_workers_die_with_a_killed_launcher(launcher: Launcher, gone: type[Gone]) -> None:
    script = "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(100)"
    process = launcher.start(launcher.script(script))
    pid = int(launcher.await_file("pid"))
    process.kill()
    process.wait()
    assert gone.wait([pid]) == []


@real
def test_scripts_run_as_python_runs_them(launcher: Launcher) -> None:
    (launcher.folder / "sub").mkdir()
    (launcher.folder / "sub" / "helper.py").write_text("VALUE = 42")
    script = """
import atexit, multiprocessing, pickle, sys
import helper

class Item:
    def __init__(self, value): self.value = value

def work(queue): queue.put(Item(helper.VALUE))

def at_the_end(): print("pickled", len(pickle.dumps(Item(1))) > 0)

if __name__ == "__main__":
    atexit.register(at_the_end)
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    child = context.Process(target=work, args=(queue,))
    child.start()
    print("from the child", queue.get().value, sys.argv, __file__)
    child.join()
"""
    name = launcher.script(script, "sub/train.py")
    outcome = launcher.run(name, "--lr", "0.1")
    assert outcome.code == 0, outcome.err
    path = launcher.folder / name  # whole, so that a script may change its folder
    assert f"from the child 42 ['{name}', '--lr', '0.1'] {path}" in outcome.out
    assert "pickled True" in outcome.out


def test_modules_run_too(launcher: Launcher) -> None:
    (launcher.folder / "package").mkdir()
    (launcher.folder / "package" / "__init__.py").touch()
    launcher.script("import sys; print('name', __name__, sys.argv[1:])", "package/train.py")
    outcome = launcher.run("-m", "package.train", "--x")
    assert outcome.code == 0, outcome.err
    assert "name __main__ ['--x']" in outcome.out


@real
def test_nothing_is_left_in_the_temporary_folder(launcher: Launcher) -> None:
    outcome = launcher.run(launcher.script("raise SystemExit(2)"), TMPDIR=str(launcher.folder))
    assert outcome.code == 2
    assert list(Path(launcher.folder).glob("fleetrun-*")) == []
