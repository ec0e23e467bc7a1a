"""Planning a collective job: one machine, a list of machines, or a meeting point."""

from collections.abc import Mapping

from fleetx.launch.addresses import (
    find_own,
    is_local,
    is_loopback,
    resolve,
    split_endpoint,
    split_list,
)
from fleetx.launch.arguments import Arguments
from fleetx.launch.cluster import Job, collective_world, consecutive
from fleetx.launch.devices import choose, is_none
from fleetx.launch.errors import LaunchError
from fleetx.launch.ports import Ports
from fleetx.roles.addresses import join_endpoint, towards

DEFAULT_PORT = 6170
LOOPBACK = "127.0.0.1"
ELSEWHERE = "192.0.2.1"
"""An address of no machine (RFC 5737), to ask which way leads out."""


def plan(arguments: Arguments, environ: Mapping[str, str], ports: Ports) -> Job:
    """The collective job that the flags describe."""
    low, high = _nnodes(arguments.nnodes)
    if arguments.ips is not None and (arguments.master or arguments.nnodes):
        raise LaunchError(
            "--ips and --master/--nnodes are two ways to name the machines, and a job uses one; "
            "remove either"
        )
    if arguments.master is not None and arguments.nnodes is None:
        raise LaunchError(
            f"--master {arguments.master} (or PADDLE_MASTER) is where several machines meet, and "
            "without --nnodes (or PADDLE_NNODES) each would train alone; set --nnodes to their "
            "number"
        )
    here = choose(arguments.gpus, arguments.nproc_per_node, environ)
    if arguments.ips is not None and "," in arguments.ips:
        return _by_list(arguments, environ, ports, here)
    if high > 1:
        return _by_meeting(arguments, environ, ports, here, nodes=(low, high))
    return _alone(arguments, environ, ports, here)


def _nnodes(text: str | None) -> tuple[int, int]:
    if text is None:
        return 1, 1
    low, _, high = text.partition(":")
    if not low.isdigit() or not (high or low).isdigit():
        raise LaunchError(f"--nnodes {text!r} is not a number of machines; write 2 or 2:4")
    pair = int(low), int(high or low)
    if not 1 <= pair[0] <= pair[1]:
        raise LaunchError(f"--nnodes {text!r} must be at least 1 and not fall; write 2 or 2:4")
    return pair


def _alone(
    arguments: Arguments,
    environ: Mapping[str, str],
    ports: Ports,
    here: tuple[tuple[str, ...], int],
) -> Job:
    cards, nproc = here
    if arguments.rank:
        raise LaunchError(
            f"--rank {arguments.rank} needs several machines, but the job has one; set --nnodes"
        )
    if arguments.node_ip is not None and arguments.ips is None and arguments.nnodes is None:
        raise LaunchError(
            f"--node_ip {arguments.node_ip} says which of several machines this is, but no others "
            "are named; add --ips, or --nnodes and --master, or leave it out"
        )
    host = arguments.node_ip or LOOPBACK
    if arguments.ips is not None:
        host = find_own((arguments.ips,), given=arguments.node_ip, environ=environ, flag="--ips")
    _check_own(host, "--node_ip")
    endpoints = _own_endpoints(arguments, ports, host, nproc)
    return Job(
        host=host,
        endpoints=endpoints,
        cards=cards,
        hide_cards=is_none(arguments.gpus),
        world=collective_world([endpoints], 0),
    )


def _by_list(
    arguments: Arguments,
    environ: Mapping[str, str],
    ports: Ports,
    here: tuple[tuple[str, ...], int],
) -> Job:
    cards, nproc = here
    hosts = split_list(arguments.ips or "", "--ips")
    host = find_own(hosts, given=arguments.node_ip, environ=environ, flag="--ips")
    node_rank = hosts.index(host)
    if arguments.rank is not None and arguments.rank != node_rank:
        raise LaunchError(
            f"--rank {arguments.rank} contradicts --ips, where {host} is number {node_rank}; "
            "leave --rank out"
        )
    first = arguments.started_port or DEFAULT_PORT
    if first < 2 or first + nproc > 65536:
        raise LaunchError(
            f"--started_port {first} leaves no room for {nproc} workers and the port below it; "
            "choose one between 1025 and 60000"
        )
    tables = [consecutive(each, first, nproc) for each in hosts]
    if arguments.endpoints is not None:
        tables = _chosen_by_platform(arguments.endpoints, hosts, nproc)
        first = split_endpoint(tables[0][0], "DISTRIBUTED_TRAINER_ENDPOINTS")[1]
    _hold(ports, tables[node_rank], "--started_port")
    return Job(
        host=host,
        endpoints=tables[node_rank],
        cards=cards,
        hide_cards=is_none(arguments.gpus),
        world=collective_world(tables, node_rank),
        master=(hosts[0], first - 1),
        master_flag="--started_port",
        node_rank=node_rank,
        min_nodes=len(hosts),
        max_nodes=len(hosts),
    )


def _chosen_by_platform(
    endpoints: str, hosts: tuple[str, ...], nproc: int
) -> list[tuple[str, ...]]:
    name = "DISTRIBUTED_TRAINER_ENDPOINTS"
    listed = split_list(endpoints, name)
    tables = []
    for host in hosts:
        own = [each for each in listed if split_endpoint(each, name)[0] == host]
        if len(own) < nproc:
            raise LaunchError(
                f"{name} gives {host} {len(own)} ports, but it runs {nproc} workers; lower "
                "--nproc_per_node, or choose the ports with --started_port"
            )
        tables.append(tuple(own[:nproc]))
    return tables


def _by_meeting(
    arguments: Arguments,
    environ: Mapping[str, str],
    ports: Ports,
    here: tuple[tuple[str, ...], int],
    *,
    nodes: tuple[int, int],
) -> Job:
    cards, nproc = here
    if arguments.master is None:
        raise LaunchError(
            f"--nnodes {arguments.nnodes} needs a place where the machines meet; add --master "
            "HOST:PORT with the address of one of them, the same on all"
        )
    master = split_endpoint(arguments.master, "--master")
    if arguments.rank is not None and (nodes[0] != nodes[1] or arguments.rank >= nodes[1]):
        raise LaunchError(
            f"--rank {arguments.rank} does not fit --nnodes {arguments.nnodes}; ranks are fixed "
            "only for a fixed number of machines and run from 0 to that number less 1"
        )
    address = resolve(master[0], "--master")
    host = arguments.node_ip or environ.get("POD_IP") or _own_host(master, address)
    _check_own(host, "--node_ip" if arguments.node_ip else "POD_IP")
    return Job(
        host=host,
        endpoints=_own_endpoints(arguments, ports, host, nproc),
        cards=cards,
        hide_cards=is_none(arguments.gpus),
        world=None,
        master=master,
        node_rank=arguments.rank,
        min_nodes=nodes[0],
        max_nodes=nodes[1],
    )


def _own_host(master: tuple[str, int], address: str) -> str:
    """The address under which the other machines reach this one."""
    host = towards(address, master[1])
    if not is_loopback(host) or is_loopback(master[0]):
        return host
    # The machine lists its own name under a loopback address, which is nobody else's way to it.
    host = towards(ELSEWHERE, master[1])
    if is_loopback(host):
        raise LaunchError(
            f"--master {master[0]} is {address} here, which the other machines cannot reach, and "
            "this machine's address among them is unclear; give it with --node_ip"
        )
    return host


def _check_own(host: str, name: str) -> None:
    if not is_local(resolve(host, name)):
        raise LaunchError(
            f"{name} {host} is no address of this machine, so the others could not reach it; set "
            "--node_ip to one that is"
        )


def _own_endpoints(arguments: Arguments, ports: Ports, host: str, nproc: int) -> tuple[str, ...]:
    address = resolve(host, "--ips")
    if arguments.started_port is None:
        return tuple(join_endpoint(host, ports.free(address)) for _ in range(nproc))
    endpoints = consecutive(host, arguments.started_port, nproc)
    _hold(ports, endpoints, "--started_port")
    return endpoints


def _hold(ports: Ports, endpoints: tuple[str, ...], flag: str) -> None:
    for endpoint in endpoints:
        host, port = split_endpoint(endpoint, flag)
        ports.fixed(resolve(host, flag), port, flag)
