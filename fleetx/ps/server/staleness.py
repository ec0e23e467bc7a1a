"""How old the rows are that gradients were computed with."""

from dataclasses import dataclass, field


@dataclass
class Staleness:
    """Updates by others between what a worker read and what it pushes on that ground."""

    pushes: int = 0
    total: int = 0
    largest: int = 0
    read_at: dict[int, int] = field(default_factory=dict)

    def read(self, worker: int, version: int) -> None:
        """A worker has seen this version."""
        self.read_at[worker] = version

    def pushed(self, worker: int, version: int) -> None:
        """A worker pushes onto this version."""
        age = version - self.read_at.get(worker, version)
        self.pushes += 1
        self.total += age
        self.largest = max(self.largest, age)

    def describe(self) -> dict[str, float]:
        """Largest and mean."""
        return {"largest": self.largest, "mean": self.total / max(1, self.pushes)}
