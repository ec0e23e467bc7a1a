"""Saves of a user: a list of tables, and for each of them a folder by each server."""

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetx.ps.tables import checksums, safetensors_file, save_folder, saved_buffers
from fleetx.ps.tables.checksums import DamagedError
from fleetx.ps.tables.save_folder import MANIFEST, TABLES
from fleetx.ps.wire.arrays import Array

logger = logging.getLogger(__name__)

_ADVICE = "copy the whole folder again from where it was written, or take another save"


@dataclass(frozen=True)
class Piece:
    """What one server wrote of one table."""

    folder: Path
    manifest: dict[str, Any]
    sealed: bool = True
    """Whether it has checksums, as all have that were written after fleetx 0.1.0."""

    def read(self, name: str) -> dict[str, Array]:
        """The arrays of one of its files, which must be those that were written."""
        path = self.folder / name
        if not self.sealed:
            return safetensors_file.read(path, sealed=False)
        return safetensors_file.read(path, self.manifest["checksums"][name])

    @property
    def names(self) -> list[str]:
        """All of its files."""
        more = [self.manifest[key] for key in ("waiting", "removed") if key in self.manifest]
        return [*self.manifest["files"], *more]


def piece(folder: Path) -> Piece:
    """A piece by itself."""
    return Piece(folder, save_folder.read_json(folder / MANIFEST))


def write_list(
    root: Path,
    answers: Sequence[Mapping[str, Any]],
    *,
    delta: bool = False,
    buffers: Mapping[str, Array] | None = None,
) -> dict[str, Any]:
    """Complete a save when all servers have written their pieces; returns what the list says.

    Args:
        root: the folder.
        answers: what each server answered: its tables, and the checksum of each piece's manifest.
        delta: whether it holds only what changed since the last save.
        buffers: what models have and no server; None where that is saved elsewhere.
    """
    tables = list(answers[0]["tables"])
    listed = {
        "tables": tables,
        "servers": len(answers),
        "mode": "delta" if delta else "full",
        "pieces": {name: [answer["pieces"][name] for answer in answers] for name in tables},
    }
    if buffers is not None:
        listed["buffers"] = saved_buffers.write(root, buffers)
    save_folder.write_json(root / MANIFEST, listed)
    remove_replaced(root)
    saved_buffers.remove_others(root, str(listed.get("buffers", "")))
    return listed


def remove_replaced(root: Path) -> None:
    """Remove pieces of the save that was in this folder before, if the one that is here is whole.

    Before the next save, too: one that was not completed left pieces of both.
    """
    olds = list(root.glob("*/*.old"))
    if not olds:
        return
    try:
        save: Save | None = Save.opened(root)
    except DamagedError:  # nothing there can be loaded
        save = None
    for old in olds:
        new = old.with_name(old.name.removesuffix(".old"))
        if save is None or save.names(new):
            shutil.rmtree(old, ignore_errors=True)


@dataclass(frozen=True)
class Save:
    """A save that is complete."""

    root: Path
    manifest: dict[str, Any]
    sealed: bool

    @staticmethod
    def opened(root: Path) -> "Save":
        """The one in a folder; ``DamagedError`` unless its list is as it was written."""
        path = root / MANIFEST
        if not path.exists() and (root / TABLES / MANIFEST).exists():
            raise DamagedError(
                f"{root} is a checkpoint or a model for inference, and no save of tables; give "
                f"the one inside, {root / TABLES}"
            )
        manifest = save_folder.read_unchecked(path)
        sealed = checksums.KEY in manifest
        if sealed:
            manifest = checksums.opened(manifest, path)
        elif "pieces" in manifest or "tables" not in manifest:
            raise DamagedError(f"{path} is damaged: it has no checksum; {_ADVICE}")
        else:
            logger.warning(
                "%s was written by fleetx 0.1.0, which wrote no checksums: nobody can say whether "
                "it is as it was written; save it again",
                root,
            )
        return Save(root, manifest, sealed)

    @property
    def tables(self) -> list[str]:
        """The names of its tables."""
        return list(self.manifest["tables"])

    @property
    def checksum(self) -> str:
        """Of its list, which names all that it holds; "" for those of fleetx 0.1.0."""
        return checksums.of_plain(self.manifest) if self.sealed else ""

    @property
    def is_delta(self) -> bool:
        """Whether it holds only what changed since another save."""
        return bool(self.manifest.get("mode") == "delta")

    def require_full(self, call: str) -> None:
        """Refuse a delta: a table that begins with it would lack all that did not change."""
        if self.is_delta:
            raise ValueError(
                f"{call}: {self.root} is a delta and holds only the rows that changed since the "
                "save before it; begin with the full save, and load this one onto it: "
                f"fleet.load_persistables({str(self.root)!r})"
            )

    def buffers(self) -> dict[str, Array] | None:
        """What models had that no server has; None if it was not saved with them."""
        if "buffers" not in self.manifest:
            return None
        return saved_buffers.read(self.root, str(self.manifest["buffers"]))

    def names(self, folder: Path) -> bool:
        """Whether a folder is a piece of this save, and not of another in the same place."""
        server = int(folder.name.removesuffix(".old").rpartition("-")[2])
        listed = self.manifest.get("pieces", {}).get(folder.parent.name, [])
        if server >= len(listed) or not (folder / MANIFEST).is_file():
            return False
        return _is(folder / MANIFEST, listed[server])

    def pieces_of(self, table: str) -> list[Piece]:
        """What each server wrote of a table."""
        return [self._piece(table, server) for server in range(self.manifest["servers"])]

    def _piece(self, table: str, server: int) -> Piece:
        folder = self.root / table / f"server-{server}"
        if not self.sealed:
            return _unsealed(save_folder.found(folder))
        # A save over this one that was not completed has put what belongs to it beside its own.
        old = save_folder.old_of(folder)
        if not self.names(folder) and self.names(old):
            return piece(old)
        if self.names(folder):
            return piece(folder)
        if not (folder / MANIFEST).is_file():
            raise DamagedError(f"{folder / MANIFEST} is missing; {_ADVICE}")
        piece(folder)  # says if it is damaged
        raise DamagedError(
            f"{folder} is whole but belongs to another save than {self.root / MANIFEST}; {_ADVICE}"
        )


def _is(path: Path, expected: str) -> bool:
    return save_folder.read_unchecked(path).get(checksums.KEY) == expected


def _unsealed(folder: Path) -> Piece:
    """A piece without checksums, which has none left out: one that has some is of another save."""
    manifest = save_folder.read_unchecked(folder / MANIFEST)
    if checksums.KEY in manifest or "checksums" in manifest:
        raise DamagedError(
            f"{folder / MANIFEST} has a checksum, and the list of its save has none: one of them "
            f"is damaged; {_ADVICE}"
        )
    return Piece(folder, manifest, sealed=False)
