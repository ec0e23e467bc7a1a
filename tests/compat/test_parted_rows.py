"""``IfElse``, and classes that are drawn by a script's own probabilities, against numpy."""

from typing import Any

import numpy as np
import pytest


def run(fluid: Any, fetches: list[Any], **feed: Any) -> list[Any]:
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    found: list[Any] = exe.run(feed=feed, fetch_list=fetches)
    return found


def parted(fluid: Any) -> tuple[Any, list[Any], Any]:
    """Rows below a limit go through a layer, the others are multiplied."""
    x = fluid.data("x", [None, 3], "float32")
    x.stop_gradient = False
    label = fluid.data("label", [None, 1], "int64")
    cond = fluid.layers.less_than(label, fluid.layers.fill_constant([1], "int64", 5))
    ie = fluid.layers.IfElse(cond)
    first = fluid.initializer.Constant(0.5)
    with ie.true_block():
        inside = ie.input(x)
        hidden = fluid.layers.fc(inside, 2, param_attr=fluid.ParamAttr("w", initializer=first))
        ie.output(hidden + fluid.layers.reduce_sum(ie.input(x), dim=1, keep_dim=True), inside)
    with ie.false_block():
        inside = ie.input(x)
        ie.output(fluid.layers.slice(inside, [1], [0], [2]) * 3.0, inside * 2.0)
    return x, ie(), ie


def test_rows_go_two_ways_and_come_back_in_order() -> None:
    from paddle import fluid

    x, (one, other), _ = parted(fluid)
    joined = fluid.layers.mean(fluid.layers.concat([one, other, x], axis=1))
    (slope,) = fluid.gradients(fluid.layers.reduce_sum(one * one), x)
    rows = np.random.RandomState(0).randn(6, 3).astype("float32")
    for labels in ([7, 1, 3, 9, 4, 5], [0] * 6, [9] * 6):
        fed = {"x": rows, "label": np.array(labels, "int64")[:, None]}
        found = run(fluid, [one, other, slope, joined], **fed)
        below = np.array(labels)[:, None] < 5
        total = rows.sum(1, keepdims=True)
        wanted = np.where(below, np.repeat(total * 1.5, 2, 1), rows[:, :2] * 3)
        np.testing.assert_allclose(found[0], wanted, rtol=1e-5)
        np.testing.assert_allclose(found[1], np.where(below, rows, rows * 2), rtol=1e-6)
        # by x: twice 2 * 1.5 * total for each row below, and 2 * 9 * x for the first two numbers
        away = np.concatenate([18 * rows[:, :2], np.zeros((6, 1), "float32")], 1)
        np.testing.assert_allclose(found[2], np.where(below, 9 * total, away), rtol=1e-4)
        whole = np.concatenate([wanted, np.where(below, rows, rows * 2), rows], 1)
        np.testing.assert_allclose(np.ravel(found[3]), [whole.mean()], rtol=1e-4)


def test_blocks_that_do_not_fit_say_so() -> None:
    from paddle import fluid

    x = fluid.data("x", [None, 3], "float32")
    with pytest.raises(TypeError, match="takes a variable of bool"):
        fluid.layers.IfElse(x)
    ie = fluid.layers.IfElse(fluid.layers.less_than(x, x * 2.0)[:, :1])
    with pytest.raises(ValueError, match="outside of its blocks"):
        ie.input(x)
    with pytest.raises(ValueError, match="has no output"):
        ie()
    with ie.true_block():
        ie.output(ie.input(x), ie.input(x))
        with pytest.raises(ValueError, match="called behind its blocks"):
            ie()
    assert len(ie()) == 2
    with ie.false_block():
        ie.output(ie.input(x))
    with pytest.raises(ValueError, match="give 2 and 1 variables"):
        ie()
    words = fluid.data("words", [None, 1], "int64", lod_level=1)
    ie = fluid.layers.IfElse(fluid.layers.less_than(x, x * 2.0)[:, :1])
    with pytest.raises(ValueError, match="rows are parted here"), ie.true_block():
        ie.input(words)


def drawn(fluid: Any, chances: Any, samples: int) -> Any:
    """The loss of 400 examples of class 0, whose scores are 0, 1, 2 and 3."""
    x = fluid.data("x", [None, 1], "float32")
    label = fluid.data("label", [None, 1], "int64")
    scores = fluid.initializer.NumpyArrayInitializer(np.arange(4, dtype="float32")[:, None])
    loss = fluid.layers.nce(
        *(x, label, 4),
        param_attr=fluid.ParamAttr(initializer=scores),
        bias_attr=False,
        num_neg_samples=samples,
        sampler="custom_dist",
        custom_dist=chances,
    )
    return run(fluid, [loss], x=np.ones((400, 1), "float32"), label=np.zeros((400, 1), "int64"))[0]


def test_classes_are_drawn_by_given_probabilities() -> None:
    from paddle import fluid

    given = 1 / (1 + np.exp(-np.arange(4)))
    chances = [0.25, 0.0, 0.25, 0.5]
    found = np.ravel(drawn(fluid, chances, 1))
    own = -np.log(given[0] / (given[0] + 0.25))
    by_class = {n: own - np.log(p / (given[n] + p)) for n, p in enumerate(chances) if p}
    nearest = {n: np.isclose(found, loss, rtol=1e-4) for n, loss in by_class.items()}
    assert sum(hits.sum() for hits in nearest.values()) == 400
    for number, hits in nearest.items():
        # four deviations of 400 draws
        room = 4 * np.sqrt(chances[number] * (1 - chances[number]) / 400)
        assert abs(hits.mean() - chances[number]) < room


def test_probabilities_that_are_none_are_refused() -> None:
    from paddle import fluid

    with pytest.raises(ValueError, match="4 classes"):
        drawn(fluid, [0.5, 0.5], 1)
    with pytest.raises(ValueError, match="whose sum is 2"):
        drawn(fluid, [0.5] * 4, 1)
    with pytest.raises(ValueError, match="set both, or neither"):
        drawn(fluid, None, 1)
