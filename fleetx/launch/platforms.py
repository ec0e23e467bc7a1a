"""What a platform (PaddleCloud, Kubernetes, MPI) says about the job through variables."""

from collections.abc import Mapping
from dataclasses import replace

from fleetx.launch.arguments import Arguments
from fleetx.launch.errors import LaunchError

_FROM_VARIABLES = {"master": "PADDLE_MASTER", "nnodes": "PADDLE_NNODES"}
_TASKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def complete(arguments: Arguments, environ: Mapping[str, str]) -> tuple[Arguments, tuple[str, ...]]:
    """The arguments with what the platform adds, and a line for each thing it added."""
    completed = _completed(arguments, environ)
    # Only now, because a variable may have named the machines as well as a flag.
    _refuse_nesting(completed[0], environ)
    return completed


def _completed(
    arguments: Arguments, environ: Mapping[str, str]
) -> tuple[Arguments, tuple[str, ...]]:
    if arguments.use_paddlecloud:
        return _from_paddlecloud(arguments, environ)
    # Workers of fleetrun see these variables too; a fleetrun inside one is a job of its own.
    nested = environ.get("FLEETX_LAUNCHER") == "fleetrun"
    if nested or arguments.is_parameter_server() or arguments.ips is not None:
        return arguments, ()
    return _from_kubernetes(arguments, environ)


def _refuse_nesting(arguments: Arguments, environ: Mapping[str, str]) -> None:
    several = arguments.nnodes or arguments.ips or arguments.servers or arguments.use_paddlecloud
    for name in _TASKS:
        size = environ.get(name, "")
        if not several and size.isdigit() and int(size) > 1:
            raise LaunchError(
                f"{name}={size} says that mpirun or srun already starts {size} copies, and each "
                "fleetrun would start a whole job; run `mpirun -n "
                f"{size} python train.py` without fleetrun, or one fleetrun per machine with "
                "--nnodes and --master"
            )


def _from_kubernetes(
    arguments: Arguments, environ: Mapping[str, str]
) -> tuple[Arguments, tuple[str, ...]]:
    lines: list[str] = []
    found: dict[str, str] = {}
    for field, name in _FROM_VARIABLES.items():
        value, given = environ.get(name), getattr(arguments, field)
        if not value:
            continue
        if given is None:
            found[field] = value
            lines.append(f"--{field} {value} comes from {name}")
        elif given != value:
            lines.append(f"--{field} {given} wins over {name}={value}")
    return replace(arguments, **found), tuple(lines)  # type: ignore[arg-type]


def _from_paddlecloud(
    arguments: Arguments, environ: Mapping[str, str]
) -> tuple[Arguments, tuple[str, ...]]:
    ips = arguments.ips or _need(environ, "PADDLE_TRAINERS")
    node_ip = arguments.node_ip or _need(environ, "POD_IP")
    rank = _number(environ, "PADDLE_TRAINER_ID")
    port = arguments.started_port or _number(environ, "PADDLE_PORT")
    hosts = [host.strip() for host in ips.split(",")]
    if rank >= len(hosts) or hosts[rank] != node_ip:
        raise LaunchError(
            f"PADDLE_TRAINER_ID={rank} does not point at {node_ip} in {ips}, so the place of this "
            "machine is unclear; correct PADDLE_TRAINERS, POD_IP or PADDLE_TRAINER_ID"
        )
    lines = [f"{len(hosts)} machines come from PADDLE_TRAINERS, this one from POD_IP={node_ip}"]
    for flag, name, value in (
        ("--ips", "PADDLE_TRAINERS", ips),
        ("--node_ip", "POD_IP", node_ip),
        ("--started_port", "PADDLE_PORT", str(port)),
    ):
        if environ.get(name, value) != value:
            lines.append(f"{flag} {value} wins over {name}={environ[name]}")
    nproc = arguments.nproc_per_node
    ports = environ.get("TRAINER_PORTS_NUM")
    if ports is not None and nproc is not None and _number(environ, "TRAINER_PORTS_NUM") < nproc:
        raise LaunchError(
            f"TRAINER_PORTS_NUM={ports} gives fewer ports than --nproc_per_node {nproc}; lower one"
        )
    chosen = environ.get("DISTRIBUTED_TRAINER_ENDPOINTS")
    if chosen and arguments.started_port is None and arguments.ips is None:
        lines.append("the workers' ports come from DISTRIBUTED_TRAINER_ENDPOINTS")
        arguments = replace(arguments, endpoints=chosen)
    found = replace(arguments, ips=ips, node_ip=node_ip, started_port=port)
    return found, tuple(lines)


def _need(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name)
    if not value:
        raise LaunchError(
            f"--use_paddlecloud reads the variable {name}, which is not set; run inside "
            "PaddleCloud, or name the machines with --ips"
        )
    return value


def _number(environ: Mapping[str, str], name: str) -> int:
    value = _need(environ, name)
    if not value.isdigit():
        raise LaunchError(f"{name}={value!r} is not a whole number, which it must be; correct it")
    return int(value)
