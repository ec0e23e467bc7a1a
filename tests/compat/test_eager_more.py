"""Names of eager scripts that few use: numbers by formulas, or as Paddle 2.6.2 gave them."""

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetx.compat.segments import segments


@pytest.fixture
def paddle(paddle_is_here: None) -> Any:
    return importlib.import_module("paddle")


@pytest.mark.parametrize(
    ("count", "method", "bounds"),
    [
        (2, "uniform", [0, 2, 5]),
        (3, "uniform", [0, 1, 3, 5]),
        (2, "layer:int", [0, 2, 5]),
        (2, [0, 4], [0, 4, 5]),
        (2, [4], [0, 4, 5]),
    ],
)
def test_where_a_pipeline_is_cut(count: int, method: Any, bounds: list[int]) -> None:
    assert segments(["a", 1, "b", 2, "c"], count, method) == bounds


@pytest.mark.parametrize("method", ["evenly", "layer:float", [0, 1, 2], [3, 3]])
def test_a_cut_that_cannot_be(method: Any) -> None:
    with pytest.raises(ValueError, match="seg_method"):
        segments(["a", 1, "b", 2], 2, method)


def test_more_stages_than_layers() -> None:
    with pytest.raises(ValueError, match="2 layers for 3 stages"):
        segments([1, 2], 3)


# Expression over x = [[-1.5, 0.5, 2.5], [nan-free rows]] -> what Paddle 2.6.2 answers.
X = [[-1.5, 0.5, 2.5], [4.0, -0.5, 1.0]]
CASES: list[tuple[str, Any]] = [
    ("paddle.round(x)", [[-2.0, 1.0, 3.0], [4.0, -1.0, 1.0]]),
    ("x.atanh().isnan().sum()", [3]),
    ("paddle.frac(x)", [[-0.5, 0.5, 0.5], [0.0, -0.5, 0.0]]),
    ("paddle.diagonal(x)", [-1.5, -0.5]),
    ("paddle.diag_embed(x).shape", [2, 3, 3]),
    ("x.quantile(0.5, axis=1)", [0.5, 1.0]),
    ("paddle.nanmedian(x)", [0.75]),
    ("x.cummax(axis=1)[0]", [[-1.5, 0.5, 2.5], [4.0, 4.0, 4.0]]),
    (
        "paddle.logcumsumexp(x, axis=0)[1]",
        [math.log(math.exp(v) + math.exp(w)) for v, w in zip(*X, strict=True)],
    ),
    ("paddle.index_add(x, paddle.to_tensor([0]), 0, paddle.ones([1, 3]))[0]", [-0.5, 1.5, 3.5]),
    ("paddle.rot90(x)", [[2.5, 1.0], [0.5, -0.5], [-1.5, 4.0]]),
    ("paddle.tril_indices(2, 2, 0)", [[0, 1, 1], [0, 0, 1]]),
    ("paddle.take(x, paddle.to_tensor([0, -1]))", [-1.5, 1.0]),
    ("paddle.linalg.det(paddle.to_tensor([[2.0, 1.0], [1.0, 3.0]]))", [5.0]),
    (
        "paddle.linalg.solve(paddle.diag(paddle.to_tensor([2.0, 4.0])), paddle.full([2, 1], 2.0))",
        [[1.0], [0.5]],
    ),
    ("paddle.fft.rfft(x[0]).abs()", [1.5, math.sqrt(12.0)]),
    ("F.hardshrink(x)", [[-1.5, 0.0, 2.5], [4.0, 0.0, 1.0]]),
    ("F.thresholded_relu(x)", [[0.0, 0.0, 2.5], [4.0, 0.0, 0.0]]),
    ("F.maxout(x.reshape([1, 6, 1, 1]), 3).flatten()", [2.5, 4.0]),
    ("paddle.nn.PairwiseDistance()(x[:1], x[1:])", [math.dist([*X[0]], [*X[1]])]),
    ("F.triplet_margin_loss(x[:1], x[:1], x[1:])", [0.0]),
    (
        "paddle.cross(paddle.eye(3, 2), paddle.ones([3, 2]))",
        [[0.0, 1.0], [-1.0, 0.0], [1.0, -1.0]],
    ),
    (
        "paddle.nn.PixelUnshuffle(2)(paddle.arange(16, dtype='float32').reshape([1, 1, 4, 4])).shape",  # noqa: E501
        [1, 4, 2, 2],
    ),
    ("paddle.to_tensor([1 + 2j]).imag()", [2.0]),
    ("paddle.tensordot(x, x, [[0, 1], [0, 1]])", [6.25 * 2 + 16 - 6.25 + 2.25 + 0.25 + 0.25 + 1]),
]


@pytest.mark.parametrize(("expression", "wanted"), CASES, ids=[case[0][:40] for case in CASES])
def test_names_with_numbers(paddle: Any, expression: str, wanted: Any) -> None:
    known = {"paddle": paddle, "F": paddle.nn.functional, "x": paddle.to_tensor(X)}
    found = eval(expression, known)
    found = found.numpy() if hasattr(found, "numpy") else list(found)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_in_place(paddle: Any) -> None:
    x = paddle.to_tensor([1.0, 4.0])
    x.sqrt_()
    x.unsqueeze_(0)
    assert x.numpy().tolist() == [[1.0, 2.0]]
    w = paddle.to_tensor([1.0, 2.0], stop_gradient=False)
    y = w * 2
    y.exp_()
    y.sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), 2 * np.exp([2.0, 4.0]), rtol=1e-5)


def test_whole_numbers_have_no_gradient(paddle: Any) -> None:
    ids = paddle.to_tensor([1, 2], stop_gradient=False)
    ids.stop_gradient = False
    assert ids.stop_gradient


def test_a_layer_of_its_own_names_outputs_without_gradients(paddle: Any) -> None:
    class Sorted(paddle.autograd.PyLayer):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            order = paddle.argsort(x)
            ctx.save_for_backward(order)
            ctx.mark_non_differentiable(order)
            ctx.set_materialize_grads(False)
            return paddle.sort(x), order

        @staticmethod
        def backward(ctx: Any, grad: Any, none: Any) -> Any:
            assert none is None
            (order,) = ctx.saved_tensor()
            return paddle.scatter(paddle.zeros_like(grad), order, grad)

    x = paddle.to_tensor([3.0, 1.0, 2.0], stop_gradient=False)
    values, order = Sorted.apply(x)
    assert order.stop_gradient
    (values * paddle.to_tensor([1.0, 2.0, 3.0])).sum().backward()
    assert x.grad.numpy().tolist() == [3.0, 1.0, 2.0]


def test_soft_labels_are_seen_by_their_shape(paddle: Any) -> None:
    logits = paddle.to_tensor([[1.0, 2.0], [0.5, 0.1]])
    hard = paddle.to_tensor([1, 0])
    soft = paddle.nn.functional.one_hot(hard, 2)
    losses = [
        float(paddle.nn.functional.cross_entropy(logits, label, label_smoothing=0.2))
        for label in (hard, soft)
    ]
    assert losses[0] == pytest.approx(losses[1])


def test_the_lists_and_levels_of_auto_cast(paddle: Any) -> None:
    layer, x = paddle.nn.Linear(4, 4), paddle.randn([2, 4])
    soft = paddle.nn.functional.softmax
    with paddle.amp.auto_cast(dtype="bfloat16", custom_black_list=["linear", "matmul"]):
        assert layer(x).dtype == paddle.float32
    with paddle.amp.auto_cast(dtype="bfloat16", custom_white_list=["softmax", "no_such_operator"]):
        assert soft(x).dtype == paddle.bfloat16
    with paddle.amp.auto_cast(dtype="bfloat16", level="O2"):
        made = layer(x)
        assert made.dtype == paddle.bfloat16
        loss = paddle.mean(made)
        assert loss.dtype == paddle.float32
    loss.backward()
    assert layer.weight.dtype == layer.weight.grad.dtype == paddle.float32
    with (
        pytest.raises(ValueError, match="keep it in one"),
        paddle.amp.auto_cast(
            dtype="bfloat16", custom_white_list=["exp"], custom_black_list=["exp"]
        ),
    ):
        pass


def test_a_traced_layer_is_called_and_saved(tmp_path: Path) -> None:
    import paddle
    from paddle import fluid

    with fluid.dygraph.guard():
        layer = fluid.dygraph.Linear(4, 2, act="relu")
        batch = fluid.dygraph.to_variable(np.random.rand(3, 4).astype("float32"))
        wanted, traced = fluid.dygraph.TracedLayer.trace(layer, inputs=[batch])
        assert np.allclose(traced([batch])[0].numpy(), wanted.numpy())
        traced.save_inference_model(str(tmp_path / "traced"), feed=[0], fetch=[0])
    paddle.enable_static()
    exe = fluid.Executor(fluid.CPUPlace())
    program, feeds, fetches = fluid.io.load_inference_model(str(tmp_path / "traced"), exe)
    one = batch.numpy()[:1]
    (found,) = exe.run(program, feed={feeds[0]: one}, fetch_list=fetches)
    assert np.allclose(found, wanted.numpy()[:1])


def test_limits_of_gradients_as_eager_mode_first_had_them() -> None:
    from paddle import fluid
    from paddle.fluid.dygraph_grad_clip import GradClipByGlobalNorm, GradClipByValue

    with fluid.dygraph.guard():
        layer = fluid.dygraph.Linear(2, 1, bias_attr=False)
        batch = fluid.dygraph.to_variable(np.array([[3.0, 4.0]], "float32"))
        for clip, wanted in ((GradClipByGlobalNorm(0.5), [0.3, 0.4]), (GradClipByValue(0.2), 0.2)):
            before = layer.weight.numpy().ravel().copy()
            optimizer = fluid.optimizer.SGD(1.0, parameter_list=layer.parameters())
            loss = fluid.layers.reduce_sum(layer(batch))
            loss.backward()
            optimizer.minimize(loss, grad_clip=clip)
            layer.clear_gradients()
            assert np.allclose(before - layer.weight.numpy().ravel(), wanted, atol=1e-6)
