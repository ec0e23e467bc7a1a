"""Full float32 while vectors are computed, whatever the process computes in otherwise."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.backends import cuda, cudnn, mkldnn

_PLACES: tuple[Any, ...] = (
    *(cuda.matmul, cudnn.conv, cudnn.rnn),  # type: ignore[attr-defined, unused-ignore]
    *(mkldnn.matmul, mkldnn.conv, mkldnn.rnn),  # type: ignore[attr-defined, unused-ignore]
)
"""Where torch keeps a precision of its own; that of convolutions on a GPU is TF32 by default."""


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """No TF32 and no bfloat16 in place of float32; all settings are as before afterwards."""
    kept = [place.fp32_precision for place in _PLACES]
    matmul, convolutions = torch.get_float32_matmul_precision(), _older_setting()
    # The older settings first: torch complains where the two kinds contradict each other.
    torch.set_float32_matmul_precision("highest")
    if convolutions is not None:
        cudnn.allow_tf32 = False
    _set(["ieee"] * len(_PLACES))
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        if convolutions is not None:
            cudnn.allow_tf32 = convolutions
        _set(kept)


def _older_setting() -> bool | None:
    """Whether convolutions may use TF32; None where only the newer settings were made."""
    try:
        return cudnn.allow_tf32
    except RuntimeError:
        return None


def _set(precisions: list[str]) -> None:
    for place, precision in zip(_PLACES, precisions, strict=True):
        place.fp32_precision = precision
