"""Rows of a save without its servers: for computing outputs, not for training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.ps import placing, safetensors_file, snapshot
from fleetx.ps.client import Batch
from fleetx.ps.hashing import Array, Floats, Ids
from fleetx.ps.row_store import Rows
from fleetx.ps.rules import SGD
from fleetx.ps.sparse_module import SparseModule
from fleetx.ps.sparse_spec import SparseSpec
from fleetx.ps.sparse_table import SparseTable


class SavedRows:
    """Stands for the servers among the carriers of a model; tables are read at their first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._manifest = snapshot.read_json(folder / snapshot.MANIFEST)
        self._tables: dict[str, SparseTable] = {}

    @property
    def carrier(self) -> "SavedRows":
        """Itself: no strategy is needed to look rows up."""
        return self

    def sorted(self, ids: Ids) -> Batch:
        """The batch of these ids."""
        return Batch.of(ids, servers=1)

    def lookup(
        self, module: SparseModule, batch: Batch, met: Array | None, *, train: bool, ahead: bool
    ) -> Floats:
        """The rows of a batch; ids that were never trained show what they would begin with."""
        name = module.options.name
        if train:
            raise RuntimeError(
                f"table {name!r} was loaded to compute outputs and cannot be trained; call "
                "model.eval(), or load the save in a job with servers: fleet.init_server(folder)"
            )
        if name not in self._tables:
            self._tables[name] = self._read(name, module.options.dim)
        out = np.empty((len(batch.ids), module.options.dim), np.float32)
        self._tables[name].pull(batch.ids, out, train=False)
        return out

    def _read(self, name: str, dim: int) -> SparseTable:
        if name not in self._manifest["tables"]:
            raise ValueError(
                f"{self._folder} holds no table {name!r}, only {self._manifest['tables']}; give "
                "the layer the name that it was trained with"
            )
        folders = [
            placing.found(self._folder / name / f"server-{i}")
            for i in range(self._manifest["servers"])
        ]
        manifests = [snapshot.read_json(folder / snapshot.MANIFEST) for folder in folders]
        spec = SparseSpec.of(manifests[0]["spec"])
        if spec.dim != dim:
            raise ValueError(
                f"table {name!r} was saved with rows of {spec.dim} floats, and the layer asks for "
                f"{dim}; make it SparseEmbedding({spec.dim}, name={name!r})"
            )
        table = SparseTable(replace(spec, rule=SGD()))  # which needs no room for its state
        table.reserve(sum(manifest["rows"] for manifest in manifests))
        for folder, manifest in zip(folders, manifests, strict=True):
            for file in manifest["files"]:
                table.put(_plain(safetensors_file.read(folder / file)))
        return table


def _plain(arrays: dict[str, Any]) -> Rows:
    count = len(arrays["ids"])
    none = np.empty((count, 0), np.float32)
    return Rows(arrays["ids"], arrays["rows"], none, none, np.zeros(count, np.int32))
