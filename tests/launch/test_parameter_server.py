"""Parameter-server jobs, with real processes."""

import json
import time
from pathlib import Path

import pytest

from fleetx.launch.arguments import Arguments
from fleetx.launch.errors import LaunchError
from fleetx.launch.parameter_server import plan
from fleetx.launch.ports import Ports
from fleetx.testing.limits import stretched
from tests.launch.conftest import Launcher

SERVE = """
import json, os, signal, socketserver, sys, time
names = ("TRAINING_ROLE", "PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINER_ENDPOINTS",
    "PADDLE_TRAINERS_NUM", "POD_IP", "PADDLE_PORT", "PADDLE_TRAINER_ID", "RANK", "WORLD_SIZE")
print(json.dumps({name: os.environ.get(name) for name in names}))
if os.environ["TRAINING_ROLE"] == "PSERVER":
    def stop(*_):
        print("told to stop"); sys.exit(0)
    signal.signal(signal.SIGTERM, stop)
    class Server(socketserver.TCPServer):
        allow_reuse_address = True
    class Handler(socketserver.BaseRequestHandler):
        def handle(self): self.request.sendall(b"hi")
    Server((os.environ["POD_IP"], int(os.environ["PADDLE_PORT"])), Handler).serve_forever()
import socket
for endpoint in os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(","):
    host, port = endpoint.split(":")
    while True:
        try:
            print(endpoint, socket.create_connection((host, int(port))).recv(2)); break
        except ConnectionRefusedError: time.sleep(0.1)
"""


def test_servers_serve_until_the_workers_end(launcher: Launcher) -> None:
    outcome = launcher.run("--server_num=2", "--worker_num=2", launcher.script(SERVE))
    assert outcome.code == 0, outcome.err
    for rank in range(2):
        server = launcher.log(f"serverlog.{rank}").splitlines()
        worker = launcher.log(f"workerlog.{rank}").splitlines()
        seen, mine = json.loads(server[0]), json.loads(worker[0])
        assert seen["TRAINING_ROLE"] == "PSERVER"
        assert seen["RANK"] is None
        endpoints = mine["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")
        assert endpoints[rank] == f"{seen['POD_IP']}:{seen['PADDLE_PORT']}"
        assert mine["TRAINING_ROLE"] == "TRAINER"
        assert mine["PADDLE_TRAINER_ID"] == mine["RANK"] == str(rank)
        assert mine["PADDLE_TRAINERS_NUM"] == mine["WORLD_SIZE"] == "2"
        assert worker[1:] == [f"{endpoint} b'hi'" for endpoint in endpoints]
        assert server[-1] == "told to stop"
    assert "b'hi'" in outcome.out, "worker 0 is echoed"


def test_a_failing_server_ends_the_job(launcher: Launcher) -> None:
    script = launcher.script(
        "import os, sys, time\n"
        "if os.environ['TRAINING_ROLE'] == 'PSERVER': raise MemoryError('table too large')\n"
        "time.sleep(100)"
    )
    began = time.monotonic()
    outcome = launcher.run("--server_num=1", "--worker_num=2", script)
    assert outcome.code == 1
    assert "server 0 failed first (exit code 1)" in outcome.err
    assert "MemoryError: table too large" in outcome.err
    assert time.monotonic() - began < stretched(30)


def test_lists_start_each_machine_s_own_processes(launcher: Launcher) -> None:
    with Ports() as ports:
        a, b, c, d, meeting = (ports.free("127.0.0.1") for _ in range(5))
    flags = (
        f"--servers=127.0.0.1:{a},127.0.0.2:{b}",
        f"--workers=127.0.0.1:{c},127.0.0.2:{d}",
        f"--http_port={meeting}",
    )
    script = launcher.script(SERVE)
    jobs = [
        launcher.start(*flags, f"--node_ip=127.0.0.{n}", f"--log_dir=log{n}", script)
        for n in (1, 2)
    ]
    outcomes = [launcher.finish(job) for job in jobs]
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    for n in (1, 2):
        names = sorted(path.name for path in (launcher.folder / f"log{n}").iterdir())
        number = n - 1
        assert names == [f"serverlog.{number}", f"watch.{number}.jsonl", f"workerlog.{number}"]
        assert "told to stop" in launcher.log(f"serverlog.{n - 1}", f"log{n}")


def test_workers_without_ports_get_some() -> None:
    arguments = Arguments(servers="127.0.0.1:7100", workers="127.0.0.1", script="x")
    with Ports() as ports:
        job = plan(arguments, {}, ports)
    assert job.world is not None
    assert job.world.workers == ("127.0.0.1:6171",)
    assert job.master is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (Arguments(server_num=1), "--worker_num is not set"),
        (Arguments(worker_num=1), "--server_num is not set"),
        (Arguments(servers="a:1"), "--workers is not set"),
        (Arguments(servers="127.0.0.1:1,127.0.0.1:1", workers="a"), "127.0.0.1:1 twice"),
        (Arguments(servers="127.0.0.1", workers="a"), "is not an address"),
        (Arguments(servers="127.0.0.1:9", workers="127.0.0.1:9"), "both in --servers and"),
        (Arguments(servers="127.0.0.1:9", workers="127.0.0.1", server_num=2), "contradicts"),
        (
            Arguments(servers="127.0.0.1:9", workers="127.0.0.1", worker_num="auto"),
            "contradicts",
        ),
        (Arguments(server_num=1, worker_num=1, gpus="0"), "--gpus belongs to collective"),
        (Arguments(server_num=1, worker_num=1, ips="a,b"), "--ips belongs to collective"),
    ],
)
def test_bad_flags_are_explained(arguments: Arguments, words: str) -> None:
    with Ports() as ports, pytest.raises(LaunchError, match=words):
        plan(arguments, {}, ports)


KEEP = """
import os, pathlib, time
kept = pathlib.Path(os.environ["FLEETX_PS_STATE"])
print(kept)
if os.environ["TRAINING_ROLE"] == "PSERVER":
    kept.mkdir(parents=True, exist_ok=True)
    while True:
        time.sleep(0.1)
while not kept.exists():
    time.sleep(0.1)
"""


def test_servers_keep_their_logs_where_the_environment_says(launcher: Launcher) -> None:
    """In a folder of this job, which goes with it."""
    flags = ("--server_num=1", "--worker_num=1", launcher.script(KEEP))
    place = launcher.folder / "fast disk"
    outcome = launcher.finish(launcher.start(*flags, FLEETX_PS_STATE=str(place)))
    assert outcome.code == 0, outcome.err
    kept = Path(launcher.log("serverlog.0").splitlines()[0])
    assert place in kept.parents
    assert not [*place.iterdir()]


def test_a_place_for_logs_that_cannot_be_written_to_is_named(launcher: Launcher) -> None:
    flags = ("--server_num=1", "--worker_num=1", launcher.script(KEEP))
    (launcher.folder / "file").touch()
    place = str(launcher.folder / "file" / "state")
    outcome = launcher.finish(launcher.start(*flags, FLEETX_PS_STATE=place))
    assert outcome.code == 2
    assert f"servers cannot keep their logs in {place}" in outcome.err
    assert "set FLEETX_PS_STATE" in outcome.err
