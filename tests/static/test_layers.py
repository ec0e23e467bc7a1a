"""Layers and metrics: the numbers of the torch modules and formulas that they stand for."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fleetx import static
from fleetx.static import ProgramError

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
IDS = torch.randint(0, 9, (4, 5), generator=torch.Generator().manual_seed(0))

LAYERS: dict[str, tuple[Any, Any, Tensor]] = {
    "fc": (lambda x: static.nn.fc(x, 6), nn.Sequential(nn.Flatten(), nn.Linear(192, 6)), IMAGES),
    "fc rows": (lambda x: static.nn.fc(x, 6, num_flatten_dims=3), nn.Linear(8, 6), IMAGES),
    "conv2d": (
        lambda x: static.nn.conv2d(x, 5, 3, padding=1, act="relu"),
        nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU()),
        IMAGES,
    ),
    "conv2d_transpose": (
        lambda x: static.nn.conv2d_transpose(x, 5, 3, 2),
        nn.ConvTranspose2d(3, 5, 3, 2),
        IMAGES,
    ),
    "batch_norm": (lambda x: static.nn.batch_norm(x, momentum=0.8), nn.BatchNorm2d(3), IMAGES),
    "layer_norm": (static.nn.layer_norm, nn.LayerNorm([3, 8, 8]), IMAGES),
    "group_norm": (lambda x: static.nn.group_norm(x, 3), nn.GroupNorm(3, 3), IMAGES),
    "instance_norm": (
        static.nn.instance_norm,
        nn.InstanceNorm2d(3, affine=True),
        IMAGES,
    ),
    "prelu": (lambda x: static.nn.prelu(x, "channel"), nn.PReLU(3), IMAGES),
    "embedding": (lambda x: static.nn.embedding(x, (9, 4)), nn.Embedding(9, 4), IDS),
    "sparse_embedding": (
        lambda x: static.nn.sparse_embedding(x, [9, 4], padding_idx=0),
        nn.Embedding(9, 4, padding_idx=0),
        IDS,
    ),
    "pool2d": (lambda x: static.nn.pool2d(x, 3, "max", 2, 1), nn.MaxPool2d(3, 2, 1), IMAGES),
    "global pool": (
        lambda x: static.nn.pool2d(x, pool_type="avg", global_pooling=True),
        nn.AdaptiveAvgPool2d(1),
        IMAGES,
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_compute_what_their_modules_compute(name: str) -> None:
    make, module, batch = LAYERS[name]
    x = static.data("x", [None, *batch.shape[1:]], batch.dtype)
    out = make(x)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    ours = static.default_main_program().parameters()
    for p, q in zip(module.parameters(), ours, strict=True):
        p.data.copy_(q)
    found = exe.run(feed={"x": batch}, fetch_list=[out])[0]
    assert np.allclose(found, module(batch).detach().numpy(), rtol=0, atol=1e-6)


def test_running_statistics_keep_the_share_that_momentum_says() -> None:
    out = static.nn.batch_norm(static.data("x", [None, 3, 8, 8]), momentum=0.75)
    loss = out.sum()
    static.Optimizer(torch.optim.SGD, lr=0.0).minimize(loss)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    exe.run(feed={"x": IMAGES}, fetch_list=[])
    mean = static.default_main_program().state.persistent()["batch_norm_0.running_mean"]
    assert torch.allclose(mean, 0.25 * IMAGES.mean((0, 2, 3)), atol=1e-6)


def test_several_inputs_are_added() -> None:
    a, b = static.data("a", [None, 3]), static.data("b", [None, 4])
    out = static.nn.fc([a, b], 2, bias_attr=False)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    first, second = static.default_main_program().parameters()
    feed = {"a": torch.ones(1, 3), "b": torch.ones(1, 4)}
    found = exe.run(feed=feed, fetch_list=[out])[0]
    assert np.allclose(found, (first.sum(1) + second.sum(1)).detach().numpy())


def test_parameter_attributes() -> None:
    attr = static.ParamAttr(initializer=lambda t: nn.init.constant_(t, 2.0), trainable=False)
    x = static.data("x", [None, 3])
    out = static.nn.fc(x, 2, weight_attr=attr, bias_attr=nn.init.ones_)
    loss = out.mean()
    _, pairs = static.Optimizer(torch.optim.SGD, lr=0.1).minimize(loss)
    assert [name for name, _ in pairs] == ["fc_0.bias"]
    exe = static.Executor()
    exe.run(static.default_startup_program())
    assert exe.run(feed={"x": torch.ones(1, 3)}, fetch_list=[out])[0].tolist() == [[7.0, 7.0]]


def test_create_parameter_and_named_layers() -> None:
    x = static.data("x", [None, 3])
    weight = static.nn.create_parameter([3], name="slope")
    first = static.nn.fc(x * weight, 3, name="shared")
    second = static.nn.fc(first, 3, name="shared")
    assert [p.name for p in static.default_main_program().all_parameters()] == [
        "slope.weight",
        "shared.weight",
        "shared.bias",
    ]
    assert second.shape[1] == 3


def test_what_layers_refuse() -> None:
    x = static.data("x", [None, None])
    with pytest.raises(ProgramError, match=r"dimension -1 of .* is free"):
        static.nn.fc(x, 3)
    with pytest.raises(ProgramError, match="no activation 'reluu'"):
        static.nn.fc(static.data("y", [None, 3]), 3, activation="reluu")
    with pytest.raises(ProgramError, match="taken or reserved"):
        static.nn.fc(static.data("z", [None, 3]), 3, name="segments")


def test_cross_entropy_of_probabilities() -> None:
    x, y = static.data("x", [None, 3]), static.data("y", [None, 1], "int64")
    loss = static.nn.cross_entropy(F.softmax(x, -1), y)
    logits, labels = torch.randn(5, 3), torch.tensor([[0], [1], [2], [0], [1]])
    found = static.Executor().run(feed={"x": logits, "y": labels}, fetch_list=[loss])[0]
    expected = F.cross_entropy(logits, labels.squeeze(1), reduction="none").unsqueeze(1)
    assert np.allclose(found, expected.numpy(), atol=1e-6)


@pytest.mark.parametrize("shape", [[None], [None, 1]])
def test_accuracy(shape: list[int | None]) -> None:
    x, y = static.data("x", [None, 4]), static.data("y", shape, "int64")
    top1, top2 = static.accuracy(x, y), static.accuracy(x, y, k=2)
    scores = np.array([[4, 3, 2, 1], [1, 2, 3, 4], [4, 1, 3, 2]], np.float32)
    labels = np.array([0, 2, 1]).reshape(-1, *([1] * (len(shape) - 1)))
    found = static.Executor().run(feed={"x": scores, "y": labels}, fetch_list=[top1, top2])
    assert [round(float(value), 6) for value in found] == [0.333333, 0.666667]


def test_auc_over_all_batches() -> None:
    x, y = static.data("x", [None, 2]), static.data("y", [None, 1], "int64")
    total, batch, buckets = static.auc(x, y)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    rng = np.random.default_rng(0)
    scores: list[float] = []
    labels: list[int] = []
    for _ in range(3):
        label = rng.integers(0, 2, 40)
        score = np.clip(rng.normal(0.4 + 0.2 * label, 0.2), 0, 1)
        feed = {
            "x": np.stack([1 - score, score], 1).astype(np.float32),
            "y": label.reshape(-1, 1),
        }
        both, one, counted = exe.run(feed=feed, fetch_list=[total, batch, buckets[2]])
        scores += list(score)
        labels += list(label)
        assert float(one) == pytest.approx(pairs_in_order(list(score), list(label)), abs=2e-3)
        assert float(both) == pytest.approx(pairs_in_order(scores, labels), abs=2e-3)
        assert counted.sum() == sum(labels)


def pairs_in_order(scores: list[float], labels: list[int]) -> float:
    positive = [s for s, y in zip(scores, labels, strict=True) if y]
    negative = [s for s, y in zip(scores, labels, strict=True) if not y]
    right = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    return right / (len(positive) * len(negative))


def test_auc_of_one_class_is_a_half() -> None:
    x, y = static.data("x", [None]), static.data("y", [None], "int64")
    total, _, _ = static.auc(x, y)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    feed = {"x": np.array([0.1, 0.9], np.float32), "y": np.array([1, 1])}
    assert float(exe.run(feed=feed, fetch_list=[total])[0]) == 0.5


WRONG: dict[str, tuple[list[float], list[float], str]] = {
    "clicks": ([0.1, 0.9], [0, 2], r"labels that are neither 0 nor 1.*\(label > 0\)"),
    "no label": ([0.1, 0.9], [-1, 1], "neither 0 nor 1.*leave samples without a label out"),
    "parts": ([0.1, 0.9], [0.25, 1], "neither 0 nor 1"),
    "no number": ([0.1, float("nan")], [0, 1], "scores that are not between 0 and 1"),
    "logits": ([-2.0, 3.0], [0, 1], r"torch.sigmoid\(scores\)"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_area_of_what_is_no_class_is_refused(wrong: str) -> None:
    """Labels of 2 counted as two samples above and minus one below."""
    scores, labels, words = WRONG[wrong]
    x, y = static.data("x", [None]), static.data("y", [None, 1])
    total, _, (*_, positive, negative) = static.auc(x, y)
    exe = static.Executor()
    exe.run(static.default_startup_program())

    def run(scores: list[float], labels: list[float]) -> list[float]:
        column = np.asarray(labels, np.float32).reshape(-1, 1)
        feed = {"x": np.asarray(scores, np.float32), "y": column}
        found = exe.run(feed=feed, fetch_list=[total, positive, negative])
        return [float(value.sum()) for value in found]

    assert run([0.1, 0.9, 0.5], [0, 1, 1]) == [1, 2, 1]
    with pytest.raises(ValueError, match=words):
        run(scores, labels)
    assert run([0.2, 0.8, 0.4], [0, 1, 0]) == [1, 3, 3]


def test_an_area_of_many_classes_is_refused() -> None:
    x, y = static.data("x", [None, 3]), static.data("y", [None], "int64")
    with pytest.raises(ValueError, match="more than two classes"):
        static.auc(x, y)


NORMS: dict[str, Any] = {
    "batch_norm": static.nn.batch_norm,
    "layer_norm": static.nn.layer_norm,
    "group_norm": lambda x, **options: static.nn.group_norm(x, 3, **options),
    "instance_norm": static.nn.instance_norm,
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_without_scale_or_shift(name: str) -> None:
    x = static.data("x", [None, 3, 8, 8])
    full = NORMS[name](x, name="full")
    for weight, bias in ((None, False), (False, None), (False, False)):
        out = NORMS[name](x, param_attr=weight, bias_attr=bias, name=f"n{weight}{bias}")
        main = static.default_main_program()
        names = [n for n in main.state.trained() if n.startswith(f"n{weight}{bias}.")]
        assert names == [
            f"n{weight}{bias}.{n}" for n, a in (("weight", weight), ("bias", bias)) if a is None
        ]
        exe = static.Executor()
        exe.run(static.default_startup_program())
        found, expected = exe.run(feed={"x": IMAGES}, fetch_list=[out, full])
        assert np.allclose(found, expected, atol=1e-6), "scales begin at one, shifts at zero"


def test_layers_that_need_their_weight() -> None:
    x, ids = static.data("x", [None, 3, 8, 8]), static.data("ids", [None], "int64")
    makes: list[Callable[[], Tensor]] = [
        lambda: static.nn.fc(x, 2, weight_attr=False),
        lambda: static.nn.conv2d(x, 2, 3, param_attr=False),
        lambda: static.nn.embedding(ids, (5, 2), param_attr=False),
    ]
    for make in makes:
        with pytest.raises(ProgramError, match=r"told to have no weight \(False\)"):
            make()


def test_an_initializer_spares_the_row_of_padding() -> None:
    ids = static.data("ids", [None], "int64")
    ones = static.ParamAttr(initializer=nn.init.ones_)
    tables = [
        static.nn.embedding(ids, (5, 2), padding_idx=0, param_attr=ones),
        static.nn.sparse_embedding(ids, (5, 2), padding_idx=-5, param_attr=nn.init.ones_),
    ]
    exe = static.Executor()
    exe.run(static.default_startup_program())
    for found in exe.run(feed={"ids": [0, 1]}, fetch_list=tables):
        assert found.tolist() == [[0, 0], [1, 1]]


def test_a_parameter_whose_gradient_is_stopped_stays() -> None:
    out = static.nn.fc(static.data("x", [None, 4]), 1)
    main = static.default_main_program()
    weight = main.var("fc_0.weight")
    assert not weight.stop_gradient
    weight.stop_gradient = True
    assert main.var("fc_0.weight").stop_gradient
    static.Optimizer(torch.optim.SGD, lr=0.1).minimize(out.mean())
    exe = static.Executor()
    exe.run(static.default_startup_program())
    before = [p.detach().clone() for p in main.parameters()]
    exe.run(feed={"x": torch.ones(2, 4)}, fetch_list=[])
    assert [torch.equal(a, b) for a, b in zip(before, main.parameters(), strict=True)] == [
        True,
        False,
    ]
    with pytest.raises(ProgramError, match=r"stop_gradient = False .* comes after minimize"):
        weight.stop_gradient = False
    with pytest.raises(ProgramError, match=r"'fc_0.bias' comes after minimize\(\)"):
        main.var("fc_0.bias").stop_gradient = True


def test_the_mean_of_a_window_leaves_padding_out() -> None:
    x = static.data("x", [None, 1, 2, 2])
    outs = [static.nn.pool2d(x, 3, "avg", 1, 1, exclusive=flag) for flag in (True, False)]
    feed = {"x": np.full((1, 1, 2, 2), 9, np.float32)}
    without, counted = static.Executor().run(feed=feed, fetch_list=outs)
    assert without.ravel().tolist() == [9, 9, 9, 9]
    assert counted.ravel().tolist() == [4, 4, 4, 4]


WITH_WEIGHTS: dict[str, Callable[..., Any]] = {
    "fc": lambda x, ids, **attr: static.nn.fc(x, 2, **attr),
    "conv2d": lambda x, ids, **attr: static.nn.conv2d(x, 2, 3, **attr),
    "conv2d_transpose": lambda x, ids, **attr: static.nn.conv2d_transpose(x, 2, 3, **attr),
    "batch_norm": lambda x, ids, **attr: static.nn.batch_norm(x, **attr),
    "layer_norm": lambda x, ids, **attr: static.nn.layer_norm(x, **attr),
    "group_norm": lambda x, ids, **attr: static.nn.group_norm(x, 3, **attr),
    "instance_norm": lambda x, ids, **attr: static.nn.instance_norm(x, **attr),
    "prelu": lambda x, ids, **attr: static.nn.prelu(x, **attr),
    "embedding": lambda x, ids, **attr: static.nn.embedding(ids, (5, 2), **attr),
    "sparse_embedding": lambda x, ids, **attr: static.nn.sparse_embedding(ids, (5, 2), **attr),
    "create_parameter": lambda x, ids, **attr: static.nn.create_parameter([3], **attr),
}


def test_every_layer_that_takes_an_attribute_for_its_weight_is_tried() -> None:
    takes = {
        name
        for name in static.nn.__all__
        if inspect.isfunction(getattr(static.nn, name))
        and any("attr" in p for p in inspect.signature(getattr(static.nn, name)).parameters)
    }
    assert takes == WITH_WEIGHTS.keys()


@pytest.mark.parametrize("name", WITH_WEIGHTS)
def test_the_weight_is_described_under_both_names(name: str) -> None:
    x, ids = static.data("x", [None, 3, 8, 8]), static.data("ids", [None, 4], "int64")
    attr = static.ParamAttr(initializer=lambda tensor: nn.init.constant_(tensor, 7.0))
    for spelling in ("param_attr", "weight_attr"):
        WITH_WEIGHTS[name](x, ids, **{spelling: attr})
    with pytest.raises(ProgramError, match="two names of one"):
        WITH_WEIGHTS[name](x, ids, param_attr=attr, weight_attr=attr)
    static.Executor().run(static.default_startup_program())
    trained = static.default_main_program().state.trained()
    weights = [value for path, value in trained.items() if path.endswith(".weight")]
    assert len(weights) == 2
    assert all(bool((weight == 7.0).all()) for weight in weights)


@pytest.mark.parametrize(
    "name", ["fc", "conv2d", "conv2d_transpose", "batch_norm", "layer_norm", "group_norm"]
)
def test_the_activation_is_given_under_both_names(name: str) -> None:
    x, ids = static.data("x", [None, 3, 8, 8]), static.data("ids", [None, 4], "int64")
    for spelling in ("act", "activation"):
        assert WITH_WEIGHTS[name](x, ids, **{spelling: "relu"}).name.startswith("relu")
    with pytest.raises(ProgramError, match="two names of one"):
        WITH_WEIGHTS[name](x, ids, act="relu", activation="relu")
