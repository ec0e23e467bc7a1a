"""Lookups in tables of parameter servers, as an archive of ``torch.export`` keeps them.

The archive names the table and how its rows are joined; where the rows are is said when it is
loaded. So it holds no rows, and is loaded by fleetx alone.
"""

from pathlib import Path

import torch
from torch import Tensor, fx, nn
from typing_extensions import override

from fleetx.nn.sparse_embedding import SparseEmbedding
from fleetx.ps.tables.save_folder import TABLES
from fleetx.ps.tables.saved_rows import SavedRows
from fleetx.ps.worker.sparse_module import SparseModule


@torch.library.custom_op("fleetx::table_rows", mutates_args=())
def table_rows(  # noqa: PLR0917 (operators are called by position)
    ids: Tensor,
    offsets: Tensor | None,
    table: str,
    dim: int,
    padding_idx: int | None,
    pooling: str | None,
) -> Tensor:
    """Stands for a lookup until ``attach`` puts one in its place."""
    raise RuntimeError(
        f"this model looks rows up in table {table!r}, which lies beside it; load the folder with "
        "fleet.load_inference_model(dirname, executor)"
    )


@table_rows.register_fake
def _(  # noqa: PLR0917
    ids: Tensor,
    offsets: Tensor | None,
    table: str,
    dim: int,
    padding_idx: int | None,
    pooling: str | None,
) -> Tensor:
    if pooling is None:
        return ids.new_empty((*ids.shape, dim), dtype=torch.float32)
    count = ids.shape[0] if offsets is None else offsets.shape[0]
    return ids.new_empty((count, dim), dtype=torch.float32)


class Described(nn.Module):
    """A layer over a table, as it is exported."""

    def __init__(self, layer: SparseEmbedding) -> None:
        super().__init__()
        self._table = (layer.options.name, layer.options.dim, layer.padding_idx)
        self._pooling, self._ends = layer.pooling, layer.include_last_offset
        self._padding_row: Tensor | None
        kept = [buffer for name, buffer in layer.named_buffers() if name == "padding_row"]
        self.register_buffer("_padding_row", kept[0] if kept else None)

    @override
    def forward(
        self,
        ids: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
        *,
        show: Tensor | None = None,
        click: Tensor | None = None,
    ) -> Tensor:
        if offsets is not None and self._ends:
            offsets = offsets[:-1]
        if per_sample_weights is not None:
            return self._weighted(ids, offsets, per_sample_weights)
        found: Tensor = table_rows(ids, offsets, *self._table, self._pooling)
        if self._padding_row is None:
            return found
        assert self._table[2] is not None, "it is that row which was kept"
        is_padding = torch.eq(ids, self._table[2]).unsqueeze(-1)
        return torch.where(is_padding, self._padding_row, found)

    def _weighted(self, ids: Tensor, offsets: Tensor | None, weights: Tensor) -> Tensor:
        """Sums of weighted rows, which the table does not know of."""
        rows: Tensor = table_rows(ids, None, *self._table, None) * weights.unsqueeze(-1)
        if offsets is None:
            return rows.sum(1)
        places = torch.arange(ids.shape[0], device=ids.device)
        bags = torch.searchsorted(offsets, places, right=True) - 1
        return rows.new_zeros(offsets.shape[0], rows.shape[1]).index_add(0, bags, rows)


def tables_of(module: nn.Module) -> dict[str, SparseModule]:
    """Path -> layer of everything that is looked up on servers."""
    found = module.named_modules()
    return {path: layer for path, layer in found if isinstance(layer, SparseModule)}


def describe(module: nn.Module) -> None:
    """Put descriptions in the place of layers, so that the module can be exported."""
    for path, layer in tables_of(module).items():
        assert isinstance(layer, SparseEmbedding)
        module.set_submodule(path, Described(layer))


def attach(module: fx.GraphModule, archive: Path, named: str) -> None:
    """Let a module that was exported look rows up in the tables beside its archive.

    Args:
        module: what the archive holds.
        archive: the file.
        named: the checksum of the tables with which it was saved; "" if it says none.
    """
    nodes = [node for node in module.graph.nodes if node.target is _OPERATOR]
    if not nodes:
        return
    rows = SavedRows(archive.parent / TABLES)
    rows.require_those_of(archive, named)
    for number, node in enumerate(nodes):
        ids, offsets, name, dim, padding_idx, pooling = node.args
        layer = SparseEmbedding(dim, name=name, padding_idx=padding_idx, pooling=pooling)
        layer.row_source, layer.training = rows, False
        path = f"table_{number}"
        module.add_submodule(path, layer)
        with module.graph.inserting_before(node):
            node.replace_all_uses_with(module.graph.call_module(path, (ids, offsets)))
        module.graph.erase_node(node)
    module.recompile()


_OPERATOR = torch.ops.fleetx.table_rows.default
