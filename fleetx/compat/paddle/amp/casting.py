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
    kind = current_device().type
    half = convert_dtype(dtype) if isinstance(dtype, (str, torch.dtype)) else "float16"
    on = enable and level != "O0" and not (kind == "cpu" and half == "float16")
    if on:
        _check_lists(custom_white_list, custom_black_list)
    with torch.autocast(kind, dtype_of(half), enabled=on):
        yield


amp_guard = auto_cast

EXACT = frozenset(
    [
        "softmax",
        "log_softmax",
        "layer_norm",
        "cross_entropy",
        "softmax_with_cross_entropy",
        "mse_loss",
        "l1_loss",
        "exp",
        "log",
        "pow",
        "sum",
        "mean",
        "cumsum",
        "norm",
        "cos_sim",
        "square",
        "nll_loss",
        "smooth_l1_loss",
    ]
)
"""Operators that torch's autocast computes with 32 bits by itself."""

HALF = frozenset(["matmul", "matmul_v2", "mul", "conv2d", "linear", "fc", "bmm"])
"""Operators that it computes with half precision by itself."""


def _check_lists(white: Any, black: Any) -> None:
    """Refuse lists that torch's own would contradict."""
    wrong = sorted({*(white or ())} - HALF) + sorted({*(black or ())} - EXACT)
    if wrong:
        raise ValueError(
            f"auto_cast() was given lists with {', '.join(wrong)}, and torch's autocast chooses "
            "operators by its own; set fleet's strategy.amp with "
            "amp_configs={'custom_white_list': …, 'custom_black_list': …}, which obeys them."
        )


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
