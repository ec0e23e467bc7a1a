"""``paddle.fluid.input``: tables and codes of ids that keep all of their dimensions."""

from typing import Any

import torch

from fleetx.compat.paddle.fluid.layers.linear import looked_up
from fleetx.compat.paddle.fluid.layers.manipulation import one_hot as _one_hot


def embedding(  # noqa: PLR0917
    input: Any,
    size: Any,
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Any:
    """One row of a table for each id, in a new last dimension."""
    return looked_up(input, size, is_sparse, is_distributed, padding_idx, param_attr, dtype)


def one_hot(input: Any, depth: int, allow_out_of_range: bool = False) -> Any:
    """1 at the place of each number and 0 elsewhere, in a new last dimension."""
    return _one_hot(torch.unsqueeze(input, -1), depth, allow_out_of_range)
