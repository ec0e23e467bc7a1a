"""Layers of detectors that look once, against loops over one box and one number at a time."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.compat.test_detection import boxes, coded, data, run, shared


def records(fluid: Any, array: Any, lengths: Sequence[int]) -> Any:
    return fluid.create_lod_tensor(array, [list(lengths)], fluid.CPUPlace())


def ragged(fluid: Any, name: str, array: Any) -> Any:
    """An input of records like the rows of an array."""
    return fluid.data(name, [None, *array.shape[1:]], str(array.dtype), lod_level=1)


def pairs(near: Any, rest: bool, least: float) -> tuple[list[int], list[float]]:
    """The row of each column of one record, pair by pair."""
    columns = near.shape[1]
    found, how, rows = [-1] * columns, [0.0] * columns, list(range(len(near)))
    while rows:
        free = [(near[i, j], j, i) for j in range(columns) if found[j] < 0 for i in rows]
        best = max((pair for pair in free if pair[0] >= 1e-6), key=lambda p: p[0], default=None)
        if best is None:
            break
        how[best[1]], found[best[1]] = float(best[0]), best[2]
        rows.remove(best[2])
    for j in range(columns if rest else 0):
        good = [i for i in range(len(near)) if near[i, j] >= max(least, 1e-6)]
        if found[j] < 0 and good:
            found[j] = max(good, key=lambda i: near[i, j])
            how[j] = float(near[found[j], j])
    return found, how


@pytest.mark.parametrize("kind", [None, "per_prediction"])
def test_rows_and_columns_that_are_near_are_matched(kind: str | None) -> None:
    from paddle import fluid

    chance, lengths = np.random.RandomState(0), [3, 0, 6, 1]
    near = np.round(chance.rand(10, 5), 1).astype("float32")  # many are equal
    near[:, 4] = [1e-7, *[0.0] * 9]
    given = ragged(fluid, "near", near)
    made = fluid.layers.bipartite_match(given, kind, 0.35)
    found, how = run(fluid, made, near=records(fluid, near, lengths))
    ends = np.cumsum(lengths)
    parts = [near[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    wanted = [pairs(part, kind is not None, 0.35) for part in parts]
    assert np.array(found).tolist() == [row for row, _ in wanted]
    np.testing.assert_allclose(how, [numbers for _, numbers in wanted], rtol=1e-6)
    assert np.array(found).dtype == np.int32


def test_one_record_of_many_rows_is_matched() -> None:
    from paddle import fluid

    near = np.random.RandomState(1).permutation(150 * 6).reshape(150, 6).astype("float32")
    near[0, :3] = near.max() + 1.0  # equal: the first row, and the first column
    near[1, :3] = near[0, 0]
    near /= near.max() * 2e6  # all count, for there are many rows
    small = data(fluid, "small", near[:129])
    whole = data(fluid, "x", near)
    made = [fluid.layers.bipartite_match(given)[0] for given in (whole, small)]
    found, none = run(fluid, made, x=near, small=near[:129])
    assert np.array(found).shape == (1, 6)
    assert np.array(found)[0, :2].tolist() == [0, 1]
    left, rows = near[2:, 2:].copy(), [0, 1, *[-1] * 4]
    for _ in range(4):
        row, column = np.unravel_index(left.argmax(), left.shape)
        rows[column + 2] = int(row) + 2
        left[row], left[:, column] = -1, -1
    assert np.array(found)[0].tolist() == rows
    assert np.array(none).tolist() == [[-1] * 6]
    with pytest.raises(ValueError, match="'bipartite' or 'per_prediction'"):
        fluid.layers.bipartite_match(small, "nearest")


def test_columns_take_what_their_rows_have() -> None:
    from paddle import fluid

    rows = np.arange(2 * 4 * 3, dtype="float32").reshape(4, 2, 3)
    found = np.array([[1, -1, 0, -1], [-1, -1, -1, 0]], "int32")
    none = np.array([[3], [0], [2]], "int32")
    given = ragged(fluid, "rows", rows), data(fluid, "found", found), ragged(fluid, "none", none)
    plain = fluid.layers.target_assign(*given[:2])
    other = fluid.layers.target_assign(*given[:2], negative_indices=given[2], mismatch_value=7)
    fed = {"rows": records(fluid, rows, [3, 1]), "none": records(fluid, none, [1, 2])}
    results = run(fluid, [*plain, *other], found=found, **fed)
    one, weights, two, more = (np.array(result) for result in results)
    wanted, counts = np.zeros((2, 4, 3)), np.zeros((2, 4, 1))
    for image, begin in enumerate([0, 3]):
        for column in range(4):
            if found[image, column] >= 0:  # numbers of their own for columns of either parity
                wanted[image, column] = rows[begin + found[image, column], column % 2]
                counts[image, column] = 1
    np.testing.assert_array_equal(one, wanted)
    np.testing.assert_array_equal(weights, counts)
    for image, column in ((0, 3), (1, 0), (1, 2)):
        counts[image, column] = 1
    wanted[found < 0] = 7
    np.testing.assert_array_equal(two, wanted)
    np.testing.assert_array_equal(more, counts)


def minus_log(scores: Any, kind: int) -> float:
    return math.log(sum(math.exp(s) for s in scores)) - float(scores[kind])


def wrong_place(found: Any, wanted: Sequence[float]) -> float:
    apart = [abs(float(one) - float(other)) for one, other in zip(found, wanted, strict=True)]
    return sum(0.5 * d * d if d < 1 else d - 0.5 for d in apart)


SCALE = [0.1, 0.1, 0.2, 0.2]


def loss_of_image(  # noqa: PLR0917
    place: Any, scores: Any, true: Any, labels: Any, priors: Any, rest: bool
) -> tuple[float, int]:
    """The error of one image, and how many prior boxes have a true one."""
    near = np.array([[shared(one, prior) for prior in priors] for one in true])
    found = pairs(near.reshape(len(true), len(priors)), rest, 0.4)[0]
    kinds = [int(labels[row]) if row >= 0 else 0 for row in found]
    wrong = [minus_log(scores[at], kind) for at, kind in enumerate(kinds)]
    free = [at for at, row in enumerate(found) if row < 0]
    matched = len(priors) - len(free)
    worst = sorted(free, key=lambda at: -wrong[at])[: int(matched * 1.5)]
    total = 3.0 * sum(wrong[at] for at in range(len(priors)) if found[at] >= 0 or at in worst)
    for at, row in enumerate(found):
        if row >= 0:
            total += 2.0 * wrong_place(place[at], coded(priors[at], SCALE, true[row], 0.0))
    return total, matched


@pytest.mark.parametrize(
    ("kind", "normalize"),
    [("per_prediction", True), ("per_prediction", False), ("bipartite", True)],
)
def test_the_loss_of_prior_boxes(kind: str, normalize: bool) -> None:
    from paddle import fluid

    chance, lengths = np.random.RandomState(5), [3, 0, 2]
    priors, true = boxes(8, 12), boxes(9, 5)
    place, scores = (chance.randn(3, 12, n).astype("float32") for n in (4, 4))
    labels = np.array([[1], [3], [2], [2], [1]], "int32")
    arrays = {"place": place, "scores": scores, "priors": priors}
    given = {name: data(fluid, name, array) for name, array in arrays.items()}
    given["place"].stop_gradient = given["scores"].stop_gradient = False
    records_of = ragged(fluid, "true", true), ragged(fluid, "labels", labels)
    names = given["place"], given["scores"], *records_of, given["priors"]
    options: Any = {"overlap_threshold": 0.4, "neg_pos_ratio": 1.5, "normalize": normalize}
    options |= {"loc_loss_weight": 2.0, "conf_loss_weight": 3.0, "match_type": kind}
    loss = fluid.layers.ssd_loss(*names, SCALE, **options)
    total = fluid.layers.reduce_sum(loss)
    slopes = fluid.gradients(total, [given["place"], given["scores"]])
    fed = {"true": records(fluid, true, lengths), "labels": records(fluid, labels, lengths)}
    found, *moved = run(fluid, [loss, *slopes], **arrays, **fed)

    def parts(begin: int, end: int) -> tuple[Any, Any]:
        return true[begin:end], labels[begin:end, 0]

    def by_hand(place: Any, scores: Any) -> list[float]:
        ends, rest = np.cumsum(lengths), kind == "per_prediction"
        images = [
            loss_of_image(place[n], scores[n], *parts(end - k, end), priors, rest)
            for n, (end, k) in enumerate(zip(ends, lengths, strict=True))
        ]
        count = sum(matched for _, matched in images) if normalize else 1
        assert images[0][1] > 3 or kind == "bipartite"  # some are matched beyond the nearest
        return [wrong / count for wrong, _ in images]

    wanted = by_hand(place, scores)
    assert np.array(found).shape == (3, 1)
    np.testing.assert_allclose(np.array(found)[:, 0], wanted, rtol=1e-4)
    for number, (array, slope) in enumerate(zip((place, scores), moved, strict=True)):
        flat = np.array(slope).reshape(-1)
        for at in np.argsort(-np.abs(flat))[[0, 7, -1]]:
            shifted = [place.astype("float64"), scores.astype("float64")]
            shifted[number].reshape(-1)[at] += 1e-4
            change = (sum(by_hand(*shifted)) - sum(by_hand(place, scores))) / 1e-4
            assert float(flat[at]) == pytest.approx(change, rel=1e-2, abs=1e-3)
        assert np.array(slope).shape == array.shape


def test_what_the_loss_cannot_take_is_said() -> None:
    from paddle import fluid

    x = fluid.data("x", [None, 3, 4], "float32")
    box = fluid.data("box", [None, 4], "float32")
    label = fluid.data("label", [None, 1], "int64", lod_level=1)
    with pytest.raises(ValueError, match="max_negative"):
        fluid.layers.ssd_loss(x, x, box, label, box, mining_type="hard_example")
    with pytest.raises(ValueError, match="lod_level=1"):
        fluid.layers.ssd_loss(x, x, box, label, box)
    with pytest.raises(ValueError, match="set min_sizes and max_sizes"):
        fluid.layers.multi_box_head([x], x, 100, 3, [[2.0]], 20, 90)
    with pytest.raises(ValueError, match="3 maps"):
        fluid.layers.multi_box_head([x] * 3, x, 100, 3, [[2.0]], 20, 90)


def test_heads_of_several_maps() -> None:
    from paddle import fluid

    chance = np.random.RandomState(0)
    image = np.zeros((2, 3, 100, 100), "float32")
    maps = [chance.randn(2, 5, size, size).astype("float32") for size in (4, 2, 1)]
    given = [data(fluid, f"map{n}", array) for n, array in enumerate(maps)]
    x, ratios = data(fluid, "image", image), [[2.0], [2.0, 3.0], [2.0]]
    options: Any = {"min_ratio": 20, "max_ratio": 90, "clip": True}
    made = fluid.layers.multi_box_head(given, x, 100, 3, ratios, **options)
    sizes = [(10.0, 20.0), (20.0, 90.0), (90.0, 160.0)]
    alone = [
        fluid.layers.prior_box(one, x, [low], [high], ratio, flip=True, clip=True)
        for one, (low, high), ratio in zip(given, sizes, ratios, strict=True)
    ]
    weights = [f"conv2d_{n}.{kind}_0" for n in range(6) for kind in "wb"]
    fed = {f"map{n}": array for n, array in enumerate(maps)}
    fetches = [*made, *(part for pair in alone for part in pair), *weights]
    found = [np.array(value) for value in run(fluid, fetches, image=image, **fed)]
    place, score, prior, spread = found[:4]
    count = 16 * 4 + 4 * 6 + 4
    assert [list(part.shape) for part in found[:4]] == [
        *([2, count, 4], [2, count, 3]),
        *([count, 4], [count, 4]),
    ]
    np.testing.assert_array_equal(prior, np.concatenate([p.reshape(-1, 4) for p in found[4:10:2]]))
    np.testing.assert_array_equal(spread, np.concatenate([p.reshape(-1, 4) for p in found[5:10:2]]))
    kept = found[10:]
    for number, (part, last) in enumerate(((place, 4), (score, 3))):
        rows = []
        for at, array in enumerate(maps):
            weight, bias = kept[2 * (2 * at + number)], kept[2 * (2 * at + number) + 1]
            numbers = np.einsum("nchw,oc->nhwo", array, weight[:, :, 0, 0]) + bias
            rows.append(numbers.reshape(2, -1, last))
        np.testing.assert_allclose(part, np.concatenate(rows, 1), rtol=1e-4, atol=1e-5)


def test_what_a_detector_finds() -> None:
    from paddle import fluid

    chance, priors = np.random.RandomState(2), boxes(3, 20)
    place = (chance.randn(2, 20, 4) * 0.5).astype("float32")
    scores = (chance.randn(2, 20, 3) * 2).astype("float32")
    spread = np.tile(np.array(SCALE, "float32"), (20, 1))
    arrays = {"place": place, "scores": scores, "priors": priors, "spread": spread}
    given = [data(fluid, name, array) for name, array in arrays.items()]
    options: Any = {"nms_threshold": 0.4, "keep_top_k": 7, "score_threshold": 0.1}
    rows, numbers = fluid.layers.detection_output(*given, return_index=True, **options)
    same = fluid.layers.detection_output(*given, **options)
    none = fluid.layers.detection_output(*given, return_index=True, score_threshold=2.0)
    middle, size = (priors[:, :2] + priors[:, 2:]) / 2, priors[:, 2:] - priors[:, :2]
    at = place[..., :2] * 0.1 * size + middle
    half = np.exp(place[..., 2:] * 0.2) * size / 2
    found = np.concatenate([at - half, at + half], 2).astype("float32")
    sure = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    sure = np.ascontiguousarray(sure.transpose(0, 2, 1))
    by_hand = data(fluid, "found", found), data(fluid, "sure", sure)
    plain = fluid.layers.multiclass_nms(*by_hand, 0.1, 400, 7, 0.4)
    fetches = [rows, numbers, same, plain, *none]
    results = run(fluid, fetches, found=found, sure=sure, **arrays)
    first, index, again, wanted, nothing, nowhere = (np.array(value) for value in results)
    np.testing.assert_allclose(first, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(again, first)
    assert results[0].recursive_sequence_lengths() == results[3].recursive_sequence_lengths()
    assert len(first) == 14
    picked = found.reshape(-1, 4)[index[:, 0]]
    np.testing.assert_allclose(picked, first[:, 2:], rtol=1e-4, atol=1e-5)
    assert nothing.shape == (0, 6)
    assert nowhere.shape == (0, 1)
