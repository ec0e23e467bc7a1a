"""Does a job go on by itself, whoever is killed and when? Losses against the uninterrupted run.

A small job of examples/transformer runs under fleetrun on one or two "machines" (launchers on
loopback). At random moments a random worker gets SIGKILL, or all processes of a machine do, or a
machine is told to leave by SIGTERM; a machine that is gone comes back later or not at all. After
each job the loss of every update is held against a run that nobody touched. Before that it tells
how long a job stands still after each of these.

python benchmarks/kills.py                      # fifty
python benchmarks/kills.py --kills 10 --seed 7
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.ports import await_port, free_ports  # noqa: E402
from tests.programs import behind, python  # noqa: E402

SCRIPT = ROOT / "examples" / "transformer" / "train.py"
LIMIT = 600.0
"""Seconds after which a job counts as one that did not go on."""


@dataclass
class Kills:
    """What is done to a job: whose end, and how long after the one before, at the most."""

    kinds: tuple[str, ...] = ("worker", "machine", "leave")
    pause: float = 4.0
    number: int = 1


@dataclass
class Machine:
    """A launcher with its processes, as good as a machine of its own."""

    folder: Path
    command: list[str]
    name: str
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Switch it on."""
        log = (self.folder / f"{self.name}.txt").open("ab")
        with log:
            environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, env=environment, stdout=log, stderr=log
            )

    @property
    def running(self) -> bool:
        """Whether its launcher is there."""
        return self.process is not None and self.process.poll() is None

    def workers(self) -> list[int]:
        """The processes that its launcher has started."""
        assert self.process is not None
        with contextlib.suppress(OSError):
            launcher = behind(self.process.pid)
            path = Path(f"/proc/{launcher}/task/{launcher}/children")
            return [int(child) for child in path.read_text().split()]
        return []

    def cut(self) -> None:
        """No process of it lives on, as after a power cut."""
        assert self.process is not None
        for pid in [self.process.pid, *self.workers()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def leave(self) -> None:
        """It is told that it will be taken away."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)


@dataclass
class Job:
    """One run of the example on some machines."""

    folder: Path
    arguments: list[str]
    machines: int = 1
    seconds: float = 0.3
    steps: int = 100_000
    """Updates between two checkpoints, besides the seconds."""
    started: list[Machine] = field(default_factory=list)
    first: Machine | None = None
    """Whoever is there until the job is over: a machine that does not train, or the only one."""
    killed: list[str] = field(default_factory=list)

    def start(self) -> None:
        """On all machines; several meet on another one, so that any of them may be lost."""
        flags = ["--gpus=none", "--max_restart=1000", f"--checkpoint_seconds={self.seconds}"]
        flags += [f"--nproc_per_node={1 if self.machines > 1 else 2}", "--grace=60"]
        if self.machines > 1:
            port = free_ports(1)[0]
            self._begin("keeper", "--meeting_point", f"127.0.0.1:{port}")
            flags += [f"--nnodes=1:{self.machines}", f"--master=127.0.0.1:{port}"]
            await_port(port)
        script = [str(SCRIPT), *self.arguments, "--losses=losses.txt"]
        script += ["--output=out", f"--save_steps={self.steps}", "--shares=2"]
        for number in range(self.machines):
            self.started.append(
                self._begin(f"machine{number}", *flags, f"--log_dir=log{number}", *script)
            )

    def _begin(self, name: str, *flags: str) -> Machine:
        machine = Machine(self.folder, [python(), "-m", "fleetx.launch", *flags], name)
        machine.start()
        self.first = self.first or machine
        return machine

    def disturb(self, kills: Kills, draw: random.Random) -> None:
        """Kill until it was done often enough, or the job has ended."""
        for _ in range(kills.number):
            if not self.rest(draw.uniform(0, kills.pause)):
                return
            kind = draw.choice(kills.kinds)
            if done := self.kill(kind, draw):
                self.killed.append(f"{done} after update {self.reached()}")

    def kill(self, kind: str, draw: random.Random) -> str:
        """What was done; nothing if there was nobody."""
        gone = [each for each in self.started if not each.running]
        if gone and kind != "worker":
            gone[0].start()
            self.rest(draw.uniform(0, 8))
        running = [each for each in self.started if each.running]
        if kind == "worker" or self.machines == 1:
            running = [each for each in running if each.workers()]
            kind = "worker"
        return self.strike(kind, draw.choice(running), draw) if running else ""

    def strike(self, kind: str, victim: Machine, draw: random.Random) -> str:
        """Do it to this machine, or to one of its workers."""
        if kind == "worker":
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(draw.choice(victim.workers()), signal.SIGKILL)
            return f"SIGKILL of a worker of {victim.name}"
        if kind == "machine":
            victim.cut()
            return f"SIGKILL of {victim.name}"
        victim.leave()
        return f"SIGTERM of {victim.name}"

    def revive(self) -> None:
        """Switch all machines on that are gone."""
        for each in self.started:
            if not each.running:
                each.start()

    def hold(self) -> None:
        """No worker goes on until its launcher starts it anew."""
        for pid in [pid for each in self.started if each.running for pid in each.workers()]:
            with contextlib.suppress(OSError):
                os.kill(behind(pid), signal.SIGSTOP)

    def rest(self, seconds: float) -> bool:
        """Wait; whether the job still runs."""
        assert self.first is not None
        assert self.first.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.first.process.wait(seconds)
        return self.first.running

    def end(self) -> int:
        """Wait until it is through; its exit code."""
        deadline = time.monotonic() + LIMIT
        try:
            while self.rest(1.0) and time.monotonic() < deadline:
                if not any(each.running for each in self.started):
                    self.revive()
            assert self.first is not None
            assert self.first.process is not None
            return -1 if self.first.running else self.first.process.returncode
        finally:
            self.cut()

    def cut(self) -> None:
        """Nothing of it is left."""
        for each in [self.first, *self.started]:
            if each is not None and each.running:
                each.cut()

    def losses(self) -> list[tuple[int, float]]:
        """Update and loss, in the order in which they were made."""
        path = self.folder / "losses.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        pairs = [line.split() for line in lines if len(line.split()) == 2]
        return [(int(update), float(loss)) for update, loss in pairs]

    def await_update(self, number: int) -> bool:
        """Until so many updates were made; False if the job has ended before."""
        deadline = time.monotonic() + LIMIT
        while self.reached() < number and time.monotonic() < deadline:
            if not self.rest(0.02):
                return False
        return self.reached() >= number

    def reached(self) -> int:
        """The last update that was made."""
        return max((update for update, _ in self.losses()), default=0)


@dataclass(frozen=True)
class Outcome:
    """How far a job that was disturbed is from one that was not."""

    code: int
    updates: int
    repeated: int
    """Updates that were made again, because they came after the last checkpoint."""
    farthest: float
    """The largest difference of a loss, as a share of it."""
    missing: int
    """Updates that were never made."""


def compared(job: Job, code: int, expected: dict[int, float]) -> Outcome:
    """Every loss that the job ever had, those before a kill too."""
    found = job.losses()
    seen = {update for update, _ in found}
    differences = [abs(loss - expected[update]) / expected[update] for update, loss in found]
    return Outcome(
        code=code,
        updates=len(seen),
        repeated=len(found) - len(seen),
        farthest=max(differences, default=0.0),
        missing=len(expected.keys() - seen),
    )


def undisturbed(folder: Path, arguments: list[str]) -> dict[int, float]:
    """The losses of the same job without a checkpoint, on two workers."""
    folder.mkdir()
    command = [python(), "-m", "fleetx.launch", "--gpus=none", "--nproc_per_node=2", str(SCRIPT)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(
        [*command, *arguments, "--losses=losses.txt"],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
    )
    return dict(Job(folder, arguments).losses())


def standstills(folder: Path, draw: random.Random) -> dict[str, float]:
    """What is done to a job of two machines -> seconds until it makes a new update."""
    folder.mkdir()
    job, found = Job(folder, ["--epochs=1000", "--batch=16"], machines=2), {}
    job.start()
    last = job.started[-1]
    try:
        for kind in Kills.kinds:
            job.revive()
            while not last.workers():
                assert job.await_update(job.reached() + 1), f"look at {folder}"
            assert job.await_update(job.reached() + 20), f"look at {folder}"
            began, reached = time.monotonic(), job.reached()
            done = job.strike(kind, last, draw)
            if kind == "leave":  # the workers go on until they have saved
                assert last.process is not None
                last.process.wait()
                began, reached = time.monotonic(), job.reached()
            assert job.await_update(reached + 1), f"look at {folder}"
            found[done] = time.monotonic() - began
    finally:
        job.cut()
    return found


def main() -> None:
    """Kill, compare, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=6.0, help="seconds between two, at the most")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-3,  # one undisturbed process is 3e-4 from two: sums are rounded in another order
        help="of a loss, as a share of it, for jobs whose number of workers changed",
    )
    parser.add_argument("--machines", type=int, help="1 or 2; by default in turn")
    parser.add_argument("--arguments", default="--epochs=2 --batch=16", help="of the example")
    args = parser.parse_args()
    draw = random.Random(args.seed)
    arguments = args.arguments.split()
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    for done, seconds in standstills(folder / "standstills", random.Random(args.seed)).items():
        print(f"{seconds:.1f} s until the next update after a {done}", flush=True)
    expected = undisturbed(folder / "plain", arguments)
    left, failures = args.kills, 0
    for number in range(2 * args.kills):
        if left <= 0:
            break
        machines = args.machines or 1 + number % 2
        job = Job(folder / f"job{number}", arguments, machines)
        job.folder.mkdir()
        job.start()
        job.disturb(Kills(pause=args.pause, number=min(left, 10)), draw)
        found = compared(job, job.end(), expected)
        left -= len(job.killed)
        good = not found.code and not found.missing and found.farthest <= args.tolerance
        failures += not good
        print(f"{'well' if good else 'NOT WELL'}: {machines} machine(s), {found}", flush=True)
        for line in job.killed:
            print(f"    {line}", flush=True)
    print(f"{args.kills - left} kills, {failures} jobs that did not go on as they should")
    if failures:
        sys.exit(f"look at {folder}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
