"""What the launcher prints before it starts: the configuration and the variables."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from fleetx.launch.arguments import Arguments
from fleetx.launch.cluster import Job, Process, World
from fleetx.launch.environment import documented
from fleetx.roles.addresses import join_endpoint

TITLE = "-----------  Configuration Arguments -----------"
NAME_WIDTH = 40
VALUE_WIDTH = 45
WIDTH = NAME_WIDTH + 2 + VALUE_WIDTH
INDENT = " " * 4


def configuration(arguments: Arguments) -> str:
    """The flags in force, sorted by name."""
    values = asdict(arguments) | {"script_args": " ".join(arguments.script_args)}
    lines = [f"{name}: {value}" for name, value in sorted(values.items())]
    return "\n".join([TITLE, *lines, "-" * len(TITLE)])


def table(variables: Mapping[str, str]) -> str:
    """The box of variables."""
    double, single = f"+{'=' * WIDTH}+", f"+{'-' * WIDTH}+"
    rows = [_row(name, value) for name, value in variables.items()]
    box = [double, _row("Distributed Envs", "Value"), single, *rows, double]
    return "\n".join(INDENT + line for line in box)


def line(job: Job, log_dir: str) -> str:
    """Who starts where, where the logs are, and how to watch."""
    watch = shlex.join(["fleetx", "watch", log_dir])
    return f"fleetrun: {_who(job)} on {_where(job)}; logs in {log_dir}; watch: {watch}"


def _who(job: Job) -> str:
    if job.world is None:
        return _counted(job.size, "worker")
    workers, servers = job.world.local_workers, job.size - job.world.local_workers
    parts = [_counted(servers, "server")] if servers else []
    parts += [_counted(workers, "worker", len(job.world.workers))] if workers else []
    return " and ".join(parts)


def _counted(number: int, name: str, all_of_them: int = 0) -> str:
    """`1 worker`, `2 workers`, or `2 of 8 workers`."""
    of = f" of {all_of_them}" if all_of_them > number else ""
    return f"{number}{of} {name}{'s' * (max(number, all_of_them) != 1)}"


def _where(job: Job) -> str:
    place = f"card{'s' * (len(job.cards) != 1)} {','.join(job.cards)}" if job.cards else "the CPU"
    if job.world is None:
        return f"{place} of {job.host}, which meets {_machines(job)}"
    if job.world.nnodes > 1:
        return f"{place} of {job.host}, machine {job.world.node_rank + 1} of {job.world.nnodes}"
    return f"{place} of this machine"


def _machines(job: Job) -> str:
    assert job.master is not None, "only machines that meet have a world to be made"
    others = (
        f"{job.min_nodes - 1}"
        if job.min_nodes == job.max_nodes
        else f"{job.min_nodes - 1} to {job.max_nodes - 1}"
    )
    return f"{others} others at {join_endpoint(*job.master)}"


def announcement(job: Job) -> str:
    """One line on what starts here, and the box of the first process."""
    head = [f"launch train in {'GPU' if job.cards else 'CPU'} mode"]
    if job.world is None:
        nodes = (
            f"{job.min_nodes}"
            if job.min_nodes == job.max_nodes
            else f"{job.min_nodes} to {job.max_nodes}"
        )
        head.append(
            f"Local start {job.size} processes. Ranks are decided when {nodes} machines have met "
            f"at {job.master[0]}:{job.master[1]}."
            if job.master
            else ""
        )
        return "\n".join(head)
    first = job.world.local[0]
    head.append(
        f"Local start {job.size} processes. First process distributed environment info "
        "(Only For Debug):"
    )
    return "\n".join([*head, table(documented(job, job.world, first))])


def all_tables(job: Job, world: World, processes: Iterable[Process]) -> str:
    """The box of every local process, for a dry run."""
    parts = [f"{each.title}:\n{table(documented(job, world, each))}" for each in processes]
    return "\n".join(parts)


def _row(name: str, value: str) -> str:
    shown = value if len(value) <= VALUE_WIDTH else "... " + value[4 - VALUE_WIDTH :]
    return f"|{name:>{NAME_WIDTH}}  {shown:^{VALUE_WIDTH}}|"
