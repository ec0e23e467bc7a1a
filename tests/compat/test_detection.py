"""Layers that find objects, against formulas for one box, one place and one number at a time."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch


def run(fluid: Any, fetches: Sequence[Any], **feed: Any) -> list[Any]:
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    found: list[Any] = exe.run(feed=feed, fetch_list=list(fetches), return_numpy=False)
    return found


def data(fluid: Any, name: str, array: Any, **options: Any) -> Any:
    """An input like an array, whose first size comes with the data."""
    return fluid.data(name, [None, *array.shape[1:]], str(array.dtype), **options)


def boxes(seed: int, count: int, size: float = 1.0) -> Any:
    chance = np.random.RandomState(seed)
    corner = chance.rand(count, 2) * 0.6
    return (
        np.concatenate([corner, corner + 0.05 + chance.rand(count, 2) * 0.35], 1) * size
    ).astype("float32")


def shared(one: Any, other: Any, extra: float = 0.0) -> float:
    """The area of both boxes of that of either."""
    sides = [min(one[at + 2], other[at + 2]) - max(one[at], other[at]) + extra for at in (0, 1)]
    both = max(sides[0], 0.0) * max(sides[1], 0.0)
    areas = [(box[2] - box[0] + extra) * (box[3] - box[1] + extra) for box in (one, other)]
    return float(both / (sum(areas) - both))


def test_overlaps() -> None:
    from paddle import fluid

    x, y = boxes(0, 5, 20.0), boxes(1, 7, 20.0)
    given = data(fluid, "x", x), data(fluid, "y", y)
    layers = fluid.layers
    made = layers.iou_similarity(*given), layers.iou_similarity(*given, box_normalized=False)
    for found, extra in zip(run(fluid, made, x=x, y=y), (0.0, 1.0), strict=True):
        wanted = [[shared(one, other, extra) for other in y] for one in x]
        np.testing.assert_allclose(found, wanted, rtol=1e-4)


def coded(prior: Any, scale: Any, target: Any, extra: float) -> list[float]:
    width, height = prior[2] - prior[0] + extra, prior[3] - prior[1] + extra
    x, y = prior[0] + width / 2, prior[1] + height / 2
    made = [
        ((target[0] + target[2]) / 2 - x) / width,
        ((target[1] + target[3]) / 2 - y) / height,
        math.log((target[2] - target[0] + extra) / width),
        math.log((target[3] - target[1] + extra) / height),
    ]
    return [number / by for number, by in zip(made, scale, strict=True)]


@pytest.mark.parametrize("normalized", [True, False])
def test_codes_of_boxes(normalized: bool) -> None:
    from paddle import fluid

    layers, scale = fluid.layers, [0.1, 0.2, 0.3, 0.4]
    prior, target = boxes(2, 4, 30.0), boxes(3, 3, 30.0)
    p, t = data(fluid, "p", prior), data(fluid, "t", target)
    code = layers.box_coder(p, scale, t, box_normalized=normalized)
    many = layers.expand(layers.unsqueeze(t * 0.01, [1]), [1, 4, 1])
    back = layers.box_coder(p, scale, many, "decode_center_size", normalized)
    spread = layers.expand(layers.assign(np.array([scale], "float32")), [4, 1])
    same = layers.box_coder(p, spread, many, "decode_center_size", normalized)
    found, decoded, again = run(fluid, [code, back, same], p=prior, t=target)
    extra = 0.0 if normalized else 1.0
    wanted = [[coded(one, scale, box, extra) for one in prior] for box in target]
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
    for number, one in enumerate(prior):
        size = one[2:] - one[:2] + extra
        at = target[:, :2] * 0.01 * scale[:2] * size + one[:2] + size / 2
        half = np.exp(target[:, 2:] * 0.01 * scale[2:]) * size / 2
        box = np.concatenate([at - half, at + half - extra], 1)
        np.testing.assert_allclose(np.array(decoded)[:, number], box, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(again, decoded, rtol=1e-5)


def test_prior_boxes_of_a_map() -> None:
    from paddle import fluid

    feature, image = np.zeros((1, 2, 3, 4), "float32"), np.zeros((1, 3, 30, 60), "float32")
    given = data(fluid, "f", feature), data(fluid, "i", image)
    options = {"aspect_ratios": [2.0], "flip": True, "clip": True}
    box, spread = fluid.layers.prior_box(*given, [8.0], [16.0], **options)
    order = fluid.layers.prior_box(
        *given, [8.0], [16.0], **options, min_max_aspect_ratios_order=True
    )
    found, variances, ordered = run(fluid, [box, spread, order[0]], f=feature, i=image)
    root = math.sqrt(2.0)
    shapes = [(8, 8), (8 * root, 8 / root), (8 / root, 8 * root), (math.sqrt(128),) * 2]
    for row in range(3):
        for column in range(4):
            x, y = (column + 0.5) * 15, (row + 0.5) * 10
            wanted = [
                [(x - w / 2) / 60, (y - h / 2) / 30, (x + w / 2) / 60, (y + h / 2) / 30]
                for w, h in shapes
            ]
            inside = np.clip(np.array(wanted), 0, 1)
            np.testing.assert_allclose(np.array(found)[row, column], inside, rtol=1e-5)
            other = np.array(ordered)[row, column]
            np.testing.assert_allclose(other, inside[[0, 3, 1, 2]], rtol=1e-5)
    np.testing.assert_allclose(np.array(variances)[2, 3, 1], [0.1, 0.1, 0.2, 0.2])


def test_anchors_of_a_map() -> None:
    from paddle import fluid

    feature = np.zeros((1, 2, 2, 3), "float32")
    made = fluid.layers.anchor_generator(
        data(fluid, "f", feature), [64.0, 128.0], [0.5, 1.0], stride=[16.0, 16.0]
    )
    found, variances = run(fluid, made, f=feature)
    assert np.array(variances).shape == (2, 3, 4, 4)
    # 16 * 16 / 0.5 has the root 22.6: 23 across, 12 (11.5) down.
    sizes = [(4 * 23, 4 * 12), (8 * 23, 8 * 12), (64, 64), (128, 128)]
    for row in range(2):
        for column in range(3):
            x, y = 16 * column + 7.5, 16 * row + 7.5
            wanted = [
                [x - (w - 1) / 2, y - (h - 1) / 2, x + (w - 1) / 2, y + (h - 1) / 2]
                for w, h in sizes
            ]
            np.testing.assert_allclose(np.array(found)[row, column], wanted)


def number_at(image: Any, y: float, x: float) -> Any:
    """Between four pixels, for all channels."""
    height, width = image.shape[1:]
    if y < -1 or y > height or x < -1 or x > width:
        return torch.zeros(len(image))
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    down, across = y - top, x - left
    upper = image[:, top, left] * (1 - across) + image[:, top, right] * across
    lower = image[:, bottom, left] * (1 - across) + image[:, bottom, right] * across
    return upper * (1 - down) + lower * down


def aligned(image: Any, box: Any, samples: int) -> Any:
    """A box at half of its size in cells of [2, 3]: means of points."""
    left, top, right, bottom = (float(n) / 2 for n in box)
    wide, high = max(right - left, 1.0) / 3, max(bottom - top, 1.0) / 2
    down, across = (samples if samples > 0 else math.ceil(size) for size in (high, wide))
    found = torch.zeros(len(image), 2, 3)
    for row, column in np.ndindex(2, 3):
        points = [
            number_at(
                image,
                top + row * high + (y + 0.5) * high / down,
                left + column * wide + (x + 0.5) * wide / across,
            )
            for y, x in np.ndindex(down, across)
        ]
        found[:, row, column] = torch.stack(points).mean(0)
    return found


def pooled(image: Any, box: Any) -> Any:
    """The same box in whole pixels: the largest number of each cell."""
    height, width = image.shape[1:]
    left, top, right, bottom = (math.floor(abs(n) / 2 + 0.5) * (1 if n >= 0 else -1) for n in box)
    wide, high = max(right - left + 1, 1), max(bottom - top + 1, 1)
    found = torch.zeros(len(image), 2, 3)
    for row, column in np.ndindex(2, 3):
        rows = top + row * high // 2, top + -(-(row + 1) * high // 2)
        columns = left + column * wide // 3, left + -(-(column + 1) * wide // 3)
        (up, low), (near, far) = (
            [min(max(n, 0), size) for n in span]
            for span, size in ((rows, height), (columns, width))
        )
        if up < low and near < far:
            found[:, row, column] = image[:, up:low, near:far].amax((1, 2))
    return found


@pytest.mark.parametrize("samples", [-1, 2])
def test_parts_of_maps_under_boxes(samples: int) -> None:
    from paddle import fluid

    chance = np.random.RandomState(0)
    image = chance.randn(2, 3, 9, 11).astype("float32")
    far = [[-6, -4, 9, 7], [15, 12, 40, 35], [60, 50, 70, 60]]
    rois = np.concatenate([boxes(1, 6, 24.0), far]).astype("float32")
    rois[2] = [3, 3, 3.2, 3.1]
    x, r = data(fluid, "x", image), fluid.data("r", [None, 4], "float32", lod_level=1)
    x.stop_gradient = False
    made = fluid.layers.roi_align(x, r, 2, 3, 0.5, samples), fluid.layers.roi_pool(x, r, 2, 3, 0.5)
    slopes = [fluid.gradients(fluid.layers.reduce_sum(m * m), x)[0] for m in made]
    fed = fluid.create_lod_tensor(rois, [[5, 4]], fluid.CPUPlace())
    found = run(fluid, [*made, *slopes], x=image, r=fed)
    assert found[0].recursive_sequence_lengths() == [[5, 4]]
    owners = [0] * 5 + [1] * 4
    for at, part in enumerate((lambda i, b: aligned(i, b, samples), pooled)):
        source = torch.tensor(image, requires_grad=True)
        parts = [part(source[n], box) for n, box in zip(owners, rois, strict=True)]
        wanted = torch.stack(parts)
        wanted.square().sum().backward()
        np.testing.assert_allclose(found[at], wanted.detach(), rtol=1e-3, atol=1e-5)
        assert source.grad is not None
        np.testing.assert_allclose(found[at + 2], source.grad, rtol=1e-3, atol=1e-4)


def test_boxes_are_counted_by_image() -> None:
    from paddle import fluid

    image, rois = np.random.RandomState(0).rand(2, 1, 9, 9).astype("float32"), boxes(4, 3, 12.0)
    x, r = data(fluid, "x", image), data(fluid, "r", rois)
    counts = fluid.data("n", [None], "int32")
    made = fluid.layers.roi_pool(x, r, 2, 3, 0.5, rois_num=counts)
    (found,) = run(fluid, [made], x=image, r=rois, n=np.array([1, 2], "int32"))
    wanted = [pooled(torch.tensor(image[n]), box) for n, box in zip((0, 1, 1), rois, strict=True)]
    np.testing.assert_allclose(found, torch.stack(wanted))


def test_squares_of_pixels_as_channels() -> None:
    from paddle import fluid

    image = np.random.RandomState(0).rand(2, 8, 4, 6).astype("float32")
    (found,) = run(fluid, [fluid.layers.space_to_depth(data(fluid, "x", image), 2)], x=image)
    wanted = np.zeros((2, 2, 8, 12), "float32")
    for channel in range(8):  # the way of Darknet's reorg layer
        offset, rest = divmod(channel, 2)
        wanted[:, rest, offset // 2 :: 2, offset % 2 :: 2] = image[:, channel]
    np.testing.assert_array_equal(found, wanted.reshape(2, 32, 2, 3))
    with pytest.raises(NotImplementedError, match="divides the channels"):
        fluid.layers.space_to_depth(data(fluid, "y", image[:, :2]), 2)


def test_no_images_have_no_boxes() -> None:
    from paddle import fluid

    given = torch.zeros(0, 4, 4), torch.zeros(0, 3, 4)
    assert fluid.layers.multiclass_nms(*given, 0.2, 20, 5).tolist() == [[-1.0]]
    found = fluid.contrib.layers.multiclass_nms2(*given, 0.2, 20, 5)
    assert found.shape == (0, 6)


@pytest.mark.parametrize("kept", [-1, 5])
def test_the_surest_of_boxes_that_overlap(kept: int) -> None:
    from paddle import fluid

    found_by = np.stack([boxes(5, 30), boxes(6, 30)])
    chances = np.random.RandomState(7).rand(2, 3, 30).astype("float32")
    given = data(fluid, "b", found_by), data(fluid, "s", chances)
    made = fluid.layers.multiclass_nms(*given, 0.2, 20, kept, 0.4)
    none = fluid.layers.multiclass_nms(*given, 2.0, 20, kept)
    found, nothing = run(fluid, [made, none], b=found_by, s=chances)
    assert np.array(nothing).tolist() == [[-1.0]]
    wanted, lengths = [], []
    for box, score in zip(found_by, chances, strict=True):
        rows: list[list[float]] = []
        for label in (1, 2):  # 0 is the background
            sure = [n for n in range(30) if score[label][n] > 0.2]
            best: list[int] = []
            for number in sorted(sure, key=lambda n: -score[label][n])[:20]:
                if all(shared(box[number], box[other]) <= 0.4 for other in best):
                    best.append(number)
            rows += [[label, float(score[label][n]), *box[n].tolist()] for n in best]
        if kept > 0:
            least = sorted((row[1] for row in rows), reverse=True)[kept - 1]
            rows = [row for row in rows if row[1] >= least]
        wanted += rows
        lengths.append(len(rows))
    np.testing.assert_allclose(np.array(found), wanted, rtol=1e-6)
    assert found.recursive_sequence_lengths() == [lengths]


ANCHORS = [10, 14, 23, 27, 37, 58, 81, 82]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def predicted(x: Any, image: int, place: tuple[int, ...], anchor: int, scale: float) -> list[float]:
    """Middle and size of one box, as parts of the image."""
    at, row, column = place
    numbers = [float(n) for n in x[image, at * 7 : at * 7 + 4, row, column]]
    rows = x.shape[2]
    shift = (scale - 1) / 2
    return [
        (column + sigmoid(numbers[0]) * scale - shift) / rows,
        (row + sigmoid(numbers[1]) * scale - shift) / rows,
        math.exp(numbers[2]) * ANCHORS[2 * anchor] / (8 * rows),
        math.exp(numbers[3]) * ANCHORS[2 * anchor + 1] / (8 * rows),
    ]


@pytest.mark.parametrize("clip", [True, False])
def test_boxes_of_a_yolo_map(clip: bool) -> None:
    from paddle import fluid

    x = np.random.RandomState(0).randn(2, 14, 3, 3).astype("float32")
    sizes = np.array([[40, 50], [30, 20]], "int32")
    made = fluid.layers.yolo_box(
        data(fluid, "x", x), data(fluid, "s", sizes), ANCHORS[:4], 2, 0.4, 8, clip, scale_x_y=1.2
    )
    box, score = (np.array(value) for value in run(fluid, made, x=x, s=sizes))
    for image, at, row, column in np.ndindex(2, 2, 3, 3):
        number = (at * 3 + row) * 3 + column
        sure = sigmoid(x[image, at * 7 + 4, row, column])
        if sure < 0.4:
            assert not box[image, number].any()
            assert not score[image, number].any()
            continue
        height, width = (float(size) for size in sizes[image])
        cx, cy, w, h = predicted(x, image, (at, row, column), at, 1.2)
        wanted = [(cx - w / 2) * width, (cy - h / 2) * height]
        wanted += [(cx + w / 2) * width, (cy + h / 2) * height]
        if clip:
            wanted = [max(n, 0) for n in wanted[:2]]
            wanted += [min((cx + w / 2) * width, width - 1), min((cy + h / 2) * height, height - 1)]
        np.testing.assert_allclose(box[image, number], wanted, rtol=1e-4, atol=1e-4)
        chances = [sure * sigmoid(n) for n in x[image, at * 7 + 5 : at * 7 + 7, row, column]]
        np.testing.assert_allclose(score[image, number], chances, rtol=1e-4)


def corners(box: Any) -> list[float]:
    x, y, wide, high = (float(n) for n in box)
    return [x - wide / 2, y - high / 2, x + wide / 2, y + high / 2]


def crossed(x: float, wanted: float) -> float:
    return max(x, 0) - x * wanted + math.log1p(math.exp(-abs(x)))


def yolo_error(  # noqa: PLR0917
    x: Any, gts: Any, labels: Any, weights: Any, mask: list[int], image: int
) -> float:
    """The loss of one image, box by box and place by place."""
    rows, total = x.shape[2], 0.0
    real = [n for n in range(len(gts)) if gts[n][2] > 0 and gts[n][3] > 0]
    there = {}
    for at, row, column in np.ndindex(len(mask), rows, rows):
        box = predicted(x, image, (at, row, column), mask[at], 1.1)
        best = max((shared(corners(box), corners(gts[n])) for n in real), default=0.0)
        there[at, row, column] = -1.0 if best > 0.3 else 0.0
    for n in real:
        cx, cy, w, h = (float(number) for number in gts[n])
        alike = [
            shared(
                [0, 0, w, h], [0, 0, ANCHORS[2 * a] / (8 * rows), ANCHORS[2 * a + 1] / (8 * rows)]
            )
            for a in range(4)
        ]
        anchor = int(np.argmax(alike))
        if anchor not in mask:
            continue
        at, row, column = mask.index(anchor), int(cy * rows), int(cx * rows)
        there[at, row, column] = float(weights[n])
        raw = [float(number) for number in x[image, at * 7 : at * 7 + 7, row, column]]
        place = crossed(raw[0], cx * rows - column) + crossed(raw[1], cy * rows - row)
        place += abs(raw[2] - math.log(w * 8 * rows / ANCHORS[2 * anchor]))
        place += abs(raw[3] - math.log(h * 8 * rows / ANCHORS[2 * anchor + 1]))
        kinds = [0.975 if labels[n] == kind else 0.025 for kind in range(2)]
        classes = sum(crossed(raw[5 + kind], kinds[kind]) for kind in range(2))
        total += (place * (2 - w * h) + classes) * float(weights[n])
    for (at, row, column), count in there.items():
        sure = float(x[image, at * 7 + 4, row, column])
        total += crossed(sure, 1.0) * count if count > 0 else crossed(sure, 0.0) * (count == 0)
    return total


def test_the_loss_of_a_yolo_map() -> None:
    from paddle import fluid

    chance = np.random.RandomState(3)
    x = chance.randn(2, 14, 4, 4).astype("float32")
    gts = np.concatenate([0.1 + chance.rand(2, 6, 2) * 0.8, chance.rand(2, 6, 2)], 2)
    gts[:, 4] = gts[:, 3]  # the last of two boxes at one place counts
    gts[:, 5, 2:] = 0.0
    gts, labels = gts.astype("float32"), chance.randint(0, 2, (2, 6)).astype("int32")
    weights = (0.2 + chance.rand(2, 6) * 0.8).astype("float32")
    arrays = (x, gts, labels, weights)
    given = [data(fluid, name, array) for name, array in zip("xglw", arrays, strict=True)]
    given[0].stop_gradient = False
    options: Any = {"gt_score": given[3], "scale_x_y": 1.1}
    loss = fluid.layers.yolov3_loss(*given[:3], ANCHORS, [1, 3], 2, 0.3, 8, **options)
    (slope,) = fluid.gradients(fluid.layers.reduce_sum(loss), given[0])
    found, moved = run(fluid, [loss, slope], x=x, g=gts, l=labels, w=weights)
    wanted = [yolo_error(x, gts[n], labels[n], weights[n], [1, 3], n) for n in range(2)]
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    other = x.astype("float64")
    other[0, 4, 1, 1] += 1e-3  # a number of being there
    change = yolo_error(other, gts[0], labels[0], weights[0], [1, 3], 0) - wanted[0]
    np.testing.assert_allclose(np.array(moved)[0, 4, 1, 1], change / 1e-3, rtol=1e-2, atol=1e-4)
