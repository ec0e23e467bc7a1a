"""``fluid.metrics`` against counting by hand."""

import numpy as np
import pytest


def test_accuracy_is_weighed_by_samples() -> None:
    from paddle import fluid

    metric = fluid.metrics.Accuracy()
    with pytest.raises(ValueError, match="before any update"):
        metric.eval()
    metric.update(value=np.array([0.5], "float32"), weight=10)
    metric.update(value=1.0, weight=np.array([30.0]))
    assert metric.eval() == pytest.approx((5 + 30) / 40)
    assert (metric.value, metric.weight) == (35.0, 40.0)
    metric.reset()
    assert metric.weight == 0


def test_precision_recall_and_auc_count_right() -> None:
    from paddle import fluid

    both = fluid.metrics.CompositeMetric()
    both.add_metric(fluid.metrics.Precision())
    both.add_metric(fluid.metrics.Recall())
    both.update(np.array([0.9, 0.8, 0.2, 0.7]), np.array([[1], [0], [1], [1]]))
    assert both.eval() == [2 / 3, 2 / 3]
    auc = fluid.metrics.Auc(name="auc")
    chances = np.array([0.1, 0.4, 0.35, 0.8])
    auc.update(np.stack([1 - chances, chances], 1), np.array([[0], [0], [1], [1]]))
    assert auc.eval() == pytest.approx(0.75)
    assert str(auc) == "auc"


def test_distances_of_texts() -> None:
    from paddle import fluid

    metric = fluid.metrics.EditDistance("distance")
    with pytest.raises(ValueError, match="before update"):
        metric.eval()
    metric.update(np.array([[2.0], [0.0]]), 2)
    metric.update(np.array([[1.0], [3.0]]), np.array([2]))
    assert metric.eval() == (1.5, 0.75)
    metric.reset()
    assert metric.seq_num == 0


def test_labels_that_count_clicks_are_positive() -> None:
    import paddle
    from paddle import fluid

    scores = np.array([0.125, 0.375, 0.625, 0.875])
    both, clicks = np.stack([1 - scores, scores], 1).astype("float32"), np.array([0, 2, 0, 3])
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.layers.data("x", [2])
        area = fluid.layers.auc(x, fluid.layers.data("y", [1], dtype="int64"))[0]
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        feed = {"x": both, "y": clicks[:, None]}
        assert exe.run(feed=feed, fetch_list=[area])[0].item() == pytest.approx(0.75)
        feed = {"x": both[:3], "y": np.full((3, 1), -1)}  # without a label
        assert exe.run(feed=feed, fetch_list=[area])[0].item() == pytest.approx(0.75)
    eager = paddle.metric.Auc()
    eager.update(both, clicks[:, None])
    assert eager.accumulate() == pytest.approx(0.75)
