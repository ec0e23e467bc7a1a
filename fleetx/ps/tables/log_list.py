"""Which files a journal consists of, and which checkpoint they continue."""

import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from fleetx.ps.tables import save_folder
from fleetx.ps.tables.checksums import DamagedError

NAME = "log.json"


@dataclass(frozen=True)
class LogList:
    """The contents of ``log.json``: without it a missing file could not be told from none."""

    folder: Path
    identity: str
    """Drawn at random when the journal is made; its files, records and checkpoints bear it."""
    files: tuple[str, ...] = ()
    checkpoint: str = ""
    """The identity of the checkpoint that stands for records before these; empty if there is none.

    One that was complete, but not yet named here when its server died, names this one instead.
    """

    @staticmethod
    def opened(folder: Path) -> "LogList":
        """That of a folder, or a new one if the folder is empty."""
        path = folder / NAME
        if not path.exists():
            if logs := sorted(folder.glob("*.log")):
                raise DamagedError(
                    f"{path} is missing, which names the logs beside it, such as {logs[0].name} "
                    "(fleetx 0.1.0 wrote none; its logs have no checksums and are not read)"
                )
            made = LogList(folder, secrets.token_hex(16))
            made.write()
            return made
        found = save_folder.read_json(path)
        return LogList(folder, found["identity"], tuple(found["files"]), found["checkpoint"])

    def write(self) -> None:
        """All of it or nothing."""
        plain = {"identity": self.identity, "files": self.files, "checkpoint": self.checkpoint}
        save_folder.write_json(self.folder / NAME, plain)

    def changed(
        self, *, files: tuple[str, ...] | None = None, checkpoint: str | None = None
    ) -> "LogList":
        """Another list, which is on the disk when this returns."""
        made = replace(
            self,
            files=self.files if files is None else files,
            checkpoint=self.checkpoint if checkpoint is None else checkpoint,
        )
        if made != self:
            made.write()
        return made

    def paths(self) -> list[Path]:
        """The files, in their order; ``DamagedError`` if one is missing."""
        found = [self.folder / name for name in self.files]
        for path in found:
            if not path.is_file():
                raise DamagedError(f"{path} is missing, a part of the log of acknowledged changes")
        return found

    def strangers(self) -> list[Path]:
        """Logs in the folder that are not listed."""
        return sorted(p for p in self.folder.glob("*.log") if p.name not in self.files)
