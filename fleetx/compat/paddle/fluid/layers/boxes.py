"""Boxes of ``paddle.fluid.layers``: overlaps, codes, and those that lie on a grid.

A box is ``[x1, y1, x2, y2]``; one that is not normalised ends with the pixel that it names.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fleetx.compat import lods
from fleetx.compat.paddle.fluid.layers.common import named
from fleetx.compat.recorded import fake, operator, settle
from fleetx.record.variable import Variable
from fleetx.static.layers.parameters import size_of


def overlaps(x: Any, y: Any, extra: float = 0.0) -> Any:
    """The part that two boxes share of what both cover, for each pair: [..., N, M].

    Args:
        x: boxes, [..., N, 4].
        y: others, [..., M, 4].
        extra: 1 where the last pixel belongs to a box.
    """
    first, second = x[..., :, None, :], y[..., None, :, :]
    low = torch.maximum(first[..., :2], second[..., :2])
    high = torch.minimum(first[..., 2:], second[..., 2:])
    shared = torch.prod(torch.clamp_min(high - low + extra, 0.0), -1)
    covered = [torch.prod(box[..., 2:] - box[..., :2] + extra, -1) for box in (first, second)]
    return shared / (covered[0] + covered[1] - shared)


def iou_similarity(x: Any, y: Any, box_normalized: bool = True, name: str | None = None) -> Any:
    """How much each box of one list overlaps with each of another: [N, M]."""
    settle(x, y)
    found = overlaps(x, y, 0.0 if box_normalized else 1.0)
    if lods.has_lod(x):
        lods.set_lod(found, lods.offsets_of(x, "iou_similarity"))
    return named(found, name)


def box_coder(  # noqa: PLR0917 (the order of Paddle)
    prior_box: Any,
    prior_box_var: Any,
    target_box: Any,
    code_type: str = "encode_center_size",
    box_normalized: bool = True,
    name: str | None = None,
    axis: int = 0,
) -> Any:
    """Boxes as offsets from prior ones, or such offsets as boxes."""
    settle(prior_box, target_box)
    kind = code_type.lower()
    if kind not in {"encode_center_size", "decode_center_size"} or axis not in {0, 1}:
        raise ValueError(
            f"box_coder(code_type={code_type!r}, axis={axis}): 'encode_center_size' or "
            "'decode_center_size', and axis 0 or 1."
        )
    scale = variances(prior_box_var)
    encodes = kind == "encode_center_size"
    func = _encoded if encodes else _decoded
    given = prior_box, scale, target_box, 0.0 if box_normalized else 1.0, int(axis)
    if not isinstance(target_box, Variable):
        return func(*given)
    shape = list(target_box.fake.shape)
    if encodes:
        count = prior_box.fake.shape if isinstance(prior_box, Variable) else prior_box.shape
        shape = [shape[0], count[0], 4]
    like = fake(shape, target_box.dtype, like=(prior_box, target_box))
    return named(operator(func, *given, like=like), name)


def variances(given: Any) -> Any:
    """What codes are divided by: a row for each prior box, one for all, or None."""
    if given is None or isinstance(given, Tensor):
        return given
    if len(given) != 4:
        raise ValueError(f"box_coder(prior_box_var=...) has 4 numbers, got {list(given)!r}")
    return torch.tensor([[float(number) for number in given]])


def _centred(box: Any, extra: float) -> tuple[Any, Any]:
    """The middle of a box, and its size."""
    size = box[..., 2:] - box[..., :2] + extra
    return box[..., :2] + size / 2, size


def _encoded(prior: Any, scale: Any, target: Any, extra: float, axis: int) -> Any:
    return encoded(prior, scale, target[:, None], extra)


def encoded(prior: Any, scale: Any, target: Any, extra: float = 0.0) -> Any:
    """Boxes as offsets from prior ones, pair by pair: [..., 4]."""
    middle, size = _centred(prior, extra)
    wanted = target[..., 2:] - target[..., :2] + extra
    at = (target[..., :2] + target[..., 2:]) / 2  # without the last pixel, as in Paddle
    found = torch.cat([(at - middle) / size, torch.log(torch.abs(wanted / size))], -1)
    return found if scale is None else found / scale


def _decoded(prior: Any, scale: Any, target: Any, extra: float, axis: int) -> Any:
    middle, size = (torch.unsqueeze(part, axis) for part in _centred(prior, extra))
    code = target if scale is None else target * torch.unsqueeze(scale, axis)
    at, half = code[..., :2] * size + middle, torch.exp(code[..., 2:]) * size / 2
    return torch.cat([at - half, at + half - extra], -1)


def prior_box(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    image: Any,
    min_sizes: Any,
    max_sizes: Any = None,
    aspect_ratios: Any = (1.0,),
    variance: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    flip: bool = False,
    clip: bool = False,
    steps: Sequence[float] = (0.0, 0.0),
    offset: float = 0.5,
    name: str | None = None,
    min_max_aspect_ratios_order: bool = False,
) -> tuple[Any, Any]:
    """Boxes of some sizes and shapes at each place of a map, and their variances: [H, W, P, 4]."""
    settle(input, image)
    least, most = _numbers(min_sizes), _numbers(max_sizes) if max_sizes is not None else []
    most = most if most and most[0] > 0 else []
    if most and len(most) != len(least):
        raise ValueError(
            f"prior_box has {len(least)} min_sizes and {len(most)} max_sizes; give as many of both."
        )
    ratios = _ratios(_numbers(aspect_ratios), flip)
    sizes = _prior_sizes(least, most, ratios, min_max_aspect_ratios_order)
    options = {"steps": _numbers(steps), "offset": float(offset), "clip": bool(clip)}
    return _on_grid(_priors, input, image, sizes, variance, name, options)


def _numbers(given: Any) -> list[float]:
    listed = list(given) if isinstance(given, list | tuple) else [given]
    return [float(number) for number in listed]


def _ratios(given: list[float], flip: bool) -> list[float]:
    """One, and every other ratio once, with its inverse."""
    found = [1.0]
    for ratio in given:
        if all(abs(ratio - known) > 1e-6 for known in found):
            found += [ratio, 1.0 / ratio] if flip else [ratio]
    return found


def _prior_sizes(
    least: list[float], most: list[float], ratios: list[float], squares_first: bool
) -> list[tuple[float, float]]:
    """Width and height of each box of a place, in Paddle's order."""
    found = []
    for number, small in enumerate(least):
        shaped = [(small * math.sqrt(r), small / math.sqrt(r)) for r in ratios]
        middle = [(math.sqrt(small * most[number]),) * 2] if most else []
        # The ratio 1 comes first.
        found += [shaped[0], *middle, *shaped[1:]] if squares_first else [*shaped, *middle]
    return [(float(width), float(height)) for width, height in found]


def _on_grid(  # noqa: PLR0917
    func: Any,
    input: Any,
    image: Any,
    sizes: list[tuple[float, float]],
    variance: Sequence[float],
    name: str | None,
    options: dict[str, Any],
) -> tuple[Any, Any]:
    numbers, given = _numbers(variance), (input,) if image is None else (input, image)
    if not isinstance(input, Variable):
        return tuple(func(*given, sizes=sizes, variance=numbers, **options))
    shape = [size_of(input, 2), size_of(input, 3), len(sizes), 4]
    likes = tuple(fake(shape, torch.float32) for _ in range(2))
    boxes, spread = operator(func, *given, like=likes, sizes=sizes, variance=numbers, **options)
    return named(boxes, name), spread


def _priors(
    feature: Tensor,
    image: Tensor,
    *,
    sizes: list[tuple[float, float]],
    variance: list[float],
    steps: list[float],
    offset: float,
    clip: bool,
) -> tuple[Tensor, Tensor]:
    (rows, columns), (height, width) = feature.shape[2:], image.shape[2:]
    across = steps[0] or width / columns
    down = steps[1] or height / rows
    whole = torch.tensor([width, height], device=feature.device, dtype=torch.float32)
    places = _places(feature, across, down, offset * across, offset * down)
    half = torch.tensor(sizes, device=feature.device) / 2
    found = torch.cat([(places - half) / whole, (places + half) / whole], -1)
    return found.clamp(0.0, 1.0) if clip else found, _spread(found, variance)


def _places(feature: Tensor, across: float, down: float, left: float, top: float) -> Tensor:
    """The middle of each place of a map: [H, W, 1, 2]."""
    rows, columns = feature.shape[2:]
    x = torch.arange(columns, device=feature.device) * across + left
    y = torch.arange(rows, device=feature.device) * down + top
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)[:, :, None].float()


def _spread(boxes: Tensor, variance: list[float]) -> Tensor:
    return boxes.new_tensor(variance).expand_as(boxes).clone()


def anchor_generator(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    anchor_sizes: Any = None,
    aspect_ratios: Any = None,
    variance: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    stride: Any = None,
    offset: float = 0.5,
    name: str | None = None,
) -> tuple[Any, Any]:
    """Boxes in pixels at each place of a map, and their variances: [H, W, A, 4]."""
    settle(input)
    if anchor_sizes is None or aspect_ratios is None or stride is None:
        raise ValueError("anchor_generator takes anchor_sizes, aspect_ratios and a stride of two.")
    across, down = _numbers(stride)
    sizes = []
    for ratio in _numbers(aspect_ratios):
        width = math.floor(math.sqrt(across * down / ratio) + 0.5)
        height = math.floor(width * ratio + 0.5)
        sizes += [(s / across * width, s / down * height) for s in _numbers(anchor_sizes)]
    options = {"stride": [across, down], "offset": float(offset)}
    return _on_grid(_anchors, input, None, sizes, variance, name, options)


def _anchors(
    feature: Tensor,
    *,
    sizes: list[tuple[float, float]],
    variance: list[float],
    stride: list[float],
    offset: float,
) -> tuple[Tensor, Tensor]:
    across, down = stride
    places = _places(feature, across, down, offset * (across - 1), offset * (down - 1))
    half = (torch.tensor(sizes, device=feature.device) - 1) / 2
    found = torch.cat([places - half, places + half], -1)
    return found, _spread(found, variance)
