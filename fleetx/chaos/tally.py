"""What was done to a job, and what became of it."""

from dataclasses import dataclass, field, fields


@dataclass
class Tally:
    """Counts of disturbances, of what went on in spite of them, and of what must not happen."""

    kills: int = 0
    """Servers that were killed with SIGKILL, some of them while they came back."""
    worker_kills: int = 0
    stops: int = 0
    """Servers that were stopped for a while, and then went on."""
    full_disks: int = 0
    """Times that a server could write nothing."""
    damages: int = 0
    """Bits that were turned over, and files that were removed, in the state of a dead server."""
    frames: int = 0
    """Frames with wrong bytes, and greetings of strangers."""
    pushes: int = 0
    """Pushes that servers have acknowledged."""
    refused: int = 0
    """Pushes that a server could not log, and said so."""
    noticed: int = 0
    """Damages that a server has named when it was started; others did not matter."""
    lost: int = 0
    """Pushes that were acknowledged and are not in the tables."""
    doubled: int = 0
    """Pushes that are in the tables more than once."""
    silent: int = 0
    """Damages with which a server began as if nothing had happened, with other numbers."""
    failures: list[str] = field(default_factory=list)
    """Processes that ended by themselves, and what stood still."""

    @property
    def ok(self) -> bool:
        """Whether nothing has happened that must not."""
        return not (self.lost or self.doubled or self.silent or self.failures)

    def add(self, other: "Tally") -> None:
        """Count what happened elsewhere, too."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def line(self) -> str:
        """All counts in a line."""
        counts = [
            f"{getattr(self, each.name)} {each.name.replace('_', ' ')}"
            for each in fields(self)
            if each.name != "failures"
        ]
        return f"{', '.join(counts)}, {len(self.failures)} failures"
