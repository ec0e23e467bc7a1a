"""``bipartite_match`` and ``target_assign``: which box of an image each prior box stands for."""

from typing import Any

import torch
from torch import Tensor

from fleetx.compat import lods
from fleetx.compat.paddle.fluid.layers.common import named
from fleetx.compat.paddle.fluid.layers.regions import owners
from fleetx.compat.recorded import fake, operator, settle
from fleetx.record.variable import Variable

TINY = 1e-6
"""Pairs that are less near do not match."""
MANY = 130
"""From so many rows on Paddle goes through a sorted list of pairs, where row by row comes first."""


def bipartite_match(
    dist_matrix: Any,
    match_type: str | None = None,
    dist_threshold: float | None = None,
    name: str | None = None,
) -> tuple[Any, Any]:
    """The row that each column is matched with, -1 for none, and how near they are: [N, M].

    Args:
        dist_matrix: how near rows and columns are, [K, M]; the rows of N records, or of one.
        match_type: "bipartite" gives every row one column at most, "per_prediction" then gives
            columns that are left the row that is the nearest.
        dist_threshold: how near that row has to be.
        name: of the result.
    """
    settle(dist_matrix)
    options = way_of_matching(match_type, dist_threshold, "bipartite_match")
    counted = lods.has_lod(dist_matrix)
    begins = [lods.offsets_of(dist_matrix, "bipartite_match")] if counted else []
    if not isinstance(dist_matrix, Variable):
        return matched(dist_matrix, *begins, **options)
    records = begins[0].fake.shape[0] if counted else 1
    shape = [records, dist_matrix.fake.shape[1]]
    like = fake(shape, torch.int32), fake(shape, dist_matrix.dtype)
    found, near = operator(matched, dist_matrix, *begins, like=like, by_numbers=True, **options)
    return named(found, name), near


def way_of_matching(match_type: str | None, least: float | None, call: str) -> dict[str, Any]:
    """The options of ``matched`` by Paddle's words."""
    kind = match_type or "bipartite"
    if kind not in {"bipartite", "per_prediction"}:
        raise ValueError(
            f"{call}(match_type={match_type!r}) names no way of matching; set 'bipartite' or "
            "'per_prediction'."
        )
    return {"rest": kind == "per_prediction", "least": 0.5 if least is None else float(least)}


@torch.no_grad()
def matched(
    near: Tensor, begins: Tensor | None = None, *, rest: bool, least: float
) -> tuple[Tensor, Tensor]:
    """The row of each column within each record, -1 for none, and how near they are."""
    on_host = near.detach().cpu()
    found = [_of_record(part, rest, least) for part in _records(on_host, begins)]
    rows = torch.stack([one for one, _ in found])
    return rows.to(near.device), torch.stack([other for _, other in found]).to(near.device)


def _records(rows: Tensor, begins: Tensor | None) -> list[Tensor]:
    at = [0] if begins is None else begins.tolist()
    return [rows[one:end] for one, end in zip(at, [*at[1:], len(rows)], strict=True)]


def _of_record(near: Tensor, rest: bool, least: float) -> tuple[Tensor, Tensor]:
    found = torch.full([near.shape[1]], -1, dtype=torch.int32)
    if near.numel():
        _take_pairs(near, found)
        if rest:
            _take_nearest(near, found, least)
    there = found >= 0
    picked = near[found[there].long(), torch.nonzero(there)[:, 0]]
    return found, near.new_zeros(len(found)).masked_scatter(there, picked)


def _take_pairs(near: Tensor, found: Tensor) -> None:
    """The nearest pair of what is left, again and again; of equal ones the first."""
    many = len(near) >= MANY
    left = near if many else near.T  # column by column, unless there are many rows
    left = torch.where(left > 0 if many else left >= TINY, left, 0.0)
    for _ in range(len(near)):
        one, other = divmod(int(left.argmax()), left.shape[1])
        if left[one, other] <= 0:
            break
        row, column = (one, other) if many else (other, one)
        found[column] = row
        left[one], left[:, other] = 0.0, 0.0


def _take_nearest(near: Tensor, found: Tensor, least: float) -> None:
    """For columns that are left the nearest row; of equal ones the first."""
    good = (near >= TINY) & (near >= least)
    best, row = torch.max(torch.where(good, near, -1.0), 0)
    open_still = (found < 0) & (best >= 0)
    found[open_still] = row[open_still].to(torch.int32)


def target_assign(
    input: Any,
    matched_indices: Any,
    negative_indices: Any = None,
    mismatch_value: Any = None,
    name: str | None = None,
) -> tuple[Any, Any]:
    """The rows that columns are matched with, [N, M, K], and 1 for each column that counts.

    Args:
        input: rows of N records, [R, P, K]; P is 1, or numbers that columns have of their own.
        matched_indices: the row of each column, -1 for none, [N, M].
        negative_indices: columns that count as matched with nothing, records of [T, 1].
        mismatch_value: what columns without a row have; 0 if None.
        name: of the result.
    """
    settle(input, matched_indices)
    if len(input.shape) != 3:
        raise ValueError(
            f"target_assign takes rows of [R, P, K], got {list(input.shape)}; insert a dimension, "
            "such as layers.reshape(x, [0, 1, -1])."
        )
    given = [input, lods.offsets_of(input, "target_assign"), matched_indices]
    if negative_indices is not None:
        given += [negative_indices, lods.offsets_of(negative_indices, "target_assign")]
    value = 0 if mismatch_value is None else mismatch_value
    if not isinstance(input, Variable):
        return _assigned(*given, value=value)
    sizes = [*matched_indices.fake.shape, input.fake.shape[2]]
    like = fake(sizes, input.dtype), fake([*sizes[:2], 1], torch.float32)
    found, weights = operator(_assigned, *given, like=like, by_numbers=True, value=value)
    return named(found, name), weights


@torch.no_grad()
def _assigned(
    rows: Tensor,
    begins: Tensor,
    indices: Tensor,
    negatives: Tensor | None = None,
    negative_begins: Tensor | None = None,
    *,
    value: Any,
) -> tuple[Tensor, Tensor]:
    at, there = places_of(indices, begins)
    own = torch.arange(indices.shape[1], device=rows.device) % rows.shape[1]
    nothing = rows.new_tensor(value)
    found = torch.where(there[..., None], at_least_one(rows)[at, own], nothing)
    weights = there[..., None].float()
    if negatives is not None:
        assert negative_begins is not None
        columns = negatives.reshape(-1).long()
        records = owners(columns, negative_begins)
        found[records, columns], weights[records, columns] = nothing, 1.0
    return found, weights


def places_of(indices: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that columns are matched with, among those of all records, and whether they are."""
    if len(indices) != len(begins):
        raise ValueError(
            f"{len(begins)} records have rows, and columns of {len(indices)} are matched with them;"
            " feed as many images as records of boxes."
        )
    there = indices >= 0
    return torch.where(there, indices.long() + begins[:, None], 0), there


def at_least_one(rows: Tensor) -> Tensor:
    """Rows, or one that nothing is matched with, where no record has any."""
    return rows if len(rows) else rows.new_zeros([1, *rows.shape[1:]])
