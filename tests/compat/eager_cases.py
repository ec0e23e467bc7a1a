"""Calls of Paddle whose results must equal those of Paddle 2.6.2.

``python eager_cases.py FILE`` with the real Paddle writes them; the test computes them again.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

Case = Callable[[Any], Any]
CASES: dict[str, Case] = {}


def numbers(*shape: int, scale: float = 1.0, seed: int = 0) -> Any:
    """The same floats everywhere."""
    return (np.random.RandomState(seed).randn(*shape) * scale).astype("float32")


def tensor(paddle: Any, *shape: int, seed: int = 0) -> Any:
    return paddle.to_tensor(numbers(*shape, seed=seed))


def positive(paddle: Any, *shape: int) -> Any:
    return paddle.to_tensor(np.abs(numbers(*shape)) + 0.1)


def labels(paddle: Any, *shape: int, below: int = 4) -> Any:
    return paddle.to_tensor(np.random.RandomState(1).randint(0, below, shape).astype("int64"))


def filled(layer: Any) -> Any:
    """A layer with the same weights everywhere, by their names in it."""
    for at, (name, value) in enumerate(sorted(layer.named_parameters())):
        given = numbers(*value.shape, scale=0.5, seed=at + 10)
        value.set_value(np.abs(given) + 0.5 if "variance" in name else given)
    return layer


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def simple(name: str, function: Any) -> None:
    CASES[name] = function


for _name in [
    "abs",
    "acos",
    "asin",
    "atan",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "exp",
    "expm1",
    "floor",
    "log",
    "log10",
    "log1p",
    "log2",
    "reciprocal",
    "round",
    "rsqrt",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
]:
    simple(f"math.{_name}", lambda p, n=_name: getattr(p, n)(positive(p, 3, 4) / 4))
for _name in [
    "add",
    "subtract",
    "multiply",
    "divide",
    "maximum",
    "minimum",
    "pow",
    "remainder",
    "floor_divide",
]:
    simple(
        f"math.{_name}",
        lambda p, n=_name: getattr(p, n)(positive(p, 3, 4), positive(p, 4)),
    )
for _name in ["sum", "mean", "max", "min", "prod", "logsumexp", "std", "var", "median"]:
    simple(
        f"reduce.{_name}",
        lambda p, n=_name: [
            getattr(p, n)(tensor(p, 3, 5)),
            getattr(p, n)(tensor(p, 3, 5), axis=1),
            getattr(p, n)(tensor(p, 3, 5), axis=-1, keepdim=True),
        ],
    )
for _name in ["sum", "mean", "max", "min"]:
    simple(f"reduce.{_name}.axes", lambda p, n=_name: getattr(p, n)(tensor(p, 2, 3, 4), [0, 2]))
for _name in ["equal", "not_equal", "greater_than", "greater_equal", "less_than", "less_equal"]:
    simple(
        f"logic.{_name}", lambda p, n=_name: getattr(p, n)(labels(p, 3, 4), labels(p, 4, below=3))
    )
for _name in ["logical_and", "logical_or", "logical_xor"]:
    simple(
        f"logic.{_name}",
        lambda p, n=_name: getattr(p, n)(tensor(p, 4) > 0, tensor(p, 4, seed=1) > 0),
    )


@case
def dtypes(p: Any) -> Any:
    made = [
        p.to_tensor([1.0, 2.0]),
        p.to_tensor([1, 2]),
        p.to_tensor(np.zeros(2)),
        p.to_tensor(np.zeros(2, "float32")),
        p.to_tensor(True),
        p.to_tensor([1, 2], dtype="float32"),
        p.arange(3),
        p.arange(0.0, 1.0, 0.25),
        p.zeros([2]),
        p.full([2], 3),
        p.argmax(tensor(p, 3)),
        p.shape(tensor(p, 2, 3)),
        p.ones_like(labels(p, 2)),
        p.zeros_like(labels(p, 2), dtype="float32"),
        p.randint(low=0, high=3, shape=[2]),
        p.topk(tensor(p, 5), k=2)[1],
        p.cast(tensor(p, 2), "int32"),
        tensor(p, 2).astype("float64"),
        labels(p, 2) / 2,
        tensor(p, 2) > 0,
    ]
    return np.array([str(t.dtype).rpartition(".")[2] for t in made])


@case
def creation(p: Any) -> Any:
    return [
        p.full(shape=[2, 2], fill_value=7, dtype="int64"),
        p.full_like(tensor(p, 2), 3.5),
        p.eye(3, 4),
        p.linspace(0, 1, 5),
        p.diag(tensor(p, 3)),
        p.tril(tensor(p, 3, 3)),
        p.triu(tensor(p, 3, 3), 1),
        p.arange(2, 9, 3, dtype="float32"),
        *p.meshgrid(p.arange(2), p.arange(3)),
        p.assign(tensor(p, 3)),
    ]


@case
def shapes(p: Any) -> Any:
    x = tensor(p, 2, 3, 4)
    return [
        p.reshape(x, [0, -1]),
        p.reshape(x, shape=[4, 6]),
        p.transpose(x, [2, 0, 1]),
        p.tensor.transpose(x=x, perm=[1, 0, 2]),
        *p.split(x, num_or_sections=[1, -1], axis=1),
        *p.split(x, 2, axis=2),
        p.concat(x=[x, x], axis=-1),
        p.stack([x, x], axis=1),
        *p.unstack(x, axis=1),
        p.squeeze(p.unsqueeze(x, axis=[0, 2]), [0]),
        p.unsqueeze(x, axis=1),
        p.tile(x, [1, 2, 1]),
        p.expand(p.to_tensor(numbers(1, 3)), [4, 3]),
        p.flatten(x, start_axis=1),
        p.flip(x, axis=[0, 2]),
        p.roll(x, 1, 2),
        p.cumsum(x, axis=1),
        p.cumsum(x),
        p.slice(x, axes=[1, 2], starts=[1, -3], ends=[3, 4]),
        p.strided_slice(x, [2], [3], [0], [-2]),
        p.broadcast_to(p.to_tensor(numbers(3, 1)), [2, 3, 4]),
    ]


@case
def picking(p: Any) -> Any:
    x, index = tensor(p, 4, 3), p.to_tensor(np.array([2, 0]))
    return [
        p.gather(x, index),
        p.gather(x, index, axis=1),
        p.gather_nd(x, p.to_tensor(np.array([[1, 2], [3, 0]]))),
        p.scatter(x, index, p.to_tensor(numbers(2, 3, seed=5))),
        p.scatter(x, p.to_tensor(np.array([2, 2])), p.to_tensor(numbers(2, 3)), overwrite=False),
        p.scatter_nd_add(x, p.to_tensor(np.array([[1], [1]])), p.to_tensor(numbers(2, 3))),
        p.index_select(x, index, axis=1),
        p.index_sample(x, p.to_tensor(np.array([[0, 2], [1, 1], [2, 2], [0, 0]]))),
        p.masked_select(x, x > 0),
        p.where(x > 0, x, -x),
        p.nonzero(x > 0),
        *p.topk(x, 2, axis=1),
        *p.topk(x, k=2, axis=0, largest=False),
        p.argsort(x, descending=True),
        p.sort(x, descending=True, axis=0),
        p.argmax(x, axis=1),
        p.argmin(x),
        *p.unique(
            p.to_tensor(np.array([3, 1, 3, 2])),
            return_index=True,
            return_inverse=True,
            return_counts=True,
        ),
        p.take_along_axis(x, p.to_tensor(np.array([[0], [1], [2], [0]])), 1),
        p.shard_index(p.to_tensor(np.array([[1], [5], [9]])), 10, 2, 0),
    ]


@case
def products(p: Any) -> Any:
    a, b = tensor(p, 2, 3, 4), tensor(p, 2, 3, 4, seed=1)
    return [
        p.matmul(a, b, transpose_y=True),
        p.matmul(x=a, y=b, transpose_x=True),
        p.bmm(a, p.transpose(b, [0, 2, 1])),
        p.dot(tensor(p, 3), tensor(p, 3, seed=1)),
        p.norm(a),
        p.norm(a, p=1, axis=1),
        p.scale(a, 2.0, 1.0),
        p.scale(a, 2.0, 1.0, bias_after_scale=False),
        p.add_n([a, b]),
        p.clip(a, min=-0.5, max=0.5),
        p.addmm(tensor(p, 2, 2), tensor(p, 2, 3), tensor(p, 3, 2)),
        p.any(a > 2),
        p.all(a < 9, axis=0),
        p.allclose(a, a),
        p.isfinite(a),
        p.trace(tensor(p, 3, 3)),
        p.kron(tensor(p, 2, 2), tensor(p, 2, 2)),
    ]


@case
def methods(p: Any) -> Any:
    x = tensor(p, 2, 3, 4)
    return [
        x.transpose([1, 0, 2]),
        x.reshape([3, -1]),
        x.max(),
        x.min(axis=1),
        x.sum(1),
        x.mean(axis=[0, 1]),
        x.matmul(x, transpose_y=True),
        x.unsqueeze(0).squeeze(0),
        x.tile([1, 1, 2]),
        *x.split(3, 1),
        x.flatten(),
        x.cast("int32"),
        x.gather_nd(p.to_tensor(np.array([[0, 1]]))),
        x.argmax(-1),
        x.sort(),
        x.expand([2, 3, 4]),
        x.numpy().shape,
        x[0],
        x[:, 1:, -1],
        x * 2 - 1,
        np.array([x.ndim, *x.shape]),
    ]


@case
def gradients(p: Any) -> Any:
    x = tensor(p, 3, 4)
    x.stop_gradient = False
    y = p.mean(p.tanh(x) * x)
    y.backward(retain_graph=True)
    first = x.grad.numpy().copy()
    y.backward()
    other = tensor(p, 3)
    other.stop_gradient = False
    (found,) = p.grad(p.sum(other**3), [other])
    return [first, x.gradient(), found]


_FUNCTIONS = (
    "relu relu6 sigmoid tanh softmax log_softmax leaky_relu elu selu silu mish hardswish "
    "hardsigmoid hardtanh softplus softsign log_sigmoid gelu swish"
)
for _name in _FUNCTIONS.split():
    simple(f"F.{_name}", lambda p, n=_name: getattr(p.nn.functional, n)(tensor(p, 3, 4) * 3))
for _name in [
    "ReLU",
    "GELU",
    "Tanh",
    "Sigmoid",
    "Softmax",
    "LeakyReLU",
    "Hardswish",
    "ReLU6",
    "LogSoftmax",
]:
    simple(f"nn.{_name}", lambda p, n=_name: getattr(p.nn, n)()(tensor(p, 3, 4)))


@case
def functions(p: Any) -> Any:
    F = p.nn.functional
    x = tensor(p, 2, 3, 6, 6)
    table = tensor(p, 5, 3)
    ids = p.to_tensor(np.array([[0, 4], [2, 2]]))
    return [
        F.gelu(x, approximate=True),
        F.softmax(x, axis=1),
        F.linear(tensor(p, 2, 3), tensor(p, 3, 4), tensor(p, 4)),
        F.embedding(ids, table),
        F.embedding(ids, weight=table, padding_idx=2, sparse=False, name="e"),
        F.dropout(x, 0.3, training=False),
        F.dropout(x, 0.3, training=False, mode="downscale_in_infer"),
        F.pad(x, [1, 2, 0, 1]),
        F.pad(x, [1, 1, 1, 1], mode="reflect"),
        F.pad(tensor(p, 2, 3), [1, 0, 0, 2], value=9.0),
        F.normalize(x, axis=1),
        F.layer_norm(x, [6, 6]),
        F.one_hot(labels(p, 4), 4),
        F.label_smooth(p.to_tensor(np.eye(3, dtype="float32")), epsilon=0.2),
        F.cosine_similarity(tensor(p, 2, 3), tensor(p, 2, 3, seed=1), axis=1),
        F.interpolate(x, scale_factor=2),
        F.interpolate(x, size=[3, 3], mode="bilinear", align_corners=True),
        F.unfold(x, [2, 2], 2),
        F.sequence_mask(p.to_tensor(np.array([1, 3])), maxlen=4),
        F.local_response_norm(x, 3),
    ]


@case
def convolutions(p: Any) -> Any:
    F = p.nn.functional
    x, w = tensor(p, 2, 4, 7, 8), tensor(p, 6, 4, 3, 3)
    last = p.transpose(x, [0, 2, 3, 1])
    return [
        F.conv2d(x, w),
        F.conv2d(x, w, tensor(p, 6), stride=2, padding=1),
        F.conv2d(x, w, padding=[1, 2], dilation=2),
        F.conv2d(x, w, padding=[1, 0, 2, 1]),
        F.conv2d(x, w, padding="SAME", stride=2),
        F.conv2d(x, tensor(p, 6, 2, 3, 3), groups=2),
        F.conv2d(last, w, padding=1, data_format="NHWC"),
        F.conv1d(tensor(p, 2, 4, 9), tensor(p, 5, 4, 3), stride=2),
        F.conv3d(tensor(p, 1, 2, 4, 4, 4), tensor(p, 3, 2, 2, 2, 2)),
        F.conv2d_transpose(x, tensor(p, 4, 3, 3, 3), stride=2, padding=1),
        F.conv2d_transpose(x, tensor(p, 4, 3, 3, 3), stride=2, output_size=[16, 18]),
    ]


@case
def pools(p: Any) -> Any:
    F = p.nn.functional
    x = tensor(p, 2, 3, 7, 8)
    last = p.transpose(x, [0, 2, 3, 1])
    return [
        F.max_pool2d(x, 2),
        F.max_pool2d(x, kernel_size=3, stride=2, padding=1),
        F.max_pool2d(x, 3, 2, ceil_mode=True),
        F.max_pool2d(last, 2, 2, data_format="NHWC"),
        F.avg_pool2d(x, 2),
        F.avg_pool2d(x, 3, stride=2, padding=1),
        F.avg_pool2d(x, 3, stride=2, padding=1, exclusive=False),
        F.adaptive_avg_pool2d(x, 1),
        F.adaptive_avg_pool2d(x, [3, 4]),
        F.max_pool1d(tensor(p, 2, 3, 8), 2),
        F.avg_pool1d(tensor(p, 2, 3, 8), 2, 2),
        F.adaptive_max_pool1d(tensor(p, 2, 3, 8), output_size=1),
        F.adaptive_max_pool2d(x, 2),
        p.nn.MaxPool2D(kernel_size=2, stride=2)(x),
        p.nn.AvgPool2D(kernel_size=2, stride=2, padding=0)(x),
        p.nn.AdaptiveAvgPool2D((2, 2))(x),
    ]


@case
def losses(p: Any) -> Any:
    F = p.nn.functional
    x, y = tensor(p, 6, 4), labels(p, 6)
    column = p.reshape(y, [6, 1])
    soft = F.softmax(tensor(p, 6, 4, seed=3))
    chance, truth = F.sigmoid(tensor(p, 6, 1)), p.cast(labels(p, 6, 1, below=2), "float32")
    weight = positive(p, 4)
    return [
        F.cross_entropy(x, y),
        F.cross_entropy(input=x, label=column),
        F.cross_entropy(x, column, reduction="none"),
        F.cross_entropy(x, y, reduction="none"),
        F.cross_entropy(x, y, reduction="sum"),
        F.cross_entropy(x, soft, soft_label=True),
        F.cross_entropy(x, y, ignore_index=2),
        F.cross_entropy(x, y, weight=weight),
        F.cross_entropy(F.softmax(x), y, use_softmax=False),
        F.cross_entropy(tensor(p, 2, 3, 5), labels(p, 2, 5, below=3), axis=1),
        F.cross_entropy(tensor(p, 2, 5, 3), labels(p, 2, 5, 1, below=3), reduction="none"),
        F.softmax_with_cross_entropy(x, column),
        *F.softmax_with_cross_entropy(logits=x, label=column, return_softmax=True),
        F.softmax_with_cross_entropy(x, soft, soft_label=True),
        F.nll_loss(F.log_softmax(x), y),
        F.nll_loss(F.log_softmax(x), y, ignore_index=1, reduction="sum"),
        F.mse_loss(chance, truth),
        F.mse_loss(chance, truth, reduction="none"),
        F.l1_loss(chance, truth, reduction="sum"),
        F.smooth_l1_loss(tensor(p, 4) * 3, tensor(p, 4, seed=1)),
        F.log_loss(input=chance, label=truth),
        F.binary_cross_entropy(chance, truth),
        F.binary_cross_entropy_with_logits(chance, truth),
        F.kl_div(F.log_softmax(x), soft, reduction="sum"),
        F.square_error_cost(chance, truth),
        F.margin_ranking_loss(tensor(p, 3), tensor(p, 3, seed=1), p.ones([3])),
        p.nn.CrossEntropyLoss()(x, y),
        p.nn.CrossEntropyLoss(reduction="none")(x, column),
        p.nn.MSELoss()(chance, truth),
        p.nn.BCELoss()(chance, truth),
        p.nn.BCEWithLogitsLoss()(chance, truth),
        p.nn.L1Loss()(chance, truth),
        p.nn.NLLLoss()(F.log_softmax(x), y),
        p.nn.KLDivLoss()(F.log_softmax(x), soft),
    ]


def _trained(p: Any, layer: Any, x: Any) -> Any:
    """The output, gradients by weights, and what evaluation gives."""
    x.stop_gradient = False
    made = layer(x)
    p.mean(made * made).backward()
    found = [
        made,
        x.grad,
        *[v.grad for _, v in sorted(layer.named_parameters()) if v.grad is not None],
    ]
    layer.eval()
    return [*found, layer(x)]


_LAYERS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "Linear": (lambda p: p.nn.Linear(4, 3), (2, 4)),
    "Conv2D": (lambda p: p.nn.Conv2D(3, 4, kernel_size=3, stride=2, padding=1), (2, 3, 6, 6)),
    "Conv1D": (lambda p: p.nn.Conv1D(3, 4, 3, stride=2, padding=1, dilation=2), (2, 3, 9)),
    "Conv2DTranspose": (lambda p: p.nn.Conv2DTranspose(3, 4, 3, stride=2), (2, 3, 4, 4)),
    "LayerNorm": (lambda p: p.nn.LayerNorm(5, epsilon=1e-3), (2, 3, 5)),
    "GroupNorm": (lambda p: p.nn.GroupNorm(2, 4), (2, 4, 3, 3)),
    "InstanceNorm2D": (lambda p: p.nn.InstanceNorm2D(3), (2, 3, 4, 4)),
    "PReLU": (lambda p: p.nn.PReLU(3), (2, 3, 4)),
    "Pad2D": (
        lambda p: p.nn.Sequential(
            p.nn.Pad2D([1, 1, 2, 0], mode="constant", value=1.0), p.nn.Conv2D(3, 2, 3)
        ),
        (2, 3, 4, 4),
    ),
    "Flatten": (lambda p: p.nn.Sequential(p.nn.Flatten(), p.nn.Linear(12, 2)), (2, 3, 4)),
}
for _name, (_make, _shape) in _LAYERS.items():
    simple(
        f"layer.{_name}",
        lambda p, m=_make, s=_shape: _trained(p, filled(m(p)), tensor(p, *s)),
    )


@case
def batch_norms(p: Any) -> Any:
    found = []
    kinds = [
        (p.nn.BatchNorm2D(3), tensor(p, 4, 3, 5, 5)),
        (p.nn.BatchNorm1D(3), tensor(p, 8, 3)),
        (p.nn.BatchNorm2D(3, momentum=0.7, data_format="NHWC"), tensor(p, 4, 5, 5, 3)),
        (p.nn.BatchNorm(3, act="relu"), tensor(p, 4, 3, 5, 5)),
        (p.nn.BatchNorm2D(3, use_global_stats=True), tensor(p, 4, 3, 5, 5)),
    ]
    for layer, x in kinds:
        made = filled(layer)(x)
        p.mean(made * made).backward()
        found += [made, layer.weight.grad, layer._mean]
        layer.eval()
        layer._variance.set_value(np.ones(3, "float32"))
        found.append(layer(x))
    return found


@case
def embeddings(p: Any) -> Any:
    ids = p.to_tensor(np.array([[0, 4], [2, 2]]))
    plain, padded = filled(p.nn.Embedding(5, 3)), filled(p.nn.Embedding(5, 3, padding_idx=2))
    p.sum(plain(ids)).backward()
    return [plain(ids), padded(ids), plain.weight.grad]


@case
def recurrent(p: Any) -> Any:
    x, found = tensor(p, 2, 5, 3), []
    for kind in ("SimpleRNN", "LSTM", "GRU"):
        for options in ({}, {"direction": "bidirect", "num_layers": 2}):
            layer = getattr(p.nn, kind)(input_size=3, hidden_size=4, **options)
            for at, name in enumerate(sorted(k for k in layer.state_dict() if "." in k)):
                value = layer.state_dict()[name]
                value.set_value(numbers(*value.shape, scale=0.3, seed=at))
            made, last = layer(x)
            found += [made, *(last if isinstance(last, tuple) else [last])]
            lengths = p.to_tensor(np.array([5, 3]))
            made, last = layer(x, sequence_length=lengths)
            found += [made, *(last if isinstance(last, tuple) else [last])]
    cell = filled(p.nn.LSTMCell(3, 4))
    return [*found, cell(x[:, 0])[0]]


@case
def transformers(p: Any) -> Any:
    x, memory = tensor(p, 2, 4, 8), tensor(p, 2, 3, 8, seed=1)
    mask = p.to_tensor(np.tril(np.ones((4, 4))).astype("bool"))
    attention = filled(p.nn.MultiHeadAttention(8, 2))
    layer = filled(p.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu"))
    before = p.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, normalize_before=True)
    stack = filled(p.nn.TransformerEncoder(before, 2, p.nn.LayerNorm(8)))
    decoder = filled(p.nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0))
    return [
        attention(x, memory, memory),
        attention(x, x, x, mask),
        layer(x),
        layer(x, mask),
        stack(x, mask),
        decoder(x, memory, mask),
    ]


@case
def weight_norm(p: Any) -> Any:
    layer = p.nn.Linear(3, 4)
    layer.weight.set_value(numbers(3, 4))
    normed = p.nn.utils.weight_norm(layer)
    normed.weight_g.set_value(numbers(3, seed=2))
    return [normed(tensor(p, 2, 3)), normed.weight_v]


@case
def metrics(p: Any) -> Any:
    x, y = tensor(p, 6, 4), labels(p, 6, 1)
    counted = p.metric.Accuracy(topk=(1, 2))
    counted.update(counted.compute(x, y))
    precision, recall, auc = p.metric.Precision(), p.metric.Recall(), p.metric.Auc()
    chance, truth = np.abs(numbers(9)) % 1, np.random.RandomState(2).randint(0, 2, 9)
    for metric in (precision, recall):
        metric.update(chance, truth)
    auc.update(np.stack([1 - chance, chance], 1), truth[:, None])
    return [
        p.metric.accuracy(input=x, label=y, k=1),
        p.metric.accuracy(input=x, label=y, k=2),
        np.array(counted.accumulate()),
        np.array([precision.accumulate(), recall.accumulate(), auc.accumulate()]),
    ]


@case
def lenet(p: Any) -> Any:
    return filled(p.vision.models.LeNet())(tensor(p, 2, 1, 28, 28))


@case
def blocks_of_resnet(p: Any) -> Any:
    kinds = p.vision.models.resnet
    shortcut = p.nn.Sequential(p.nn.Conv2D(4, 16, 1, bias_attr=False), p.nn.BatchNorm2D(16))
    block = filled(kinds.BottleneckBlock(4, 4, downsample=shortcut))
    basic = filled(kinds.BasicBlock(4, 4))
    return [block(tensor(p, 2, 4, 5, 5)), basic(tensor(p, 2, 4, 5, 5))]


def _described(layer: Any) -> Any:
    lines = [f"{k} {list(v.shape)} {v.name}" for k, v in layer.named_parameters()]
    return np.array(lines)


_MODELS: dict[str, dict[str, Any]] = {
    "resnet18": {"num_classes": 0},
    "vgg11": {"batch_norm": True, "num_classes": 0},
    "mobilenet_v1": {"scale": 0.25},
    "mobilenet_v2": {"scale": 0.25},
}
for _name, _options in _MODELS.items():

    def _names(p: Any, n: str = _name, o: dict[str, Any] = _options) -> Any:
        with p.utils.unique_name.guard():
            return _described(getattr(p.vision.models, n)(**o))

    simple(f"names.{_name}", _names)


@case
def names_of_layers(p: Any) -> Any:
    with p.utils.unique_name.guard():
        layers = [
            p.nn.Linear(2, 2),
            p.nn.Linear(2, 2, bias_attr=False),
            p.nn.Embedding(3, 2),
            p.nn.LayerNorm(2),
            p.nn.BatchNorm1D(2),
            p.nn.BatchNorm(2),
            p.nn.Conv2D(1, 1, 1, weight_attr=p.ParamAttr(name="mine")),
            p.nn.TransformerEncoder(p.nn.TransformerEncoderLayer(4, 2, 4), 2),
            p.nn.Sequential(("a", p.nn.Linear(2, 2)), ("b", p.nn.Linear(2, 2))),
            p.nn.LayerList([p.nn.Linear(2, 2)]),
        ]
        return np.concatenate([np.array([a.full_name(), *_described(a)]) for a in layers])


@case
def transforms(p: Any) -> Any:
    T = p.vision.transforms
    image = (np.random.RandomState(0).rand(8, 10, 3) * 255).astype("uint8")
    picture = Image.fromarray(image)
    change = T.Compose([T.CenterCrop(6), T.Transpose(), T.Normalize(mean=[1, 2, 3], std=[4, 5, 6])])
    return [
        np.asarray(change(picture)),
        T.ToTensor()(picture),
        np.asarray(T.Pad(1)(picture)),
        np.asarray(T.Grayscale()(picture)),
        np.asarray(T.functional.hflip(picture)),
        np.asarray(T.Resize(4)(picture)),
    ]


def results(paddle: Any) -> dict[str, Any]:
    """Every case as arrays."""
    found = {}
    for name, function in CASES.items():
        try:
            made = function(paddle)
        except Exception as error:
            raise RuntimeError(f"the case {name} failed: {error}") from error
        for at, part in enumerate(made if isinstance(made, (list, tuple)) else [made]):
            found[f"{name}/{at}"] = np.asarray(part.numpy() if hasattr(part, "numpy") else part)
    return found


if __name__ == "__main__":
    import paddle

    np.savez_compressed(sys.argv[1], **results(paddle))
