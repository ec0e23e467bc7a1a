"""What a ``SparseEmbedding`` takes, and what it says of the rest."""

from typing import Any, get_args

from fleetx.ps.tables.entries import Entry
from fleetx.ps.tables.initializers import Initializer
from fleetx.ps.tables.rules import Rule

_POOLINGS = ("sum", "mean")
_KINDS: dict[str, Any] = {"rule": Rule, "initializer": Initializer, "entry": Entry}
"""Options of a table -> the classes of ``fleetx.nn`` that say them."""
_MOST = 1 << 63
"""Ids end below it."""


def check_tensor(name: str, given: Any, kind: Any) -> None:
    """Refuse what is no tensor, where ``kind`` says that it must be one."""
    if not isinstance(given, kind):
        raise TypeError(
            f"{name} must be a tensor, got {type(given).__name__}; use torch.as_tensor({name})"
        )


def refuse_norms(name: str, layer: Any, max_norm: float | None, scaled: bool) -> None:
    """Refuse what embeddings of torch do to rows or gradients by themselves."""
    if max_norm is not None or (layer is not None and layer.max_norm is not None):
        raise ValueError(
            f"max_norm lets a layer of torch shorten rows when they are looked up, and table "
            f"{name!r} keeps rows as they were learned; leave it out, and shorten what was looked "
            "up: rows * (max_norm / rows.norm(dim=-1, keepdim=True)).clamp(max=1)"
        )
    if scaled or (layer is not None and layer.scale_grad_by_freq):
        raise ValueError(
            f"scale_grad_by_freq divides the gradient of a row by how often its id is in a batch, "
            f"and that of table {name!r} is their sum; leave it out"
        )


def counted_from_the_end(padding_idx: int, rows: int) -> int:
    """As torch has it, where the numbers of rows are the ids."""
    if not -rows <= padding_idx < rows:
        raise ValueError(
            f"padding_idx={padding_idx} is none of the {rows} rows; pass a number from 0 to "
            f"{rows - 1}, or ids"
        )
    return padding_idx % rows


def check_kinds(table: str, **given: Any) -> None:
    """Refuse now what servers could not be told of with the first batch."""
    for name, value in given.items():
        if not isinstance(value, _KINDS[name] | None):
            known = " or ".join(f"{kind.__name__}(...)" for kind in get_args(_KINDS[name]))
            raise ValueError(
                f"{name}={value!r} of table {table!r} is none that servers know; pass {known} of "
                "fleetx.nn"
            )


def whole(table: str, name: str, value: Any) -> int:
    """A whole number, and nothing that would be cut down to one."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"{name}={value!r} of table {table!r} is no whole number; pass one")
    return int(value)


def padding_id(table: str, padding_idx: Any) -> int | None:
    """An id, or None: what is none would stand for nothing nowhere."""
    if padding_idx is None:
        return None
    found = whole(table, "padding_idx", padding_idx)
    if not -_MOST <= found < _MOST:
        raise ValueError(
            f"padding_idx={found} of table {table!r} is no id, for those have 64 bits with a sign; "
            "pass a number from -2**63 to 2**63 - 1 (an unsigned one less 2**64)"
        )
    return found


def check_pooling(pooling: str | None, include_last_offset: bool) -> None:
    """Refuse another way to join the rows of a bag."""
    if pooling is not None and pooling not in _POOLINGS:
        raise ValueError(f"pooling={pooling!r} is not known; use 'sum', 'mean' or None")
    if include_last_offset and pooling is None:
        raise ValueError(
            "include_last_offset=True is about the offsets of bags, and without pooling there are "
            "none; set pooling='sum' or 'mean', or include_last_offset=False"
        )
