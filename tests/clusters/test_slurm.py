"""A controller and two node daemons of SLURM on this machine; scripts of the page are submitted."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleetx.testing.limits import stretched
from tests.clusters.conftest import blocks, check, environment, needs, run
from tests.ports import free_ports

CONFIG = """
ClusterName=fleetx
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cores} RealMemory=1000
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cores} RealMemory=1000
PartitionName=all Nodes=node1,node2 Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Slurm:
    """A cluster that runs."""

    inside: tuple[str, ...]
    environ: dict[str, str]

    def run(self, *command: str, folder: Path) -> str:
        """What a command prints where the cluster is."""
        return run([*self.inside, *command], folder, self.environ)

    def submit(self, script: str, folder: Path) -> str:
        """What a job leaves in its output."""
        (folder / "job.sh").write_text(script)
        self.run("sbatch", "--wait", "job.sh", folder=folder)
        return (folder / "train.out").read_text()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    needs("munged", "slurmctld", "slurmd", "srun", "unshare", "nsenter")
    if os.geteuid() != 0:
        pytest.skip("daemons of SLURM are started by root")
    folder = tmp_path_factory.mktemp("slurm")
    # Names of machines are known in a mount namespace of the cluster alone.
    (folder / "hosts").write_text("127.0.0.1 localhost node1 node2\n")
    holder = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", f"mount --bind {folder}/hosts /etc/hosts && exec cat"],
        stdin=subprocess.PIPE,
    )
    inside = ("nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "--wd=.")
    environ = environment(SLURM_CONF=f"{folder}/slurm.conf")
    started = Slurm(inside, environ)
    try:
        _await(lambda: "node2" in _hosts(holder.pid), "the namespace")
        _start(started, folder)
        yield started
    finally:
        _end(folder)
        assert holder.stdin is not None
        holder.stdin.close()
        holder.wait()


def _hosts(pid: int) -> str:
    return Path(f"/proc/{pid}/root/etc/hosts").read_text()


def _start(slurm: Slurm, folder: Path) -> None:
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    slurm.run("munged", "--force", f"--socket={folder}/munge.sock", *files, folder=folder)
    text = CONFIG.format(
        host=socket.gethostname().partition(".")[0],
        folder=folder,
        ports=free_ports(3),
        cores=os.cpu_count(),
    )
    (folder / "slurm.conf").write_text(text)
    slurm.run("slurmctld", folder=folder)
    for node in ("node1", "node2"):
        slurm.run("slurmd", "-N", node, folder=folder)
    _await(lambda: "2 idle" in " ".join(slurm.run("sinfo", "-h", folder=folder).split()), "nodes")


def _await(is_there: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + stretched(60)
    while not is_there():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.1)


def _end(folder: Path) -> None:
    for file in sorted(folder.glob("*.pid"), reverse=True):
        subprocess.run(["kill", file.read_text().strip()], check=False)


def test_tasks_of_srun_are_workers(slurm: Slurm, folder: Path) -> None:
    said = slurm.run("srun", "-N2", "-n2", "python", "train.py", folder=folder)
    check(said, workers=2, nodes=2)


@pytest.mark.parametrize("number", [0, 1])
def test_jobs_of_the_page(slurm: Slurm, folder: Path, number: int) -> None:
    check(_all(slurm.submit(blocks("bash", "SLURM")[number], folder), folder), workers=4, nodes=2)


def _all(said: str, folder: Path) -> str:
    """With what `fleetrun` keeps in logs of workers."""
    logs = sorted(folder.glob("log/workerlog.*"))
    return "".join(log.read_text() for log in logs) if logs else said


def test_a_worker_that_fails_ends_the_job(slurm: Slurm, folder: Path) -> None:
    (folder / "train.py").write_text(
        "import fleetx as fleet\nfleet.init(is_collective=True)\n"
        "assert fleet.worker_index() == 0, 'broken here'\nfleet.barrier_worker()\n"
    )
    done = subprocess.run(
        [*slurm.inside, "srun", "--kill-on-bad-exit=1", "-N2", "-n2", "python", "train.py"],
        cwd=folder,
        env=slurm.environ,
        capture_output=True,
        text=True,
        timeout=stretched(120),
        check=False,
    )
    assert done.returncode != 0
    assert "broken here" in done.stderr
