"""Ray, Open MPI, ssh, and the variables that Kubernetes gives to pods."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import fleetx as fleet
from fleetx.testing.limits import stretched
from tests.clusters.conftest import blocks, check, environment, needs, run
from tests.ports import await_port, free_ports


def together(commands: list[list[str]], environs: list[dict[str, str]], folder: Path) -> str:
    """What several machines print; all must end well."""
    jobs = [
        subprocess.Popen(
            command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )
        for command, environ in zip(commands, environs, strict=True)
    ]  # fmt: skip
    try:
        said = [job.communicate(timeout=stretched(300))[0] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    assert [job.returncode for job in jobs] == [0] * len(jobs), said
    return "".join(said)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Two nodes with a core each, so that two workers are on both."""
    ray = pytest.importorskip("ray", reason="pip install 'fleetx[clusters]'")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}})
    try:
        yield ray
    finally:
        ray.shutdown()
        cluster.shutdown()


def trained(rate: float) -> tuple[int, int, float]:
    import torch

    fleet.init(is_collective=True)
    torch.manual_seed(fleet.worker_index())
    model = fleet.distributed_model(torch.nn.Linear(4, 1))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=rate))
    optimizer.minimize(model(torch.randn(2, 4)).square().mean())
    return fleet.worker_index(), fleet.worker_num(), model.weight.sum().item()


def fails() -> None:
    fleet.init(is_collective=True)
    assert fleet.worker_index() == 0, "broken here"
    fleet.barrier_worker()


def test_workers_on_ray(ray: Any) -> None:
    first, second = fleet.launch(trained, 0.1, workers=2, on="ray")
    assert (first[:2], second[:2]) == ((0, 2), (1, 2))
    assert first[2] == second[2]


def test_a_worker_on_ray_that_fails_ends_the_others(ray: Any) -> None:
    with pytest.raises(
        RuntimeError, match=r"(?s)worker 1 of fleet\.launch\(\) failed.*broken here"
    ):
        fleet.launch(fails, workers=2, on="ray")
    assert fleet.launch(trained, 0.1, workers=1, on="ray")[0][1] == 1, "its places are free again"


def test_workers_of_mpi(folder: Path) -> None:
    needs("mpirun")
    (line,) = blocks("bash", "MPI")
    command = line.partition("#")[0].replace("-n 4", "--allow-run-as-root --oversubscribe -n 4")
    said = run(["bash", "-c", command], folder, environment())
    check(said, workers=4, nodes=1)


def test_pods_of_an_indexed_job(folder: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install 'fleetx[clusters]'")
    service, job = yaml.safe_load_all(blocks("yaml", "Kubernetes")[0])
    for manifest in (service, job):
        validate.validate(manifest, validate.latest_version(), strict=True)
    spec = job["spec"]["template"]["spec"]
    pod = f"{job['metadata']['name']}-0.{spec['subdomain']}"
    given = {one["name"]: one["value"] for one in spec["containers"][0]["env"]}
    assert given["MASTER_ADDR"] == pod, "where the first pod is found"
    assert int(given["WORLD_SIZE"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    pods = [environment(**given, JOB_COMPLETION_INDEX=str(index)) for index in range(2)]
    said = together([spec["containers"][0]["command"]] * 2, pods, folder)
    check(said, workers=2, nodes=1)


def test_nodes_of_a_trainjob(folder: Path) -> None:
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="pip install 'fleetx[clusters]'"
    )
    manifest = yaml.safe_load(blocks("yaml", "Kubernetes")[1])
    made = models.TrainerV1alpha1TrainJob.from_dict(manifest)
    assert made.to_dict() == manifest, "nothing in it is unknown to Kubeflow"
    trainer = manifest["spec"]["trainer"]
    # What Kubeflow's runtime for torch sets in each node.
    given = {
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(free_ports(1)[0]),
    }
    nodes = [environment(**given, PET_NODE_RANK=str(rank)) for rank in range(2)]
    check(together([trainer["command"]] * 2, nodes, folder), workers=2, nodes=2)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[str]:
    """An ssh server for two addresses of this machine, with keys of its own."""
    needs("sshd", "ssh", "ssh-keygen")
    for name in ("host", "user"):
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", name], tmp_path, environment())
    (tmp_path / "authorized").write_text((tmp_path / "user.pub").read_text())
    (port,) = free_ports(1)
    config = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": tmp_path / "host",
        "AuthorizedKeysFile": tmp_path / "authorized",
        "PidFile": tmp_path / "sshd.pid",
        "StrictModes": "no",
        "UsePAM": "no",
        "AcceptEnv": "PATH PYTHONPATH OMP_NUM_THREADS",
    }
    lines = [f"{key} {value}" for key, value in config.items()]
    (tmp_path / "sshd_config").write_text("\n".join([*lines, "ListenAddress 127.0.0.2", ""]))
    Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen(
        ["/usr/sbin/sshd", "-D", "-e", "-f", str(tmp_path / "sshd_config")],
        stderr=subprocess.DEVNULL,
    )
    (tmp_path / "ssh").write_text(
        f"#!/bin/sh\nexec /usr/bin/ssh -F none -p {port} -i {tmp_path}/user -o SendEnv='PATH "
        f"PYTHONPATH OMP_NUM_THREADS' -o StrictHostKeyChecking=no "
        f'-o UserKnownHostsFile={tmp_path}/known "$@"\n'
    )
    (tmp_path / "ssh").chmod(0o755)
    try:
        await_port(port)
        yield "127.0.0.1 127.0.0.2"
    finally:
        server.terminate()
        server.wait()


def test_machines_by_ssh(hosts: str, folder: Path) -> None:
    (script,) = blocks("bash", "ssh")
    script = script.replace("--ips", f"--gpus none --started_port {free_ports(1)[0]} --ips")
    environ = environment(HOSTS=hosts)
    environ["PATH"] = f"{folder}:{environ['PATH']}"
    run(["bash", "-c", script.replace("--ips", "--log_dir log.$host --ips")], folder, environ)
    logs = [log.read_text() for log in folder.glob("log.*/workerlog.*")]
    check("".join(logs), workers=2, nodes=2)
