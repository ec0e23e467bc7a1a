"""Operators of ``paddle.fluid.layers`` that move the pixels of images."""

from typing import Any

import torch
from torch.nn import functional as F

from fleetx.compat.paddle.fluid.layers.common import activated, named, pair, refused
from fleetx.compat.paddle.fluid.layers.images import first, last
from fleetx.compat.paddle.fluid.layers.manipulation import resize_bilinear, resize_nearest, resized
from fleetx.compat.paddle.nn.functional import vision
from fleetx.compat.recorded import fake, operator, settle, sizes_of
from fleetx.record.variable import Variable
from fleetx.static.layers.parameters import size_of


def image_resize(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    out_shape: Any = None,
    scale: Any = None,
    name: str | None = None,
    resample: str = "BILINEAR",
    actual_shape: Any = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCHW",
) -> Any:
    """An image of another size, by the way that ``resample`` names."""
    x = first(input, data_format) if data_format != "NCW" else input
    if resample == "NEAREST":
        found = resize_nearest(x, out_shape, scale, None, actual_shape, align_corners)
    elif resample == "BILINEAR":
        found = resize_bilinear(x, out_shape, scale, None, None, align_corners, align_mode)
    elif resample in {"LINEAR", "TRILINEAR", "BICUBIC"}:
        found = resized(x, out_shape, scale, resample.lower(), align_corners)
    else:
        raise ValueError(
            f"image_resize(resample={resample!r}): one of BILINEAR, NEAREST, LINEAR, TRILINEAR "
            "and BICUBIC."
        )
    return named(last(found, data_format), name)


def resize_linear(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    out_shape: Any = None,
    scale: Any = None,
    name: str | None = None,
    actual_shape: Any = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCW",
) -> Any:
    """Rows of another length, smoothly."""
    return named(resized(input, out_shape, scale, "linear", align_corners), name)


def resize_trilinear(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    out_shape: Any = None,
    scale: Any = None,
    name: str | None = None,
    actual_shape: Any = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCDHW",
) -> Any:
    """A volume of another size, smoothly."""
    x = first(input, data_format)
    return named(last(resized(x, out_shape, scale, "trilinear", align_corners), data_format), name)


def image_resize_short(input: Any, out_short_len: int, resample: str = "BILINEAR") -> Any:
    """An image whose shorter side has this length."""
    sizes = [size_of(input, 2), size_of(input, 3)]
    short = min(sizes)
    wanted = [int(size * out_short_len / short + 0.5) for size in sizes]
    return image_resize(input, wanted, resample=resample)


def grid_sampler(x: Any, grid: Any, name: str | None = None) -> Any:
    """Pixels from where a grid says."""
    return named(F.grid_sample(x, grid, align_corners=True), name)


def affine_grid(theta: Any, out_shape: Any, name: str | None = None) -> Any:
    """Where the pixels of a turned image come from."""
    sizes = [int(size) for size in sizes_of(out_shape)]
    return named(F.affine_grid(theta, sizes, align_corners=True), name)


def affine_channel(  # noqa: PLR0917 (the order of Paddle)
    x: Any,
    scale: Any = None,
    bias: Any = None,
    data_layout: str = "NCHW",
    name: str | None = None,
    act: Any = None,
) -> Any:
    """Each channel by a factor of its own, and a number added."""
    images = first(x, data_layout)
    shape = (1, -1, *[1] * (images.dim() - 2))
    found = images if scale is None else images * torch.reshape(scale, shape)
    found = found if bias is None else found + torch.reshape(bias, shape)
    return named(activated(last(found, data_layout), act), name)


def space_to_depth(x: Any, blocksize: int, name: str | None = None) -> Any:
    """Squares of pixels as channels, in Paddle's order: [N, C * b * b, H / b, W / b]."""
    settle(x)
    size, sizes = int(blocksize), list(x.fake.shape if isinstance(x, Variable) else x.shape)
    sides = [side for side in sizes[2:] if isinstance(side, int)]
    if size < 2 or sizes[1] % size**2 or any(side % size for side in sides):
        raise refused(
            "layers.space_to_depth",
            f"blocksize={blocksize!r} for {list(x.shape)}",
            "cuts the sides of an image into squares, and its channels by the area of one",
            "use a block from 2 on that divides the sides, and whose square divides the channels",
        )
    if not isinstance(x, Variable):
        return _as_depth(x, size)
    shape = [sizes[0], sizes[1] * size**2, sizes[2] // size, sizes[3] // size]
    return named(operator(_as_depth, x, size, like=fake(shape, x.dtype, like=x)), name)


def _as_depth(x: torch.Tensor, size: int) -> torch.Tensor:
    """Channels are laid into squares as Darknet does, and the result is read as smaller sides."""
    count, channels, rows, columns = x.shape
    parts = x.reshape(count, size, size, channels // size**2, rows, columns)
    spread = parts.permute(0, 3, 4, 1, 5, 2)
    return spread.reshape(count, channels * size**2, rows // size, columns // size)


def shuffle_channel(x: Any, group: int, name: str | None = None) -> Any:
    """Channels of groups by turns."""
    return named(F.channel_shuffle(x, group), name)


def temporal_shift(
    x: Any,
    seg_num: int,
    shift_ratio: float = 0.25,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Any:
    """Some channels of the frame before, some of the one after."""
    return vision.temporal_shift(x, seg_num, shift_ratio, name, data_format)


def unfold(  # noqa: PLR0917 (the order of Paddle)
    x: Any,
    kernel_sizes: Any,
    strides: Any = 1,
    paddings: Any = 0,
    dilations: Any = 1,
    name: str | None = None,
) -> Any:
    """The windows of images, each as a column."""
    if isinstance(paddings, (list, tuple)) and len(paddings) == 4:
        top, left, bottom, right = paddings
        x, paddings = F.pad(x, (left, right, top, bottom)), 0
    found = F.unfold(x, pair(kernel_sizes), pair(dilations), pair(paddings), pair(strides))
    return named(found, name)


def adaptive_pool3d(
    input: Any,
    pool_size: Any,
    pool_type: str = "max",
    require_index: bool = False,
    name: str | None = None,
) -> Any:
    """So many windows over the whole volume."""
    if require_index:
        return F.adaptive_max_pool3d(input, pair(pool_size, 3), return_indices=True)
    pool: Any = F.adaptive_max_pool3d if pool_type == "max" else F.adaptive_avg_pool3d
    return named(pool(input, pair(pool_size, 3)), name)


def random_crop(x: Any, shape: Any, seed: Any = None) -> Any:
    """A window of every sample, at a place that is drawn for the batch."""
    if seed is not None and not isinstance(seed, int):
        raise refused("random_crop", "seed=…", "is a variable", "give a number, or none")
    sizes = [int(size) for size in sizes_of(shape)]
    found, lead = x, x.dim() - len(sizes)
    for at, size in enumerate(sizes, lead):
        room = size_of(found, at) - size + 1
        start = torch.Tensor.to(torch.rand_like(torch.flatten(found)[:1]) * room, torch.int64)
        places = torch.cumsum(torch.ones_like(torch.Tensor.new_ones(start, size)), 0) - 1 + start
        found = torch.index_select(found, at, places)
    return found
