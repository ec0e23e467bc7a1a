"""``paddle.amp.auto_cast``."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from fleetx.compat.dtypes import convert_dtype, dtype_of
from fleetx.compat.notes import note
from fleetx.compat.paddle.device import current_device
from fleetx.graph.operator_casts import Casts, OperatorCasts
from fleetx.graph.operator_lists import FUNCTIONS, PRODUCTS

_EXACT = (
    "exp square log mean sum cos_sim softmax_with_cross_entropy cross_entropy nll_loss mse_loss "
    "sigmoid_cross_entropy_with_logits binary_cross_entropy l1_loss smooth_l1_loss cumsum norm pow"
)
EXACT = _EXACT.split()
"""Operators that compute with 32 bits at every level, unless a script names them."""


@contextmanager
def auto_cast(
    enable: bool = True,
    custom_white_list: Any = None,
    custom_black_list: Any = None,
    level: str = "O1",
    dtype: Any = "float16",
    use_promote: bool = True,
) -> Iterator[None]:
    """Compute inside with half precision: products at "O1", all that has parameters at "O2".

    Without a card Paddle computes with 32 bits; so does this for float16. Parameters keep 32 bits
    at both levels, and operators of "O2" see them in 16.
    """
    if level not in {"O0", "OD", "O1", "O2"}:
        raise ValueError(f"auto_cast(level={level!r}): 'O0', 'O1' or 'O2'.")
    kind = current_device().type
    half = convert_dtype(dtype) if isinstance(dtype, (str, torch.dtype)) else "float16"
    on = enable and level != "O0" and not (kind == "cpu" and half == "float16")
    pure = on and level == "O2"
    with ExitStack() as stack:
        stack.enter_context(torch.autocast(kind, dtype_of(half), enabled=on and not pure))
        if on and (pure or custom_white_list or custom_black_list):
            low = dtype_of(half)
            casts = _casts(kind, low, custom_white_list, custom_black_list, pure)
            stack.enter_context(OperatorCasts(casts))
        yield


amp_guard = auto_cast


def _casts(kind: str, low: torch.dtype, white: Any, black: Any, pure: bool) -> Casts:
    lowered, kept = _functions(white), _functions(black)
    if both := sorted({*(white or ())} & {*(black or ())}):
        raise ValueError(
            f"auto_cast() was given {', '.join(both)} in custom_white_list and in "
            "custom_black_list; keep it in one of them."
        )
    if not pure:
        return Casts(device=kind, low=low, lowered=lowered, kept=kept)
    kept |= _functions(EXACT) - lowered
    return Casts(
        device=kind, low=low, lowered=(lowered | PRODUCTS) - kept, kept=kept, parameters=True
    )


def _functions(operators: Iterable[str] | None) -> frozenset[str]:
    """The functions of torch behind operators; Paddle passed over those that it did not know."""
    known: frozenset[str] = frozenset()
    for operator in operators or ():
        if operator in FUNCTIONS:
            known |= FUNCTIONS[operator]
        else:
            note(f"auto_cast() with {operator!r} in a list", "no operator has this name.")
    return known


def decorate(
    models: Any,
    optimizers: Any = None,
    level: str = "O1",
    dtype: Any = "float16",
    master_weight: bool | None = None,
    save_dtype: Any = None,
    **old: Any,
) -> Any:
    """Models and optimizers for mixed precision, as they are.

    Weights keep 32 bits, as master weights do: ``auto_cast(level="O2")`` casts them where they are
    used, and they are saved with 32 bits.
    """
    if level not in {"O1", "O2"}:
        raise ValueError(f"decorate(level={level!r}): 'O1' or 'O2'.")
    if unknown := sorted(old.keys() - {"excluded_layers", "master_grad"}):
        raise TypeError(f"decorate() has no argument {unknown[0]!r}")
    if level == "O2" and master_weight is False:
        note("paddle.amp.decorate(master_weight=False)", "weights keep 32 bits all the same.")
    return models if optimizers is None else (models, optimizers)


def is_float16_supported(device: Any = None) -> bool:
    """Whether this process computes in float16 without loss of speed: on a card."""
    return torch.cuda.is_available()


def is_bfloat16_supported(device: Any = None) -> bool:
    """Whether it computes in bfloat16: every processor does, and cards from Ampere on."""
    return not torch.cuda.is_available() or torch.cuda.is_bf16_supported()
