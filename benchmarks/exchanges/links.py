"""Workers in network namespaces of their own, joined by a bridge over links of a given rate.

Namespaces belong to processes and not to names: each exists as long as the worker that lives in
it, or, for the bridge, as long as a ``cat`` that reads from us. So nothing is left behind, whatever
ends this process.
"""

import contextlib
import json
import os
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

ROOT = Path(__file__).parent.parent.parent
DEVICE = "wire0"
"""What a worker calls its end of the link."""
NETWORK = "10.77.0"
FRAME = 9000
"""Bytes of a packet: large ones, for here the processor does the work of network cards."""
PORT = 29555
"""No port of a namespace is taken."""

TCP = {"tcp_congestion_control": "reno", "tcp_wmem": "4096,65536,524288"}
"""So that links lose nothing: what connections have under way fits into the queue of a link.

Every namespace may choose reno, which then never has anything to do.
"""

LINKS = {"free": 0.0, "10G": 10e9, "1G": 1e9, "100M": 100e6}
"""Name of a link -> bits a second each way; 0: as fast as the processor carries it."""


class NoLinks(RuntimeError):
    """Why this machine cannot have such links."""


def why_not() -> str:
    """Why there can be no namespaces here; empty if there can."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces and rates of links need root"
    missing = [name for name in ("unshare", "nsenter", "ip", "tc") if not shutil.which(name)]
    if missing:
        return f"there is no {' and no '.join(missing)} here (util-linux, iproute2)"
    return _refused_trial()


def _refused_trial() -> str:
    """Make a link and a rate in a namespace that ends with the command."""
    shell = (
        "ip link add name left0 type veth peer name right0 && ip link set left0 up && "
        "ip link add name bridge0 type bridge && "
        "tc qdisc add dev left0 root tbf rate 1gbit burst 125kb latency 100ms"
    )
    done = subprocess.run(
        ["unshare", "--net", "--uts", "sh", "-c", shell],
        capture_output=True,
        text=True,
        check=False,
    )
    said = (done.stderr or done.stdout).strip().splitlines()
    return "" if done.returncode == 0 else f"the kernel refuses: {said[-1] if said else '?'}"


class Lab:
    """Some workers behind links; ``with Lab(4) as lab: lab.ask({"do": ...})``."""

    def __init__(self, workers: int, module: str = "benchmarks.exchanges.worker") -> None:
        if reason := why_not():
            raise NoLinks(f"links of a given rate cannot be made: {reason}.")
        self.size, self._module = workers, module
        self._workers: list[subprocess.Popen[str]] = []
        self._switch: subprocess.Popen[str] | None = None
        self._link = ""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> None:
        self._switch = _inside(["cat"])
        _say(self._switch, "here")
        _line(self._switch)  # it echoes from where the bridge shall be
        self._on_switch("ip link add name bridge0 type bridge")
        self._on_switch(f"ip link set bridge0 mtu {FRAME} up")
        for rank in range(self.size):
            command = [sys.executable, "-m", self._module, str(rank), str(self.size)]
            self._workers.append(_inside(command, _environment(rank, self.size)))
        for rank, worker in enumerate(self._workers):
            _line(worker)  # it says so when it is in its namespace, before it loads anything
            self._plug_in(rank, worker.pid)
        self.set_rate("free")
        self.ask({"do": "join"}, limit=120)

    def _plug_in(self, rank: int, pid: int) -> None:
        port = f"port{rank}"
        self._on_switch(f"ip link add name {port} type veth peer name {DEVICE} netns {pid}")
        self._on_switch(f"ip link set {port} mtu {FRAME}")
        self._on_switch(f"ip link set {port} master bridge0")
        self._on_switch(f"ip link set {port} up")
        _run(pid, f"ip addr add {address(rank)}/24 dev {DEVICE}")
        _run(pid, f"ip link set {DEVICE} mtu {FRAME} up")
        _run(pid, "ip link set lo up")
        for name, value in TCP.items():
            _run(pid, f"sysctl -q -w net.ipv4.{name}={value}")

    def _on_switch(self, command: str) -> None:
        assert self._switch is not None
        _run(self._switch.pid, command)

    def set_rate(self, link: str) -> None:
        """Give every link this rate, each way."""
        if link == self._link:
            return
        for rank, worker in enumerate(self._workers):
            _run(worker.pid, _shaped(DEVICE, LINKS[link]))
            self._on_switch(_shaped(f"port{rank}", LINKS[link]))
        self._link = link

    def ask(self, command: Mapping[str, Any], limit: float = 300.0) -> list[dict[str, Any]]:
        """Tell every worker the same and return what each answered.

        Raises:
            RuntimeError: one of them failed, or was silent for too long.
        """
        for worker in self._workers:
            with contextlib.suppress(BrokenPipeError):
                _say(worker, json.dumps(command))
        answers: dict[int, dict[str, Any]] = {}
        for rank, line in _lines(self._workers, time.monotonic() + limit):
            answers[rank] = json.loads(line)
            if "error" in answers[rank]:
                raise RuntimeError(f"worker {rank}: {answers[rank]['error']}")
        return [answers[rank] for rank in range(self.size)]

    def close(self) -> None:
        """End the workers; their links and namespaces end with them."""
        started = [*self._workers, *([self._switch] if self._switch else [])]
        for process in started:
            process.kill()
        for process in started:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._workers, self._switch, self._link = [], None, ""


def address(rank: int) -> str:
    """Where a worker is reached."""
    return f"{NETWORK}.{rank + 1}"


def _environment(rank: int, size: int) -> dict[str, str]:
    """What a launcher would have set."""
    told = {
        "RANK": rank,
        "LOCAL_RANK": 0,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": 1,
        "MASTER_ADDR": address(0),
        "MASTER_PORT": PORT,
        "GLOO_SOCKET_IFNAME": DEVICE,
        "OMP_NUM_THREADS": 1,
        "CUDA_VISIBLE_DEVICES": "",
    }
    return os.environ | {name: str(value) for name, value in told.items()}


def _inside(command: list[str], environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """A process in a new namespace, which reads and writes lines.

    ``unshare`` becomes the command, so that the process that we know is the one in there.
    """
    return subprocess.Popen(
        ["unshare", "--net", "--uts", *command],
        cwd=ROOT,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _run(pid: int, command: str) -> None:
    """A command in the namespace of a process."""
    done = subprocess.run(
        [
            "nsenter",
            f"--net=/proc/{pid}/ns/net",
            *(word.replace(",", " ") for word in command.split()),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NoLinks(f"{command!r} failed: {done.stderr.strip()}")


def _shaped(device: str, rate: float) -> str:
    """The command that gives one direction of a link its rate.

    What may pass at once is what the link carries in a millisecond, so that a small message is not
    faster than the link is.
    """
    if not rate:
        return f"tc qdisc replace dev {device} root pfifo limit 10000"
    burst = max(int(rate / 8 / 1000), 10_000)
    return f"tc qdisc replace dev {device} root tbf rate {rate:.0f}bit burst {burst}b latency 400ms"


def _say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended before it said anything")
    return line


def _lines(workers: list[subprocess.Popen[str]], deadline: float) -> Iterator[tuple[int, str]]:
    """The next line of each, in the order in which they come."""
    with selectors.DefaultSelector() as waiting:
        for rank, worker in enumerate(workers):
            pipe: IO[str] | None = worker.stdout
            assert pipe is not None
            waiting.register(pipe, selectors.EVENT_READ, (rank, worker))
        while waiting.get_map():
            ready = waiting.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                silent = sorted(key.data[0] for key in waiting.get_map().values())
                raise RuntimeError(f"workers {silent} did not answer in time")
            for key, _ in ready:
                rank, worker = key.data
                waiting.unregister(key.fileobj)
                yield rank, _line(worker)
