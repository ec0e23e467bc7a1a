"""Rows that a table begins with, for ids that have none there yet."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.wire.arrays import Floats, Ids

AT_ONCE = 4096
"""Rows in one push: tables that are larger than memory make room for each."""


@dataclass(frozen=True, eq=False)
class GivenRows:
    """A row for each of some ids, all different."""

    ids: Ids
    rows: Tensor
    whole: Tensor
    """What they were taken from."""

    @staticmethod
    def checked(table: str, rows: Any, ids: Any) -> "GivenRows":
        """What a user gave; ``ids`` of None are the numbers of the rows."""
        if not isinstance(rows, Tensor) or rows.dim() != 2 or not rows.is_floating_point():
            raise ValueError(
                f"table {table!r} cannot begin with {_brief(rows)}; pass a tensor of floats with a "
                "row for each id, an nn.Embedding or an nn.EmbeddingBag"
            )
        rows = rows.detach()
        if not bool(torch.isfinite(rows).all()):
            raise ValueError(
                f"table {table!r} cannot begin with rows that hold NaN or infinity: they would "
                "stay so; replace them, as by torch.nan_to_num()"
            )
        return GivenRows(_ids(table, ids, len(rows)), rows, rows)

    def without(self, id_: int | None) -> "GivenRows":
        """The others."""
        kept = self.ids != id_
        if kept.all():
            return self
        return GivenRows(self.ids[kept], self.rows[torch.from_numpy(kept)], self.whole)

    def apart_from(self, other: "GivenRows") -> int | None:
        """An id for which both have a row, and not the same one; None if there is none."""
        if self.rows.shape[1] != other.rows.shape[1]:
            return None  # which is refused for itself
        both, ours, theirs = np.intersect1d(self.ids, other.ids, return_indices=True)
        pair = ((self, ours), (other, theirs))
        mine, yours = (each.rows[torch.from_numpy(at)].float().cpu() for each, at in pair)
        differ = (mine != yours).any(1).numpy()
        return int(both[differ][0]) if differ.any() else None

    def refuse_shared(self, table: str, names: Mapping[Tensor, str]) -> None:
        """Refuse a parameter that is the matrix itself: the two were tied, and are not any more."""
        for parameter, name in names.items():
            same = parameter.data_ptr() == self.whole.data_ptr()
            if same and parameter.shape == self.whole.shape and parameter.requires_grad:
                raise ValueError(
                    f"{name!r} shares its numbers with what table {table!r} begins with, as tied "
                    "weights do, and rows on servers cannot be shared with a parameter: each would "
                    "learn by itself. Compute with rows that are looked up instead, or part them: "
                    f"SparseEmbedding.from_pretrained(weight.detach().clone(), name={table!r})"
                )

    def row(self, id_: int | None) -> Tensor | None:
        """That of one id, if it has any."""
        found = np.flatnonzero(self.ids == id_)
        return self.rows[int(found[0])].float().clone() if len(found) else None

    def pieces(self, servers: int) -> Iterator[tuple[IdBatch, Floats]]:
        """Some at a time, in the order of their servers."""
        for begin in range(0, len(self.ids), AT_ONCE):
            piece = slice(begin, begin + AT_ONCE)
            batch = IdBatch.of(self.ids[piece], servers)
            rows = np.empty((len(batch.ids), self.rows.shape[1]), np.float32)
            rows[batch.place] = self.rows[piece].to("cpu", torch.float32).numpy()
            yield batch, rows


def _ids(table: str, ids: Any, rows: int) -> Ids:
    if ids is None:
        return np.arange(rows)
    given = torch.as_tensor(ids)
    if given.is_floating_point() or given.dtype == torch.bool or given.shape != (rows,):
        raise ValueError(
            f"ids of table {table!r} must be {rows} whole numbers in a row, one for each row; got "
            f"{given.dtype} of shape {list(given.shape)}"
        )
    found: Ids = given.detach().cpu().numpy().astype(np.int64)
    once, times = np.unique(found, return_counts=True)
    if len(once) < rows:
        raise ValueError(
            f"id {once[times > 1][0]} of table {table!r} has {times.max()} rows, and can have one; "
            "pass each id once"
        )
    return found


def _brief(rows: Any) -> str:
    if isinstance(rows, Tensor):
        return f"a tensor of {rows.dtype} of shape {list(rows.shape)}"
    return f"a {type(rows).__name__}"
