"""What the launcher prints before it starts: the configuration and the variables."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from fleetx.launch.arguments import Arguments
from fleetx.launch.cluster import Job, Process, World
from fleetx.launch.environment import documented

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
