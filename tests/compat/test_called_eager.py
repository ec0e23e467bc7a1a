"""Functions and layers of eager mode, each called with keywords that real scripts pass."""

from typing import Any

import numpy as np
import pytest

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]], "float32")
Y = np.array([[2.0, 0.5, 1.0], [-1.0, 2.0, 4.0]], "float32")
AT = np.array([[0, 2], [1, 0]], "int64")
LABEL = np.array([2, 1], "int64")


def softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@pytest.fixture(autouse=True)
def eager() -> None:
    import paddle

    paddle.disable_static()


def tensors(*arrays: Any) -> list[Any]:
    import paddle

    return [paddle.to_tensor(array) for array in arrays]


def check(pairs: list[tuple[Any, Any]]) -> None:
    wrong = {}
    for number, (found, wanted) in enumerate(pairs):
        got = np.asarray(found)
        got = got.reshape(np.shape(wanted)) if got.size == np.size(wanted) == 1 else got
        if got.shape != np.shape(wanted) or not np.allclose(got, wanted, atol=1e-5):
            wrong[number] = (got, wanted)
    assert not wrong


def test_functions_of_numbers() -> None:
    import paddle

    x, y, at = tensors(X, Y, AT)
    both = (X > 0) & (Y > 0)
    scattered = X.copy()
    scattered[[1, 0]] = Y
    check(
        [
            (paddle.mean(x=x, axis=1), X.mean(1)),
            (paddle.concat(x=[x, y], axis=0), np.concatenate([X, Y])),
            (paddle.to_tensor([1, 2], dtype="float32"), np.array([1.0, 2.0])),
            (paddle.cast(x, dtype="int64"), X.astype("int64")),
            (paddle.split(x, num_or_sections=3, axis=1)[1], X[:, 1:2]),
            (paddle.split(x, 3, 1)[2], X[:, 2:]),
            (paddle.sum(x, axis=0), X.sum(0)),
            (paddle.matmul(x=x, y=paddle.tensor.transpose(x=y, perm=[1, 0])), X @ Y.T),
            (paddle.add(x=x, y=y), X + Y),
            (paddle.argmax(x, axis=1), X.argmax(1)),
            (paddle.max(x, axis=1, keepdim=True), X.max(1, keepdims=True)),
            (paddle.min(x), X.min()),
            (paddle.topk(x, k=2, axis=1, largest=False)[0], np.sort(X)[:, :2]),
            (paddle.topk(x, 1)[1], X.argmax(1)[:, None]),
            (paddle.zeros_like(x, dtype="int64"), np.zeros((2, 3))),
            (paddle.ones_like(x, dtype="int64"), np.ones((2, 3))),
            (paddle.zeros([2], dtype="int64"), np.zeros(2)),
            (paddle.full_like(x, 7), np.full((2, 3), 7.0)),
            (paddle.any(x > 3), True),
            (paddle.argsort(x, descending=True), (-X).argsort(1)),
            (paddle.sort(x, descending=True), -np.sort(-X)),
            (paddle.index_sample(x, at), np.take_along_axis(X, AT, 1)),
            (paddle.index_select(x, at[1]), X[[1, 0]]),
            (paddle.log(paddle.sqrt(y * y)), np.log(abs(Y))),
            (paddle.logical_and(x > 0, y > 0), both),
            (paddle.scatter(x, paddle.to_tensor([1, 0]), y), scattered),
            (paddle.tile(x, [2, 1]), np.tile(X, (2, 1))),
            (paddle.unsqueeze(x, axis=0), X[None]),
            (paddle.unstack(x, axis=1)[2], X[:, 2]),
            (paddle.where(x > y, x, y), np.maximum(X, Y)),
            (paddle.tensor.reshape(x=x, shape=[3, 2]), X.reshape(3, 2)),
            (paddle.reshape_(paddle.to_tensor(X), [6]), X.reshape(6)),
        ]
    )
    drawn = np.asarray(paddle.randint(low=3, high=5, shape=[100]))
    assert {*drawn.tolist()} == {3, 4}
    made = paddle.create_parameter(shape=[2, 3], dtype="float32")
    assert list(made.shape) == [2, 3]


def test_functions_of_networks() -> None:
    import paddle
    import paddle.nn.functional as F

    x, y, label = tensors(X, Y, LABEL)
    rows = -np.log(softmax(X))[[0, 1], LABEL]
    soft = -(softmax(Y) * np.log(softmax(X))).sum(1)
    unit = tensors(softmax(X)[:, :1])[0]
    wanted = np.array([[1.0], [0.0]], "float32")
    likely = wanted * np.log(softmax(X)[:, :1] + 1e-4)
    likely += (1 - wanted) * np.log(1 - softmax(X)[:, :1] + 1e-4)
    loss, kept = F.softmax_with_cross_entropy(
        logits=x, label=paddle.unsqueeze(label, 1), return_softmax=True
    )
    table = tensors(np.arange(6, dtype="float32").reshape(3, 2))[0]
    check(
        [
            (F.cross_entropy(input=x, label=label), rows.mean()),
            (F.cross_entropy(x, F.softmax(y, axis=-1), soft_label=True), soft.mean()),
            (loss, rows[:, None]),
            (kept, softmax(X)),
            (F.dropout(x, 0.5, training=False), X),
            (F.embedding(label, weight=table, padding_idx=1, sparse=False, name="e")[0], [4, 5]),
            (F.embedding(label, weight=table, padding_idx=1)[1], [0, 0]),
            (F.l1_loss(x, y, reduction="sum"), abs(X - Y).sum()),
            (F.mse_loss(x, y, reduction="none"), (X - Y) ** 2),
            (F.linear(x, *tensors(Y.T.copy(), np.ones(2, "float32"))), X @ Y.T + 1),
            (F.log_loss(input=unit, label=paddle.to_tensor(wanted)), -likely),
            (F.sigmoid(x), 1 / (1 + np.exp(-X))),
            (F.tanh(x), np.tanh(X)),
            (F.log_softmax(x), np.log(softmax(X))),
            (
                F.nll_loss(F.log_softmax(x), label, ignore_index=1, reduction="sum"),
                rows[0],
            ),
            (
                F.adaptive_max_pool1d(x.reshape([1, 2, 3]), output_size=1),
                X.max(1).reshape(1, 2, 1),
            ),
        ]
    )


def filled(value: float) -> Any:
    import paddle

    return paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(value=value))


def test_layers_over_pictures_and_signals() -> None:
    from paddle import nn

    picture = np.arange(32, dtype="float32").reshape(1, 2, 4, 4)
    x, signal = tensors(picture, picture.reshape(1, 2, 16)[:, :, :8].copy())
    conv = nn.Conv2D(
        in_channels=2,
        out_channels=2,
        kernel_size=1,
        stride=2,
        padding=0,
        groups=2,
        weight_attr=filled(3.0),
        bias_attr=False,
        data_format="NCHW",
    )
    old = nn.Conv2d(2, 1, kernel_size=1, stride=1, padding=0)
    deep = nn.Conv1D(2, 1, 2, stride=2, padding=0, dilation=2)
    norm = nn.BatchNorm(
        2,
        act="relu",
        param_attr=filled(2.0),
        bias_attr=filled(1.0),
        moving_mean_name="mean",
        moving_variance_name="variance",
        data_layout="NCHW",
    )
    norm.eval()
    weights = np.asarray(old.weight).reshape(2)
    kernel = np.asarray(deep.weight)[0]
    line = np.asarray(signal)[0]
    sums = [(line[:, at : at + 3 : 2] * kernel).sum() for at in (0, 2, 4)]
    halves = picture.reshape(1, 2, 2, 2, 2, 2)
    pool = nn.MaxPool2D(kernel_size=2, stride=2, padding=0, data_format="NCHW")
    check(
        [
            (conv(x), 3 * picture[:, :, ::2, ::2]),
            (old(x)[0, 0], np.tensordot(weights, picture[0], 1) + np.asarray(old.bias)),
            (deep(signal)[0, 0], np.array(sums) + np.asarray(deep.bias)),
            (pool(x), halves.max((3, 5))),
            (nn.MaxPool2d(kernel_size=2, stride=2)(x), halves.max((3, 5))),
            (nn.AdaptiveAvgPool2D(1, data_format="NCHW")(x), picture.mean((2, 3), keepdims=True)),
            (
                nn.Pad2D([1, 0, 0, 2], mode="constant", value=9.0)(x),
                np.pad(picture, ((0, 0), (0, 0), (0, 2), (1, 0)), constant_values=9.0),
            ),
            (norm(x), 2 * picture / np.sqrt(1 + 1e-5) + 1),
        ]
    )


def test_layers_over_rows() -> None:
    import paddle
    from paddle import nn

    x, y, label = tensors(X, Y, LABEL)
    linear = nn.Linear(in_features=3, out_features=2, name="l")
    table = nn.Embedding(
        num_embeddings=4, embedding_dim=2, padding_idx=1, sparse=False, weight_attr=filled(5.0)
    )
    norm = nn.LayerNorm(normalized_shape=3, weight_attr=filled(2.0), bias_attr=filled(1.0))
    centred = (X - X.mean(1, keepdims=True)) / np.sqrt(X.var(1, keepdims=True) + 1e-5)
    dropout = nn.Dropout(0.5, mode="downscale_in_infer")
    dropout.eval()
    norms = np.sqrt((X**2).sum(1) * (Y**2).sum(1))
    rows = -np.log(softmax(X))[[0, 1], LABEL]
    check(
        [
            (linear(x), X @ np.asarray(linear.weight) + np.asarray(linear.bias)),
            (table(label), [[5, 5], [0, 0]]),
            (norm(x), 2 * centred + 1),
            (dropout(x), X / 2),
            (nn.CrossEntropyLoss(reduction="sum")(x, label), rows.sum()),
            (nn.CosineSimilarity()(x, y), (X * Y).sum(1) / norms),
            (nn.Tanh()(x), np.tanh(X)),
            (nn.GELU()(x)[0, :1], [0.8413447]),
        ]
    )
    first = nn.initializer
    wide = paddle.create_parameter(
        [50, 20], "float32", attr=paddle.ParamAttr(initializer=first.Uniform(2.0, 3.0))
    )
    assert 2 <= np.asarray(wide).min() <= np.asarray(wide).max() <= 3
    cut = paddle.create_parameter(
        [50, 20],
        "float32",
        attr=paddle.ParamAttr(initializer=first.TruncatedNormal(mean=5.0, std=1.0)),
    )
    assert 3 <= np.asarray(cut).min() <= np.asarray(cut).max() <= 7

    class Own(nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            nn.Layer.__init__(self)

    assert Own().parameters() == []


def test_recurrent_layers() -> None:
    import paddle
    from paddle import nn

    x = paddle.to_tensor(np.stack([X, Y]))
    for kind in (nn.SimpleRNN, nn.GRU, nn.LSTM):
        made = kind(
            input_size=3, hidden_size=4, num_layers=2, direction="bidirectional", dropout=0.1
        )
        made.eval()
        out, _ = made(x)
        assert list(out.shape) == [2, 2, 8]
    rnn = nn.SimpleRNN(input_size=3, hidden_size=4, num_layers=1, direction="forward", dropout=0.0)
    gru = nn.GRU(input_size=3, hidden_size=4, num_layers=1, direction="forward", dropout=0.0)
    lstm = nn.LSTM(input_size=3, hidden_size=4, dropout=0.0)
    weights = {name: np.asarray(value) for name, value in rnn.named_parameters()}
    first = next(v for v in weights.values() if v.shape == (4, 3))
    biases = sum(v for v in weights.values() if v.shape == (4,))
    out, _ = rnn(x)
    assert np.asarray(out)[:, 0] == pytest.approx(
        np.tanh(np.stack([X, Y])[:, 0] @ first.T + biases), abs=1e-5
    )
    for layer in (gru, lstm):
        out, last = layer(x)
        final = last[0] if isinstance(last, tuple) else last
        assert np.asarray(out)[:, -1] == pytest.approx(np.asarray(final)[0], abs=1e-6)


def test_optimizers_samplers_and_models() -> None:
    import paddle
    from paddle.io import DataLoader, DistributedBatchSampler
    from paddle.vision.models import ResNet
    from paddle.vision.models.resnet import BottleneckBlock

    weight = paddle.create_parameter([1], "float32", attr=filled(1.0))
    optimizer = paddle.optimizer.Adam(
        learning_rate=0.1, beta1=0.9, beta2=0.999, parameters=[weight]
    )
    (weight * 3).sum().backward()
    optimizer.step()
    assert np.asarray(weight) == pytest.approx([0.9], abs=1e-5)
    sampler = DistributedBatchSampler(
        dataset=[*range(10)], batch_size=4, shuffle=False, drop_last=True
    )
    loader = DataLoader(dataset=[np.float32(n) for n in range(10)], batch_sampler=sampler)
    assert [np.asarray(b[0] if isinstance(b, (list, tuple)) else b).tolist() for b in loader] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]
    model = ResNet(BottleneckBlock, 50, num_classes=7)
    assert list(model.fc.weight.shape) == [2048, 7]
