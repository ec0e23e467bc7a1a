"""Planning a parameter-server job, on one machine or by lists of servers and workers."""

from collections.abc import Mapping

from fleetx.launch.addresses import find_own, resolve, split_endpoint, split_list
from fleetx.launch.arguments import Arguments
from fleetx.launch.cluster import Job, Process, World
from fleetx.launch.errors import LaunchError
from fleetx.launch.ports import Ports
from fleetx.roles.addresses import join_endpoint

FIRST_WORKER_PORT = 6170
LOOPBACK = "127.0.0.1"
LAST_PORT = 65535
COLLECTIVE_FLAGS = ("gpus", "nproc_per_node", "ips", "nnodes", "master", "rank", "started_port")


def plan(arguments: Arguments, environ: Mapping[str, str], ports: Ports) -> Job:
    """The parameter-server job that the flags describe."""
    _refuse_mixture(arguments)
    if arguments.servers is None and arguments.workers is None:
        return _local(arguments, ports)
    return _by_lists(arguments, environ, ports)


def _refuse_mixture(arguments: Arguments) -> None:
    mixed = [f"--{name}" for name in COLLECTIVE_FLAGS if getattr(arguments, name) is not None]
    if arguments.use_paddlecloud:
        mixed.append("--use_paddlecloud")
    if mixed:
        raise LaunchError(
            f"{mixed[0]} belongs to collective jobs and the server flags to parameter-server jobs, "
            "and a job is one of the two; remove either"
        )


def _local(arguments: Arguments, ports: Ports) -> Job:
    numbers = arguments.server_num, arguments.worker_num
    if not isinstance(numbers[0], int) or not isinstance(numbers[1], int):
        missing = "--server_num" if numbers[0] is None else "--worker_num"
        raise LaunchError(
            f"a parameter-server job needs servers and workers, and {missing} is not set; add it "
            "(auto chooses for the cores of this machine), or list them with --servers and "
            "--workers"
        )
    if arguments.node_ip is not None:
        raise LaunchError(
            f"--node_ip {arguments.node_ip} says which of several machines this is, but "
            "--server_num and --worker_num start everything here; list --servers and --workers, "
            "or leave it out"
        )
    servers = tuple(join_endpoint(LOOPBACK, ports.free(LOOPBACK)) for _ in range(numbers[0]))
    workers = tuple(join_endpoint(LOOPBACK, ports.free(LOOPBACK)) for _ in range(numbers[1]))
    return _job(arguments, servers, workers, host=LOOPBACK, hosts=(LOOPBACK,))


def _by_lists(arguments: Arguments, environ: Mapping[str, str], ports: Ports) -> Job:
    if arguments.servers is None or arguments.workers is None:
        missing = "--servers" if arguments.servers is None else "--workers"
        raise LaunchError(
            f"a parameter-server job needs servers and workers, and {missing} is not set; add it "
            "as ip:port,ip:port"
        )
    servers = split_list(arguments.servers, "--servers")
    workers = _with_ports(split_list(arguments.workers, "--workers"), len(servers))
    _check_number(arguments.server_num, len(servers), "server")
    _check_number(arguments.worker_num, len(workers), "worker")
    everyone = [split_endpoint(each, "--servers")[0] for each in servers]
    everyone += [split_endpoint(each, "--workers")[0] for each in workers]
    clash = set(servers) & set(workers)
    if clash:
        raise LaunchError(
            f"{min(clash)} is both in --servers and in --workers, but two processes cannot share a "
            "port; change one"
        )
    hosts = tuple(dict.fromkeys(everyone))
    host = find_own(hosts, given=arguments.node_ip, environ=environ, flag="--servers/--workers")
    job = _job(arguments, servers, workers, host=host, hosts=hosts)
    assert job.world is not None
    for process in job.world.local:
        name, port = split_endpoint(process.endpoint, "--servers")
        ports.fixed(resolve(name, "--servers"), port, "--servers or --workers")
    return job


def _with_ports(workers: tuple[str, ...], servers: int) -> tuple[str, ...]:
    first = FIRST_WORKER_PORT + servers
    return tuple(
        worker if ":" in worker else join_endpoint(worker, first + index)
        for index, worker in enumerate(workers)
    )


def _check_number(number: int | str | None, listed: int, what: str) -> None:
    if number is not None and number != listed:
        raise LaunchError(
            f"--{what}_num {number} contradicts --{what}s, which lists {listed}; leave it out"
        )


def _job(
    arguments: Arguments,
    servers: tuple[str, ...],
    workers: tuple[str, ...],
    *,
    host: str,
    hosts: tuple[str, ...],
) -> Job:
    node_rank = hosts.index(host)
    world = World(
        workers=workers,
        servers=servers,
        local=_on_host("PSERVER", servers, host) + _on_host("TRAINER", workers, host),
        node_rank=node_rank,
        nnodes=len(hosts),
    )
    return Job(
        host=host,
        endpoints=tuple(process.endpoint for process in world.local),
        world=world,
        master=_rendezvous(arguments, servers + workers, hosts),
        master_flag="--http_port",
        node_rank=node_rank,
        min_nodes=len(hosts),
        max_nodes=len(hosts),
        metrics_port=_metrics_port(arguments, world),
    )


def _metrics_port(arguments: Arguments, world: World) -> int | None:
    servers = sum(process.role == "PSERVER" for process in world.local)
    if arguments.metrics_port is not None and arguments.metrics_port + servers - 1 > LAST_PORT:
        raise LaunchError(
            f"--metrics_port {arguments.metrics_port} leaves no ports for {servers} servers of "
            f"this machine, which take one each; choose one up to {LAST_PORT - servers + 1}"
        )
    return arguments.metrics_port


def _on_host(role: str, endpoints: tuple[str, ...], host: str) -> tuple[Process, ...]:
    here = [
        (rank, endpoint)
        for rank, endpoint in enumerate(endpoints)
        if split_endpoint(endpoint, "--servers")[0] == host
    ]
    return tuple(
        Process(
            role="PSERVER" if role == "PSERVER" else "TRAINER",
            rank=rank,
            local_rank=index,
            endpoint=endpoint,
        )
        for index, (rank, endpoint) in enumerate(here)
    )


def _rendezvous(
    arguments: Arguments, endpoints: tuple[str, ...], hosts: tuple[str, ...]
) -> tuple[str, int] | None:
    if len(hosts) == 1 and arguments.http_port is None:
        return None
    pairs = [split_endpoint(endpoint, "--servers") for endpoint in endpoints]
    lowest = min(port for host, port in pairs if host == hosts[0])
    return hosts[0], arguments.http_port or lowest - 1
