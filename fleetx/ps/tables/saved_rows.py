"""Rows of a save without its servers: for computing outputs, not for training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.ps.tables import disk_table
from fleetx.ps.tables.checksums import DamagedError
from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.row_source import ReadOnly, TableOptions, untrainable
from fleetx.ps.tables.row_store import Rows
from fleetx.ps.tables.rules import SGD
from fleetx.ps.tables.saves import Save
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.tables.sparse_table import SparseTable
from fleetx.ps.wire.arrays import Array, Floats, Ids


class SavedRows(ReadOnly):
    """Gives rows to layers without servers; tables are read at their first use."""

    def __init__(self, folder: Path) -> None:
        self._save = Save.opened(folder)
        self._save.require_full("a model that computes outputs")
        self._tables: dict[str, SparseTable] = {}

    @property
    def sealed(self) -> bool:
        """Whether what is read has checksums, as all has that was written after fleetx 0.1.0."""
        return self._save.sealed

    @property
    def checksum(self) -> str:
        """Of the list of all that is read."""
        return self._save.checksum

    def require_those_of(self, file: Path, named: str) -> None:
        """Refuse a file that was written beside tables of another save.

        A worker that dies between the two leaves such a folder.

        Args:
            file: what lies beside them.
            named: the checksum of the tables that it belongs to; "" if it names none.
        """
        if named and named != self.checksum:
            raise DamagedError(
                f"{file.name} and tables of {file.parent} are of two saves: one of them was not "
                "completed, or only one was copied; save again, or copy the whole folder"
            )

    def sort_ids(self, ids: Ids) -> IdBatch:
        """The batch of these ids."""
        return IdBatch.of(ids, servers=1)

    def look_up(
        self,
        table: TableOptions,
        batch: IdBatch,
        met: Array | None,
        *,
        train: bool,
        versions: list[int] | None = None,
    ) -> Floats:
        """The rows of a batch; ids that were never trained show what they would begin with."""
        if train:
            raise untrainable(table)
        if table.name not in self._tables:
            self._tables[table.name] = self._read(table.name, table.dim)
        out = np.empty((len(batch.ids), table.dim), np.float32)
        self._tables[table.name].pull(batch.ids, out, train=False)
        return out

    def _read(self, name: str, dim: int) -> SparseTable:
        if name not in self._save.tables:
            raise ValueError(
                f"{self._save.root} holds no table {name!r}, only {self._save.tables}; give "
                "the layer the name that it was trained with"
            )
        pieces = self._save.pieces_of(name)
        manifests = [piece.manifest for piece in pieces]
        spec = SparseSpec.from_plain(manifests[0]["spec"])
        if spec.dim != dim:
            raise ValueError(
                f"table {name!r} was saved with rows of {spec.dim} floats, and the layer asks for "
                f"{dim}; make it SparseEmbedding({spec.dim}, name={name!r})"
            )
        table = disk_table.made(replace(spec, rule=SGD()))  # which needs no room for its state
        table.reserve(sum(manifest["rows"] for manifest in manifests))
        for piece in pieces:
            for file in piece.manifest["files"]:
                table.put(_plain(piece.read(file)))
        return table


def _plain(arrays: dict[str, Any]) -> Rows:
    count = len(arrays["ids"])
    none = np.empty((count, 0), np.float32)
    return Rows(arrays["ids"], arrays["rows"], none, none, np.zeros(count, np.int32))
