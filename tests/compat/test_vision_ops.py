"""``paddle.vision.ops`` on tensors and in programs, against loops over one box and one pixel."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.compat.test_detection import boxes, data, number_at, pooled, run, shared


def of_a_program(func: Any, **arrays: Any) -> list[Any]:
    """What a function of inputs like these arrays gives when it is recorded and run."""
    import paddle
    from paddle import fluid

    paddle.enable_static()
    found = func(*(data(fluid, name, array) for name, array in arrays.items()))
    return [np.array(value) for value in run(fluid, found, **arrays)]


def eager(func: Any, *arrays: Any) -> list[Any]:
    import paddle

    return [value.numpy() for value in func(*map(paddle.to_tensor, arrays))]


def surest(box: Any, score: Any, kinds: Any, allowed: list[int], most: float) -> list[int]:
    found: list[int] = []
    for n in sorted(range(len(box)), key=lambda n: -score[n]):
        near = [shared(box[n], box[m]) for m in found if kinds[m] == kinds[n]]
        if kinds[n] in allowed and all(part <= most for part in near):
            found.append(n)
    return found


def test_the_surest_of_boxes_that_overlap() -> None:
    from paddle.vision import ops

    chance, box = np.random.RandomState(0), boxes(1, 30)
    score, kinds = chance.rand(30).astype("float32"), chance.randint(0, 3, 30)

    def kept(box: Any, score: Any, kinds: Any) -> list[Any]:
        return [
            ops.nms(box, 0.3),
            ops.nms(box, 0.3, score),
            ops.nms(box, 0.2, score, kinds, [0, 2]),
            ops.nms(box, 0.2, score, kinds, [0, 1, 2], top_k=4),
        ]

    one = np.zeros(30, "int64")
    wanted = [
        surest(box, -np.arange(30), one, [0], 0.3),
        surest(box, score, one, [0], 0.3),
        surest(box, score, kinds, [0, 2], 0.2),
        surest(box, score, kinds, [0, 1, 2], 0.2)[:4],
    ]
    found = eager(kept, box, score, kinds)
    assert [one.tolist() for one in found] == wanted
    again = of_a_program(kept, box=box, score=score, kinds=kinds)
    assert [one.tolist() for one in again] == wanted
    with pytest.raises(ValueError, match="pass the list of their numbers"):
        eager(lambda b, s, k: [ops.nms(b, 0.3, s, k)], box, score, kinds)


def in_cells(image: Any, box: Any, samples: int) -> Any:
    """A box at half of its size, half a pixel before, in cells of [2, 3]."""
    left, top, right, bottom = (float(n) / 2 - 0.5 for n in box)
    wide, high = (right - left) / 3, (bottom - top) / 2
    down, across = (samples if samples > 0 else math.ceil(size) for size in (high, wide))
    found = torch.zeros(len(image), 2, 3)
    for row, column in np.ndindex(2, 3):
        for y, x in np.ndindex(down, across):
            at = top + row * high + (y + 0.5) * high / down
            near = left + column * wide + (x + 0.5) * wide / across
            found[:, row, column] += number_at(image, at, near) / (down * across)
    return found


@pytest.mark.parametrize("samples", [-1, 2])
def test_parts_of_maps_under_boxes(samples: int) -> None:
    import paddle
    from paddle.vision import ops

    image = np.random.RandomState(0).randn(2, 3, 9, 11).astype("float32")
    rois = np.concatenate([boxes(1, 4, 24.0), [[3, 3, 3.2, 3.1], [4, 4, 4, 9]]]).astype("float32")
    counts, owners = np.array([4, 2], "int32"), [0, 0, 0, 0, 1, 1]

    def parts(x: Any, box: Any, number: Any) -> list[Any]:
        return [
            ops.roi_align(x, box, number, (2, 3), 0.5, samples),
            ops.roi_align(x, box, number, (2, 3), 0.5, samples, aligned=False),
            ops.roi_pool(x, box, number, (2, 3), 0.5),
        ]

    found = eager(parts, image, rois, counts)
    pairs = [(torch.tensor(image[n]), box) for n, box in zip(owners, rois, strict=True)]
    wanted = torch.stack([in_cells(one, box, samples) for one, box in pairs])
    np.testing.assert_allclose(found[0], wanted, rtol=1e-3, atol=1e-5)
    assert not np.allclose(found[0], found[1], atol=1e-2)
    np.testing.assert_allclose(found[2], torch.stack([pooled(*pair) for pair in pairs]), rtol=1e-5)
    given = [paddle.to_tensor(array) for array in (image, rois, counts)]
    layers = ops.RoIAlign((2, 3), 0.5)(*given), ops.RoIPool((2, 3), 0.5)(*given)
    np.testing.assert_allclose(layers[1].numpy(), found[2])
    assert layers[0].shape == [6, 3, 2, 3]
    again = of_a_program(parts, x=image, box=rois, number=counts)
    for one, other in zip(again, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def pixel(image: Any, y: float, x: float) -> Any:
    """Between four pixels; those outside are zero."""
    top, left = math.floor(y), math.floor(x)
    found = torch.zeros(len(image), dtype=torch.float64)
    for row, column in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
        share = (1 - abs(y - row)) * (1 - abs(x - column))
        if 0 <= row < image.shape[1] and 0 <= column < image.shape[2]:
            found = found + share * image[:, row, column]
    return found


def moved(x: Any, offset: Any, weight: Any, mask: Any, *, parts: int, groups: int) -> Any:
    """A convolution with stride 2, padding 1 and dilation (1, 2), pixel by pixel."""
    count, channels = x.shape[:2]
    out, inner, down, across = weight.shape
    rows, columns = offset.shape[2:]
    found = torch.zeros(count, out, rows, columns, dtype=torch.float64)
    for n, row, column in np.ndindex(count, rows, columns):
        read = torch.zeros(channels, down, across, dtype=torch.float64)
        for part, i, j in np.ndindex(parts, down, across):
            at = part * down * across + i * across + j
            y = row * 2 - 1 + i + offset[n, 2 * at, row, column].item()
            x_at = column * 2 - 1 + 2 * j + offset[n, 2 * at + 1, row, column].item()
            own = slice(part * channels // parts, (part + 1) * channels // parts)
            read[own, i, j] = pixel(x[n, own], y, x_at) * mask[n, at, row, column]
        for o in range(out):
            begin = o * groups // out * inner
            found[n, o, row, column] = (read[begin : begin + inner] * weight[o]).sum()
    return found


def test_convolutions_that_read_elsewhere() -> None:
    import paddle
    from paddle.vision import ops

    chance = np.random.RandomState(0)
    x = chance.randn(2, 4, 6, 7).astype("float32")
    offset = (chance.randn(2, 2 * 2 * 9, 3, 3) * 1.5).astype("float32")
    mask = chance.rand(2, 2 * 9, 3, 3).astype("float32")
    weight, bias = chance.randn(6, 2, 3, 3).astype("float32"), chance.randn(6).astype("float32")
    options: Any = {"stride": 2, "padding": 1, "dilation": (1, 2), "groups": 2}
    options |= {"deformable_groups": 2}

    def made(x: Any, offset: Any, weight: Any, bias: Any, mask: Any) -> list[Any]:
        return [
            ops.deform_conv2d(x, offset, weight, bias, mask=mask, **options),
            ops.deform_conv2d(x, offset, weight, **options),
        ]

    arrays = x, offset, weight, bias, mask
    found = eager(made, *arrays)
    plain = [torch.tensor(a, dtype=torch.float64) for a in (x, offset, weight, mask)]
    wanted = moved(*plain, parts=2, groups=2) + torch.tensor(bias)[:, None, None]
    np.testing.assert_allclose(found[0], wanted, rtol=1e-3, atol=1e-4)
    plain[3] = torch.ones_like(plain[3])
    np.testing.assert_allclose(found[1], moved(*plain, parts=2, groups=2), rtol=1e-3, atol=1e-4)
    layer = ops.DeformConv2D(4, 6, 3, **options)
    layer.weight.set_value(weight)
    layer.bias.set_value(bias)
    given = [paddle.to_tensor(array) for array in (x, offset, mask)]
    given[1].stop_gradient = False
    done = layer(*given)
    np.testing.assert_allclose(done.numpy(), found[0], rtol=1e-5, atol=1e-6)
    done.sum().backward()
    assert list(layer.weight.grad.shape) == [6, 2, 3, 3]
    assert bool((given[1].grad != 0).any())


def test_programs_have_convolutions_that_read_elsewhere() -> None:
    import paddle
    from paddle import fluid
    from paddle.vision import ops

    paddle.enable_static()
    chance = np.random.RandomState(0)
    x, offset = chance.randn(2, 4, 5, 5), chance.randn(2, 18, 5, 5)
    arrays = {"x": x.astype("float32"), "offset": offset.astype("float32")}
    given = [data(fluid, name, array) for name, array in arrays.items()]
    given[1].stop_gradient = False
    layer = ops.DeformConv2D(4, 3, 3, padding=1)
    out = layer(*given)
    slopes = fluid.gradients(paddle.sum(out * out), [given[1]])
    names = layer.weight.name, layer.bias.name
    shared_by: Any = {"param_attr": names[0], "bias_attr": names[1], "modulated": False}
    same = fluid.layers.deformable_conv(*given, None, 3, 3, padding=1, **shared_by)
    third = paddle.static.nn.deform_conv2d(
        *given, None, 3, 3, padding=1, weight_attr=names[0], bias_attr=names[1]
    )
    fetches = [out, *slopes, same, third, *names]
    found, slope, other, last, weight, bias = map(np.array, run(fluid, fetches, **arrays))
    np.testing.assert_allclose(last, found, rtol=1e-5)
    np.testing.assert_allclose(other, found, rtol=1e-5)
    paddle.disable_static()
    tensors = [paddle.to_tensor(a) for a in (*arrays.values(), weight, bias)]
    tensors[1].stop_gradient = False
    again = ops.deform_conv2d(*tensors, padding=1)
    (again * again).sum().backward()
    np.testing.assert_allclose(found, again.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(slope, tensors[1].grad.numpy(), rtol=1e-3, atol=1e-4)


def test_boxes_and_maps_are_those_of_fluid() -> None:
    import paddle
    from paddle import fluid
    from paddle.vision import ops

    chance, anchors = np.random.RandomState(0), [10, 14, 23, 27]
    x = chance.randn(2, 14, 3, 3).astype("float32")
    sizes = np.array([[40, 50], [30, 20]], "int32")
    true = (0.2 + 0.5 * chance.rand(2, 3, 4)).astype("float32")
    labels = chance.randint(0, 2, (2, 3)).astype("int32")
    prior, target = boxes(2, 5), boxes(3, 4)
    image = np.zeros((2, 3, 30, 30), "float32")
    scale = [0.1, 0.1, 0.2, 0.2]

    def new(x: Any, sizes: Any, true: Any, labels: Any, *rest: Any) -> list[Any]:
        prior, target, image = rest
        return [
            *ops.yolo_box(x, sizes, anchors, 2, 0.3, 8),
            ops.yolo_loss(x, true, labels, anchors, [0, 1], 2, 0.5, 8),
            *ops.prior_box(x, image, [8.0], [16.0], [2.0], flip=True),
            ops.box_coder(prior, scale, target),
        ]

    def old(x: Any, sizes: Any, true: Any, labels: Any, *rest: Any) -> list[Any]:
        prior, target, image = rest
        layers = fluid.layers
        return [
            *layers.yolo_box(x, sizes, anchors, 2, 0.3, 8),
            layers.yolov3_loss(x, true, labels, anchors, [0, 1], 2, 0.5, 8),
            *layers.prior_box(x, image, [8.0], [16.0], [2.0], flip=True),
            layers.box_coder(prior, scale, target),
        ]

    arrays = {"x": x, "sizes": sizes, "true": true, "labels": labels}
    arrays |= {"prior": prior, "target": target, "image": image}
    found = eager(new, *arrays.values())
    wanted = of_a_program(old, **arrays)
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        again = of_a_program(new, **arrays)
    for one, other, third in zip(found, wanted, again, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(third, other, rtol=1e-5, atol=1e-6)
    paddle.disable_static()
    with pytest.raises(NotImplementedError, match="iou_aware"):
        ops.yolo_box(*map(paddle.to_tensor, (x, sizes)), anchors, 2, 0.3, 8, iou_aware=True)
