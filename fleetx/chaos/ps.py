"""A job with parameter servers, and what happens to it."""

import multiprocessing
import os
import random
import resource
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.chaos.lanes import NUMBERS, ROWS, Progress, ids_of
from fleetx.chaos.tally import Tally
from fleetx.ps.wire.handshake import OBSERVER

PATIENCE = 120.0
"""Seconds after which a job that makes no progress has failed."""
_POLL = 0.005
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How often a job is disturbed, and in which ways."""

    kills: int = 0
    worker_kills: int = 0
    stops: int = 0
    full_disks: int = 0
    damages: int = 0
    frames: int = 0
    stop_seconds: float = 0.2

    def shuffled(self, mode: str, chance: random.Random) -> list[str]:
        """One after the other; synchronous jobs end with a worker, so none is killed there."""
        counts = {
            "kill": self.kills,
            "kill_worker": 0 if mode == "sync" else self.worker_kills,
            "stop": self.stops,
            "fill_disk": self.full_disks,
            "damage": 1 if self.damages else 0,
            "attack": 1 if self.frames else 0,
        }
        found = [name for name, count in counts.items() for _ in range(count)]
        chance.shuffle(found)
        return found


class Job:
    """Servers and workers of one job; every disturbance is a method."""

    def __init__(
        self,
        mode: str,
        folder: Path,
        faults: Faults,
        *,
        servers: int,
        workers: int,
        seed: int,
        dense: bool,
        storage: str = "memory",
    ) -> None:
        from fleetx.chaos.processes import JobOptions

        self._context: Any = multiprocessing.get_context("forkserver")
        loaded = ["fleetx.chaos.processes", "fleetx.chaos.damage"]
        self._context.set_forkserver_preload([*loaded, *["fleetx.chaos.with_dense"] * dense])
        self._faults, self._chance, self.tally = faults, random.Random(seed), Tally()
        folder.mkdir(parents=True, exist_ok=True)
        endpoints = tuple(f"127.0.0.1:{port}" for port in _free_ports(servers))
        token = secrets.token_hex().encode()
        self.options = JobOptions(mode, workers, endpoints, token, folder, PATIENCE, dense, storage)
        lanes = workers + faults.worker_kills
        counts = self._context.RawArray("q", Progress.size(lanes, servers))
        self._progress = Progress(counts, servers)
        self._goal = self._context.RawValue("q", 0)
        self._may_leave = self._context.RawValue("q", 0)
        self._arrived = self._context.RawArray("q", workers)
        self._lanes = 0
        """Lives of workers so far."""
        self._servers: list[BaseProcess] = [self._server(n) for n in range(servers)]
        self._workers: list[BaseProcess] = [self._worker(n) for n in range(workers)]

    def run(self) -> Tally:
        """Disturb the job until all faults have happened, let it end, and count."""
        try:
            for fault in self._faults.shuffled(self.options.mode, self._chance):
                self._await_pushes(self._chance.randrange(1, 30))
                getattr(self, f"_{fault}")()
            self._await_pushes(10)
            self._end()
        except _FailedError as error:
            self.tally.failures.append(str(error))
        finally:
            self._kill_all()
        self.tally.pushes = self._progress.total()
        self.tally.refused = self._progress.refusals()
        return self.tally

    def _server(self, number: int, *, wait: bool = True) -> BaseProcess:
        """Start a server; it may find that its port is not free yet."""
        from fleetx.chaos.processes import serve

        deadline = time.monotonic() + PATIENCE
        while True:
            ours, theirs = self._context.Pipe(duplex=False)
            process = self._context.Process(
                target=serve, args=(self.options, number, theirs), daemon=True
            )
            process.start()
            theirs.close()
            if not wait:
                return process  # type: ignore[no-any-return]
            try:
                refusal = ours.recv() if ours.poll(PATIENCE) else "it says nothing"
            except EOFError:
                refusal = "it ended at once"
            if not refusal:
                return process  # type: ignore[no-any-return]
            process.join()
            if "Address already in use" not in refusal or time.monotonic() > deadline:
                raise _FailedError(f"server {number} does not begin: {refusal}")
            time.sleep(_POLL)

    def _worker(self, index: int) -> BaseProcess:
        from fleetx.chaos.processes import Signs, work

        lane, self._lanes = self._lanes, self._lanes + 1
        signs = Signs(self._goal, self._arrived, self._may_leave)
        arguments = (self.options, index, lane, self._progress, signs)
        process: BaseProcess = self._context.Process(target=work, args=arguments, daemon=True)
        process.start()
        return process

    def _kill(self) -> None:
        """Kill a server, and now and then once more before it is back."""
        number = self._chance.randrange(len(self._servers))
        self._end_server(number)
        if self._chance.random() < 0.2 and self.tally.kills < self._faults.kills:
            self._servers[number] = self._server(number, wait=False)
            time.sleep(self._chance.random() * 0.05)
            self._end_server(number)
        self._servers[number] = self._server(number)

    def _end_server(self, number: int) -> None:
        self._servers[number].kill()
        self._servers[number].join()
        self.tally.kills += 1

    def _kill_worker(self) -> None:
        index = self._chance.randrange(len(self._workers))
        self._workers[index].kill()
        self._workers[index].join()
        self.tally.worker_kills += 1
        self._workers[index] = self._worker(index)

    def _stop(self) -> None:
        """Stop a server as a busy machine might, with connections and heartbeats waiting."""
        pid = self._chosen()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self._faults.stop_seconds)
        os.kill(pid, signal.SIGCONT)
        self.tally.stops += 1

    def _fill_disk(self) -> None:
        """Let a server write nothing until it has refused pushes, and then let it write again."""
        number = self._chance.randrange(len(self._servers))
        pid = self._servers[number].pid
        assert pid is not None
        before = self._progress.refusals(number)
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
        self._await(lambda: self._progress.refusals(number) > before, "no push was refused")
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        self.tally.full_disks += 1

    def _damage(self) -> None:
        """Kill a server, and begin with damaged copies of what it left."""
        from fleetx.chaos.damage import examine

        number = self._chance.randrange(len(self._servers))
        self._end_server(number)
        ours, theirs = self._context.Pipe(duplex=False)
        folder = self.options.folder
        places = folder / f"state-{number}", folder / "scratch"
        arguments = (*places, self._faults.damages, self._chance.getrandbits(30), theirs)
        process = self._context.Process(target=examine, args=arguments, daemon=True)
        process.start()
        theirs.close()
        try:
            self.tally.add(ours.recv())
        except EOFError:
            raise _FailedError("the process that damages files has failed") from None
        process.join()
        self._servers[number] = self._server(number)

    def _attack(self) -> None:
        from fleetx.chaos.hostile import attack

        for _ in range(self._faults.frames):
            attack(self._chance.choice(self.options.endpoints), self.options.token, self._chance)
            self.tally.frames += 1

    def _chosen(self) -> int:
        pid = self._chance.choice(self._servers).pid
        assert pid is not None
        return pid

    def _await_pushes(self, count: int) -> None:
        """Until so many more pushes were acknowledged."""
        goal = self._progress.total() + count
        self._await(lambda: self._progress.total() >= goal, f"{count} pushes were not taken")

    def _await(self, reached: Callable[[], bool], complaint: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not reached():
            self._check_alive()
            if time.monotonic() > deadline:
                raise _FailedError(f"the job stands still: {complaint}")
            time.sleep(_POLL)

    def _check_alive(self) -> None:
        for kind, processes in (("server", self._servers), ("worker", self._workers)):
            for number, process in enumerate(processes):
                if not process.is_alive():
                    raise _FailedError(f"{kind} {number} has ended: {self._last(kind, number)}")

    def _last(self, kind: str, number: int) -> str:
        """The last words of a process."""
        path = self.options.folder / f"{kind}-{number}.txt"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return lines[-1] if lines else "it said nothing"

    def _end(self) -> None:
        """Let all workers come to the same step, count what the tables hold, and let them go."""
        self._set_goal()
        self._await(self._all_there, "workers do not come to their end")
        self._count()
        self._may_leave.value = 1
        for kind, processes in (("worker", self._workers), ("server", self._servers)):
            for number, process in enumerate(processes):
                process.join(PATIENCE)
                if process.exitcode != 0:
                    words = self._last(kind, number)
                    raise _FailedError(f"{kind} {number} has not ended well: {words}")

    def _set_goal(self) -> None:
        """Tell workers to end, those of synchronous jobs after the same step."""
        if self.options.mode != "sync":
            self._goal.value = -1
            return
        for process in self._workers:
            _pause(process)
        # While they stand still; each may have begun one step more than it has said.
        self._goal.value = self._progress.furthest() + 2
        for process in self._workers:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGCONT)

    def _all_there(self) -> bool:
        return all(self._arrived)

    def _count(self) -> None:
        """Hold the tables against what workers were told."""
        from fleetx.chaos.processes import handles
        from fleetx.ps.tables.id_batch import IdBatch
        from fleetx.ps.wire.channel import Access
        from fleetx.ps.wire.handshake import Claim
        from fleetx.ps.worker.client import Client

        rows, dense = handles()
        for server, endpoint in enumerate(self.options.endpoints):
            access = Access(self.options.token, Claim(OBSERVER, 0), patience=PATIENCE)
            client = Client([endpoint], access)
            for lane in range(self._lanes):
                batch = IdBatch.of(ids_of(lane), 1)
                found = client.pull(rows, batch, train=False)[batch.place][:ROWS]
                self._compare(found.ravel().tolist(), self._progress.bounds(lane, server))
            if self.options.dense:
                numbers = np.empty(NUMBERS, np.float32)
                client.read(dense, [numbers])
                self._compare(numbers.tolist(), self._dense_bounds(server))
            client.close()

    def _dense_bounds(self, server: int) -> tuple[int, int]:
        each = [self._progress.bounds(n, server, dense=True) for n in range(self._lanes)]
        if self.options.mode == "sync":  # one step of all workers adds one
            return each[0]
        return sum(least for least, _ in each), sum(most for _, most in each)

    def _compare(self, found: list[float], bounds: tuple[int, int]) -> None:
        least, most = bounds
        self.tally.lost += max(0, least - round(min(found)))
        self.tally.doubled += max(0, round(max(found)) - most)
        if min(found) != max(found):
            self.tally.failures.append(f"a push was applied in part: {sorted(set(found))}")

    def _kill_all(self) -> None:
        for process in (*self._workers, *self._servers):
            process.kill()
            process.join()


class _FailedError(Exception):
    """A job did not survive what must not end it."""


def _pause(process: BaseProcess) -> None:
    """Stop a process, and wait until it stands still."""
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    status = Path(f"/proc/{process.pid}/stat")
    deadline = time.monotonic() + PATIENCE
    while status.read_text().rpartition(")")[2].split()[0] not in ("T", "t"):
        if time.monotonic() > deadline:
            raise _FailedError(f"process {process.pid} cannot be stopped")
        time.sleep(_POLL)


def _free_ports(count: int) -> list[int]:
    """Ports that the kernel gives to nobody who asks for any: callers would take them."""
    end = int(_PORTS.read_text().split()[0]) if _PORTS.exists() else 32768
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(10000, end)
        with socket.socket() as probe:
            if port not in found and probe.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
    return found


def run_modes(
    modes: Sequence[str],
    folder: Path,
    faults: Faults,
    *,
    servers: int = 2,
    workers: int = 2,
    seed: int = 0,
    dense: bool = True,
    storage: str = "memory",
) -> Iterator[tuple[str, Tally]]:
    """One job in each mode, and what became of it.

    Args:
        modes: of ``fleetx.chaos.lanes.MODES``.
        folder: where servers keep their state.
        faults: what happens to each job.
        servers: of each job.
        workers: of each job.
        seed: of chance.
        dense: whether there is a table of dense parameters beside that of rows.
        storage: "disk" for a table of rows that is larger than memory.
    """
    for number, mode in enumerate(modes):
        job = Job(
            mode,
            folder / mode,
            faults,
            servers=servers,
            workers=workers,
            seed=seed + number,
            dense=dense,
            storage=storage,
        )
        yield mode, job.run()
