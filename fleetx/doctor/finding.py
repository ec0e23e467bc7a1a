"""What a look at this machine has found."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "broken"]
"""Fine; works, with something to know; or in the way of a job."""
WIDTH = 14


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    topic: str
    state: State
    said: str
    advice: str = ""
    """What to do about it."""

    def line(self) -> str:
        """For a console."""
        indent = " " * (9 + WIDTH)
        lines = [f"{self.state:<8} {self.topic:<{WIDTH}}{self.said}"]
        if self.advice:
            lines.append(f"{indent}-> {self.advice}")
        return "\n".join(lines)


def ok(topic: str, said: str) -> Finding:
    """All is well."""
    return Finding(topic, "ok", said)


def note(topic: str, said: str, advice: str) -> Finding:
    """It works here; some jobs need more."""
    return Finding(topic, "note", said, advice)


def broken(topic: str, said: str, advice: str) -> Finding:
    """Jobs cannot run like this."""
    return Finding(topic, "broken", said, advice)


Check = Callable[[], Iterable[Finding]]


def findings(checks: Iterable[tuple[str, Check]]) -> Iterator[Finding]:
    """What every check finds; one that fails itself has found that."""
    for topic, check in checks:
        try:
            yield from check()
        except Exception as error:  # whatever a broken machine comes up with
            yield broken(
                topic,
                f"{type(error).__name__}: {error}",
                "this should have worked; please report it with the output of fleetx doctor --json",
            )
