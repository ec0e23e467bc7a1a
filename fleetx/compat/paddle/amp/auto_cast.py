"""``paddle.amp.auto_cast``."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fleetx.compat.dtypes import convert_dtype, dtype_of
from fleetx.compat.notes import note
from fleetx.compat.paddle.device import current_device


@contextmanager
def auto_cast(
    enable: bool = True,
    custom_white_list: Any = None,
    custom_black_list: Any = None,
    level: str = "O1",
    dtype: Any = "float16",
    use_promote: bool = True,
) -> Iterator[None]:
    """Compute inside with half precision where that is safe.

    Without a card Paddle computes with 32 bits; so does this for float16.
    """
    if level not in {"O0", "OD", "O1", "O2"}:
        raise ValueError(f"auto_cast(level={level!r}): 'O0', 'O1' or 'O2'.")
    if custom_white_list or custom_black_list:
        note(
            "auto_cast(custom_white_list=…, custom_black_list=…)",
            "torch has its own lists of operators, which are used; strategy.amp_configs obeys them",
        )
    kind = current_device().type
    half = convert_dtype(dtype) if isinstance(dtype, (str, torch.dtype)) else "float16"
    on = enable and level != "O0" and not (kind == "cpu" and half == "float16")
    with torch.autocast(kind, dtype_of(half), enabled=on):
        yield


amp_guard = auto_cast


def decorate(
    models: Any,
    optimizers: Any = None,
    level: str = "O1",
    dtype: Any = "float16",
    master_weight: bool | None = None,
    save_dtype: Any = None,
) -> Any:
    """Models and optimizers for mixed precision; weights of "O2" are half on a card only."""
    if level not in {"O1", "O2"}:
        raise ValueError(f"decorate(level={level!r}): 'O1' or 'O2'.")
    if level == "O2":
        note(
            "paddle.amp.decorate(level='O2')",
            "weights keep 32 bits, as master weights do, and operators compute with half",
        )
    return models if optimizers is None else (models, optimizers)
