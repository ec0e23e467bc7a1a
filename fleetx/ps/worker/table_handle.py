"""A table as a worker knows it."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TableHandle:
    """A table as a client knows it: its number on each server."""

    name: str
    numbers: tuple[int, ...]
    width: int
    short: int = 0
    """The flag of the dtype in which rows travel; 0 for float32."""
    versions: list[int] = field(default_factory=list, compare=False)
    """For updates in rounds: the version of each server's share that our next push is based on.

    Models of a worker that share a table share its rounds, so they are counted here. Zero where
    pushes are applied as they come.
    """

    def advance(self) -> None:
        """Note that we have pushed to a round."""
        self.versions[:] = self.after()

    def after(self) -> list[int]:
        """The versions that our next push leads to."""
        return [version + 1 for version in self.versions]
