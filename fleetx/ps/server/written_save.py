"""What a server wrote for a save, as long as it may not be whole."""

from pathlib import Path
from typing import NamedTuple

from fleetx.ps.tables.checksums import DamagedError
from fleetx.ps.tables.saves import Save


class WrittenSave(NamedTuple):
    """What a server wrote for a save of the user."""

    era: int
    mark: int
    """Rows with this mark or a later one are not in it."""
    removed: int
    """How many of the lists of dropped ids it names."""
    identity: str
    folder: Path
    """Of the piece."""

    @property
    def root(self) -> Path:
        """The folder of the whole save."""
        return self.folder.parents[1]

    @property
    def complete(self) -> bool:
        """Whether all servers have written: then the list of the save is there, and names this."""
        try:
            return Save.opened(self.root).names(self.folder)
        except DamagedError:
            return False
