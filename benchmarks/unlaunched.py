"""Jobs of servers and workers without a launcher, as Paddle's and ours can both be started."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def seconds(process: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _endpoint() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


def run(
    command: list[str],
    folder: Path,
    *,
    servers: int = 1,
    workers: int = 1,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a script as all processes of a job, until its workers end.

    Args:
        command: the script and its arguments.
        folder: gets ``log/serverlog.N`` and ``log/workerlog.N``.
        servers: how many.
        workers: how many.
        environment: variables for all of them.
    """
    (folder / "log").mkdir()
    places = {"server": [_endpoint() for _ in range(servers)]}
    places["worker"] = [_endpoint() for _ in range(workers)]
    common = {
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(places["server"]),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(places["worker"]),
        "PADDLE_TRAINERS_NUM": str(workers),
        "PADDLE_WITH_GLOO": "0",
        "POD_IP": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
    } | {**(environment or {})}
    running: list[subprocess.Popen[bytes]] = []
    try:
        for role, endpoints in places.items():
            for number, endpoint in enumerate(endpoints):
                own = {
                    "TRAINING_ROLE": {"server": "PSERVER", "worker": "TRAINER"}[role],
                    # Paddle looks for it among the workers, whoever asks.
                    "PADDLE_TRAINER_ID": str(number % workers),
                    "PADDLE_PORT": endpoint.rpartition(":")[2],
                }
                whole = [sys.executable, *command]
                with (folder / "log" / f"{role}log.{number}").open("w") as log:
                    variables = os.environ | common | own
                    made = subprocess.Popen(whole, env=variables, stdout=log, stderr=log)
                running.append(made)
        for worker in running[servers:]:
            worker.wait(timeout=120)
    finally:
        for process in running:
            process.kill()
            process.wait()
