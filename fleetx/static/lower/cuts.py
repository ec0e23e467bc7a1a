"""Names at which strategies cut a program."""

from fnmatch import fnmatchcase

from fleetx.plan.error import PlanError
from fleetx.plan.option import unknown
from fleetx.static.record.program import Program


def matching(program: Program, entry: str) -> list[str]:
    """The names of variables that an entry of a strategy stands for: a name, or a pattern."""
    if entry in program.names:
        return [entry]
    named = {program.name_of(node) for node in program.graph.nodes if node.op.startswith("call")}
    if entry in named:
        return [entry]
    matched = [name for name in program.names if fnmatchcase(name, entry)]
    # What lies inside of a module that matches is not a cut of its own.
    found = [name for name in matched if not any(name.startswith(f"{o}.") for o in matched)]
    if not found:
        message = f"a strategy cuts the program at {entry!r}, which is no variable of it"
        raise PlanError(unknown(message, entry, [*program.names, *named]))
    return found
