"""Real processes under real launchers: torchrun, mpirun, a simulated srun, bare variables."""

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.programs import python
from tests.rotation import by_turns

SCRIPTS = Path(__file__).parent / "scripts"


def reports(text: str) -> list[dict[str, Any]]:
    """What the workers reported, by rank; two of them may share a line."""
    found = [json.loads(said) for said in re.findall(r"report (\{.*?\})", text)]
    return sorted(
        found, key=lambda said: (said.get("role", ""), said.get("rank", said.get("index")))
    )


def check_two_workers(text: str, source: str) -> None:
    first, second = reports(text)
    assert first["source"] == second["source"] == source
    assert [first["index"], second["index"]] == [0, 1]
    assert [first["local"], second["local"]] == [[0, 2, 1], [1, 2, 1]]
    assert first["endpoints"] == second["endpoints"]
    assert len(set(first["endpoints"])) == 2
    assert [first["shard"], second["shard"]] == [["a", "b"], ["c"]]
    assert text.count("printed once") == 1


def slurm(rank: int, **more: str) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NTASKS": "2",
        "SLURM_NNODES": "1",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "localhost",
        **more,
    }


def bare(port: int, rank: int, **more: str) -> dict[str, str]:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {"RANK": str(rank), "WORLD_SIZE": "2", **place, **more}


def test_srun(crew: Any, port: int) -> None:
    ended = crew("collect.py", [slurm(rank, MASTER_PORT=str(port)) for rank in range(2)])
    assert [one.code for one in ended] == [0, 0], [one.err for one in ended]
    check_two_workers(ended[0].out + ended[1].out, "SLURM job 4711")
    assert "fleetx: 2 workers on 1 node, found by SLURM job 4711; backend" in ended[0].err
    assert "found by" not in ended[1].err


def test_torchrun(launched: Any) -> None:
    script = str(SCRIPTS / "collect.py")
    ended = launched([python(), "-m", "torch.distributed.run", "--nproc_per_node=2", script])
    assert ended.code == 0, ended.err
    check_two_workers(ended.out, "torchrun")
    assert ended.err.count("fleetx: 2 workers on 1 node, found by torchrun; backend") == 1


def test_mpirun(launched: Any, mpirun: list[str]) -> None:
    script = str(SCRIPTS / "collect.py")
    ended = launched([*mpirun, "-n", "2", sys.executable, "-m", "mpi4py", script])
    assert ended.code == 0, ended.err
    check_two_workers(ended.out, "OpenMPI")


@by_turns(2, of=3)
def test_mpirun_pairs(launched: Any, mpirun: list[str]) -> None:
    script = str(SCRIPTS / "pairs.py")
    ended = launched([*mpirun, "-n", "4", sys.executable, "-m", "mpi4py", script])
    assert ended.code == 0, ended.err
    said = reports(ended.out)
    assert [(one["role"], one["index"], one["total"]) for one in said] == [
        ("server", 0, 0),
        ("server", 1, 0),
        ("worker", 0, 3),
        ("worker", 1, 3),
    ]
    assert [one["local"] for one in said] == [[0, 2, 1], [1, 2, 1]] * 2
    assert all(one["endpoints"] == said[0]["endpoints"] for one in said)
    assert len(set(said[0]["endpoints"])) == 4


def test_lone_caller_is_told(crew: Any, port: int) -> None:
    said = crew("lonely.py", [bare(port, rank) for rank in range(2)])[1].out
    assert "fleet.util.all_reduce() waited 1 s for all 2 workers, but these did not come" in said
    assert "did not come: 0;" in said
    assert float(said.split()[0]) < 3.5


def test_a_worker_that_never_starts_is_named(crew: Any, port: int) -> None:
    (ended,) = crew("collect.py", [bare(port, 0, FLEETX_TIMEOUT="2")])
    assert "fleet.init() waited 2 s, but of 2 workers these did not come: 1" in ended.err


def test_group_of_the_script_is_used(crew: Any, port: int) -> None:
    ended = crew("adopt.py", [bare(port, rank) for rank in range(2)])
    assert [one.code for one in ended] == [0, 0], [one.err for one in ended]
    assert ended[0].out == "the script's own process group, 1 node"


def server_job(role: str, index: int, *workers: str) -> dict[str, str]:
    return {"ROLE": role, "INDEX": str(index), "WORKERS": " ".join(workers)}


def test_workers_of_servers_meet_at_their_endpoints(crew: Any, port: int) -> None:
    places = (f"127.0.0.1:{port}", "127.0.0.1:1")
    members = [("WORKER", 0), ("WORKER", 1), ("SERVER", 0)]
    ended = crew("servers.py", [server_job(*member, *places) for member in members])
    assert [one.code for one in ended] == [0, 0, 0], [one.err for one in ended]
    assert [one.out for one in ended[:2]] == ["sum 3", "sum 3"]
    assert "fleet.worker_index() was asked by server 0" in ended[2].out
