"""``roi_align`` and ``roi_pool``: the part of a map that a box covers, at one size."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fleetx.compat import lods
from fleetx.compat.paddle.fluid.layers.common import named
from fleetx.compat.recorded import fake, operator, settle
from fleetx.record.variable import Variable
from fleetx.static.layers.parameters import size_of


def roi_align(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    rois: Any,
    pooled_height: int = 1,
    pooled_width: int = 1,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    name: str | None = None,
    rois_num: Any = None,
) -> Any:
    """The mean of numbers between pixels, in each of the cells of a box: [R, C, h, w]."""
    given = pooled_height, pooled_width, spatial_scale, sampling_ratio
    return aligned(input, rois, rois_num, *given, name=name)


def aligned(  # noqa: PLR0917
    input: Any,
    rois: Any,
    rois_num: Any,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    *,
    half: bool = False,
    name: str | None = None,
) -> Any:
    """The same; pixels lie half of one before their numbers with ``half``, as Paddle 2 has it."""
    options = {"scale": float(spatial_scale), "samples": int(sampling_ratio), "half": bool(half)}
    pooled = int(pooled_height), int(pooled_width)
    return _of_boxes(_aligned, input, rois, rois_num, pooled, name, options)


def roi_pool(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    rois: Any,
    pooled_height: int = 1,
    pooled_width: int = 1,
    spatial_scale: float = 1.0,
    rois_num: Any = None,
    name: str | None = None,
) -> Any:
    """The largest number in each of the cells of a box: [R, C, h, w]."""
    pooled = int(pooled_height), int(pooled_width)
    options = {"scale": float(spatial_scale)}
    return _of_boxes(_pooled, input, rois, rois_num, pooled, name, options)


def _of_boxes(  # noqa: PLR0917
    func: Any,
    input: Any,
    rois: Any,
    rois_num: Any,
    pooled: tuple[int, int],
    name: str | None,
    options: dict[str, Any],
) -> Any:
    settle(input, rois)
    begins = _begins(rois, rois_num, func.__name__)
    if not isinstance(input, Variable):
        return func(input, rois, begins, pooled=pooled, **options)
    rows = rois.fake.shape[0] if isinstance(rois, Variable) else len(rois)
    like = fake([rows, size_of(input, 1), *pooled], input.dtype, like=input)
    found = operator(
        func, input, rois, begins, like=like, by_numbers=True, pooled=pooled, **options
    )
    if rois_num is None:
        lods.set_lod(found, begins)
    return named(found, name)


def _begins(rois: Any, counts: Any, call: str) -> Any:
    """Where the boxes of each image begin."""
    if counts is None:
        return lods.offsets_of(rois, f"roi{call}")
    counts = torch.Tensor.to(torch.reshape(counts, (-1,)), torch.int64)
    return torch.cumsum(counts, 0) - counts


def owners(rois: Tensor, begins: Tensor) -> Tensor:
    """The image of each box."""
    places = torch.arange(len(rois), device=rois.device)
    return torch.searchsorted(begins, places, right=True) - 1


def _aligned(
    feature: Tensor,
    rois: Tensor,
    begins: Tensor,
    *,
    pooled: tuple[int, int],
    scale: float,
    samples: int,
    half: bool,
) -> Tensor:
    boxes, images = rois.detach() * scale - (0.5 if half else 0.0), owners(rois, begins)
    least = -math.inf if half else 1.0
    # What lies between pixels along one axis does not depend on the other one.
    down, across = (
        _shares(boxes[:, at::2], least, pooled[1 - at], samples, feature.shape[3 - at])
        for at in (1, 0)
    )
    found = feature.new_zeros([len(rois), feature.shape[1], *pooled])
    for image in range(len(feature)):
        own = torch.nonzero(images == image).reshape(-1)
        rows = torch.einsum("kph,chw->kcpw", down[own].to(feature.dtype), feature[image])
        cells = torch.einsum("kcpw,kqw->kcpq", rows, across[own].to(feature.dtype))
        found = found.index_copy(0, own, cells)
    return found


def _shares(ends: Tensor, least: float, cells: int, samples: int, size: int) -> Tensor:
    """How much each pixel of an axis counts in each cell of each box: [R, cells, size]."""
    begin = ends[:, 0]
    length = (ends[:, 1] - begin).clamp_min(least)
    cell = (length / cells)[:, None, None]
    count = torch.ceil(cell) if samples <= 0 else torch.full_like(cell, samples)
    whole = count.clamp_min(1.0)
    most = int(whole.max()) if len(count) else 1
    number = torch.arange(most, device=begin.device)
    at = begin[:, None, None] + torch.arange(cells, device=begin.device)[:, None] * cell
    at = at + (number + 0.5) * cell / whole
    there = (number < count) & (at >= -1.0) & (at <= size)
    pixels = torch.arange(size, device=begin.device)
    near = (1.0 - (at.clamp(0, size - 1)[..., None] - pixels).abs()).clamp_min(0.0)
    return (near * there[..., None]).sum(2) / whole


def _pooled(
    feature: Tensor, rois: Tensor, begins: Tensor, *, pooled: tuple[int, int], scale: float
) -> Tensor:
    images = owners(rois, begins).tolist()
    ends = rois.detach() * scale
    # Halves are rounded away from zero.
    corners = (torch.sign(ends) * torch.floor(ends.abs() + 0.5)).long().tolist()
    cells = [
        _largest(feature[image], box, pooled) for image, box in zip(images, corners, strict=True)
    ]
    return torch.stack(cells) if cells else feature.new_zeros([0, feature.shape[1], *pooled])


def _largest(image: Tensor, box: list[int], pooled: tuple[int, int]) -> Tensor:
    """The largest numbers of one box, of which parts may lie outside of the image."""
    height, width = image.shape[1:]
    left, top = box[0], box[1]
    right, bottom = max(box[2], left) + 1, max(box[3], top) + 1
    rows, columns = _inside(top, bottom, height), _inside(left, right, width)
    if rows[0] == rows[1] or columns[0] == columns[1]:
        return image.new_zeros([len(image), *pooled])
    inner = image[:, rows[0] : rows[1], columns[0] : columns[1]]
    around = [columns[0] - left, right - columns[1], rows[0] - top, bottom - rows[1]]
    whole = F.pad(inner, around, value=float("-inf"))
    found = F.adaptive_max_pool2d(whole, pooled)
    return torch.where(torch.isneginf(found), torch.zeros_like(found), found)


def _inside(begin: int, end: int, size: int) -> tuple[int, int]:
    """The part of a range that lies in an axis, which may be none."""
    low = min(max(begin, 0), size)
    return low, max(min(end, size), low)
