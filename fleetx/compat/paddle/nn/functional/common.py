"""``paddle.nn.functional.common``: linear, dropout, padding and resizing."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from fleetx.compat.dtypes import dtype_of
from fleetx.compat.paddle.tensor.creation import arange
from fleetx.compat.tensors import op


@op
def linear(x: Any, weight: Any, bias: Any = None, name: str | None = None) -> Any:
    """``x @ weight + bias``, with a weight [in, out]."""
    return F.linear(x, torch.t(weight), bias)


@op
def dropout(
    x: Any,
    p: float = 0.5,
    axis: Any = None,
    training: bool = True,
    mode: str = "upscale_in_train",
    name: str | None = None,
) -> Any:
    """Numbers dropped in training; the rest is scaled then, or everything later."""
    if mode not in {"upscale_in_train", "downscale_in_infer", "downgrade_in_infer"}:
        raise ValueError(f"dropout(mode={mode!r}): 'upscale_in_train' or 'downscale_in_infer'.")
    found = _dropped(x, p, axis, training) if p else x
    # Numbers that were kept are scaled up above, so that this leaves them as they were.
    return found if mode == "upscale_in_train" else found * (1 - p)


def _dropped(x: Any, p: float, axis: Any, training: bool) -> Any:
    if axis is None:
        return F.dropout(x, p, training)
    axes = {a % x.dim() for a in ([axis] if isinstance(axis, int) else axis)}
    sizes = [x.size(at) if at in axes else 1 for at in range(x.dim())]
    return x * F.dropout(torch.Tensor.new_ones(x, sizes), p, training)


@op
def dropout2d(
    x: Any,
    p: float = 0.5,
    training: bool = True,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Any:
    """Whole channels dropped."""
    return dropout(x, p, [0, 1] if data_format == "NCHW" else [0, 3], training)


@op
def dropout3d(
    x: Any,
    p: float = 0.5,
    training: bool = True,
    data_format: str = "NCDHW",
    name: str | None = None,
) -> Any:
    """Whole channels of volumes dropped."""
    return dropout(x, p, [0, 1] if data_format == "NCDHW" else [0, 4], training)


@op
def zeropad2d(x: Any, padding: Any, data_format: str = "NCHW", name: str | None = None) -> Any:
    """Zeros around images."""
    return pad(x, padding, "constant", 0.0, data_format)


@op
def alpha_dropout(x: Any, p: float = 0.5, training: bool = True, name: str | None = None) -> Any:
    """Dropout that keeps mean and variance, for selu."""
    return F.alpha_dropout(x, p, training)


@op
def pad(
    x: Any,
    pad: Any,
    mode: str = "constant",
    value: float = 0.0,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Any:
    """Numbers around: [left, right, top, …] of space, or [before, after] of each axis in order."""
    amounts = [int(a) for a in (pad.tolist() if isinstance(pad, torch.Tensor) else pad)]
    kind = "replicate" if mode == "edge" else mode
    if kind == "constant" and len(amounts) == 2 * x.dim():
        turned = [a for at in reversed(range(x.dim())) for a in amounts[2 * at : 2 * at + 2]]
        return F.pad(x, turned, "constant", value)
    last = data_format[-1] == "C" and x.dim() > 2
    x = torch.movedim(x, -1, 1) if last else x
    found = F.pad(x, amounts, kind, value if kind == "constant" else None)
    return torch.movedim(found, 1, -1) if last else found


@op
def interpolate(
    x: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool = False,
    align_mode: int = 0,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Any:
    """Space in another size."""
    last = data_format[-1] == "C"
    x = torch.movedim(x, -1, 1) if last else x
    corners = None if mode in {"nearest", "area"} else align_corners
    if isinstance(size, torch.Tensor):
        size = size.tolist()
    found = F.interpolate(x, size, scale_factor, mode, corners)
    return torch.movedim(found, 1, -1) if last else found


upsample = interpolate


@op
def cosine_similarity(x1: Any, x2: Any, axis: int = 1, eps: float = 1e-8) -> Any:
    """The cosine of the angle between vectors."""
    return F.cosine_similarity(x1, x2, axis, eps)


@op
def label_smooth(
    label: Any, prior_dist: Any = None, epsilon: float = 0.1, name: str | None = None
) -> Any:
    """Soft labels that give a share to every class."""
    share = 1 / label.size(-1) if prior_dist is None else prior_dist
    return label * (1 - epsilon) + epsilon * share


@op
def one_hot(x: Any, num_classes: int, name: str | None = None) -> Any:
    """A 1 at the place of each label."""
    return F.one_hot(x.to(torch.int64), num_classes).to(torch.float32)


@op
def embedding(
    x: Any, weight: Any, padding_idx: int | None = None, sparse: bool = False, name: Any = None
) -> Any:
    """Rows of a table; those of ``padding_idx`` are zero."""
    found = F.embedding(x, weight)
    if padding_idx is None:
        return found
    at = padding_idx if padding_idx >= 0 else weight.size(0) + padding_idx
    return found * torch.unsqueeze(torch.ne(x, at).to(found.dtype), -1)


@op
def normalize(
    x: Any, p: float = 2, axis: int = 1, epsilon: float = 1e-12, name: str | None = None
) -> Any:
    """Divided by its norm."""
    return F.normalize(x, p, axis, epsilon)


@op
def unfold(
    x: Any,
    kernel_sizes: Any,
    strides: Any = 1,
    paddings: Any = 0,
    dilations: Any = 1,
    name: str | None = None,
) -> Any:
    """Windows of space as columns."""
    return F.unfold(x, kernel_sizes, dilations, paddings, strides)


@op
def bilinear(x1: Any, x2: Any, weight: Any, bias: Any = None, name: str | None = None) -> Any:
    """``x1 @ weight @ x2`` for each output."""
    return F.bilinear(x1, x2, weight, None if bias is None else torch.reshape(bias, (-1,)))


@op
def pixel_shuffle(x: Any, upscale_factor: int, data_format: str = "NCHW", name: Any = None) -> Any:
    """Channels laid out in space."""
    return F.pixel_shuffle(x, upscale_factor)


@op
def sequence_mask(x: Any, maxlen: Any = None, dtype: Any = "int64", name: str | None = None) -> Any:
    """1 in the first places of each row, as many as its length."""
    longest = int(x.max()) if maxlen is None else maxlen
    places = arange(longest)
    return torch.lt(places, torch.unsqueeze(x, -1)).to(dtype_of(dtype))


def several(value: Any, count: int) -> list[int]:
    """A number for each axis."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        given = [int(v) for v in value]
        return given * count if len(given) == 1 else given
    return [int(value)] * count
