"""``paddle.nn.functional.vision``: functions of images."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from typing import Any

import torch
from torch.nn import functional as F

from fleetx.compat.paddle.nn.functional.common import pixel_shuffle
from fleetx.compat.recorded import sizes_of
from fleetx.compat.tensors import op

__all__ = [
    "affine_grid",
    "channel_shuffle",
    "fold",
    "grid_sample",
    "pixel_shuffle",
    "pixel_unshuffle",
    "temporal_shift",
]


def _first(x: Any, data_format: str) -> Any:
    """Channels first."""
    return x if data_format.startswith("NC") else torch.movedim(x, -1, 1)


def _back(x: Any, data_format: str) -> Any:
    return x if data_format.startswith("NC") else torch.movedim(x, 1, -1)


@op
def affine_grid(theta: Any, out_shape: Any, align_corners: bool = True, name: Any = None) -> Any:
    """Where the pixels of a turned image come from."""
    return F.affine_grid(theta, [int(s) for s in sizes_of(out_shape)], align_corners)


@op
def grid_sample(
    x: Any,
    grid: Any,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = True,
    name: str | None = None,
) -> Any:
    """Pixels from where a grid says."""
    return F.grid_sample(x, grid, mode, padding_mode, align_corners)


@op
def pixel_unshuffle(
    x: Any, downscale_factor: int, data_format: str = "NCHW", name: str | None = None
) -> Any:
    """Squares of pixels as channels."""
    return _back(F.pixel_unshuffle(_first(x, data_format), downscale_factor), data_format)


@op
def channel_shuffle(x: Any, groups: int, data_format: str = "NCHW", name: str | None = None) -> Any:
    """Channels of groups by turns."""
    return _back(F.channel_shuffle(_first(x, data_format), groups), data_format)


@op
def fold(
    x: Any,
    output_sizes: Any,
    kernel_sizes: Any,
    strides: Any = 1,
    paddings: Any = 0,
    dilations: Any = 1,
    name: str | None = None,
) -> Any:
    """Windows put together to images; where they overlap they are added."""
    return F.fold(x, output_sizes, kernel_sizes, dilations, paddings, strides)


@op
def temporal_shift(
    x: Any,
    seg_num: int,
    shift_ratio: float = 0.25,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Any:
    """Some channels of the frame before, some of the one after."""
    images = _first(x, data_format)
    count, channels, height, width = images.size()
    frames = torch.reshape(images, (-1, seg_num, channels, height, width))
    part = int(channels * shift_ratio)
    padded = F.pad(frames, (0, 0, 0, 0, 0, 0, 1, 1))
    made = torch.cat(
        [padded[:, :-2, :part], padded[:, 2:, part : 2 * part], frames[:, :, 2 * part :]], 2
    )
    return _back(torch.reshape(made, (count, channels, height, width)), data_format)
