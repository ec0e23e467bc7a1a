"""``paddle.fluid.layers`` computes what Paddle 2.6.2 computes (tests/compat/data/layers.npz)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

GOLDEN = np.load(Path(__file__).parent / "data" / "layers.npz")


def at(name: str) -> np.ndarray:
    """An array of the golden file."""
    found: np.ndarray = GOLDEN[name]
    return found


def run(build: Callable[..., Any], **feeds: Any) -> list[np.ndarray]:
    """What a program gives that is built of inputs of these forms."""
    from paddle import fluid

    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        inputs = {}
        for name, value in feeds.items():
            array, level = (value[0], 1) if isinstance(value, tuple) else (value, 0)
            inputs[name] = fluid.layers.data(
                name, list(array.shape[1:]), dtype=str(array.dtype), lod_level=level
            )
        found = build(**inputs)
        found = list(found) if isinstance(found, (list, tuple)) else [found]
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    feed: dict[str, Any] = {}
    for name, value in feeds.items():
        if isinstance(value, tuple):
            feed[name] = fluid.create_lod_tensor(value[0], [value[1]], fluid.CPUPlace())
        else:
            feed[name] = value
    made = exe.run(main, feed=feed, fetch_list=found)
    names = [p.name for p in main.all_parameters()]
    run.names = names  # type: ignore[attr-defined]
    return [np.asarray(value) for value in made]


def attr(values: np.ndarray) -> Any:
    """A parameter that begins with these numbers."""
    from paddle import fluid

    return fluid.ParamAttr(initializer=fluid.initializer.NumpyArrayInitializer(values))


def layers() -> Any:
    """The module."""
    from paddle import fluid

    return fluid.layers


LENS = [2, 1, 4]

CASES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "conv2d_groups": (
        lambda x: layers().conv2d(
            input=x,
            num_filters=6,
            filter_size=3,
            stride=2,
            padding=1,
            groups=2,
            act="relu",
            param_attr=attr(at("w")),
            name=None,
            data_format="NCHW",
        ),
        {"x": "x4"},
    ),
    "conv2d_same": (
        lambda x: layers().conv2d(
            x, 6, 3, 2, "SAME", groups=2, param_attr=attr(at("w")), bias_attr=False
        ),
        {"x": "x4"},
    ),
    "conv2d_uneven": (
        lambda x: layers().conv2d(
            x, 6, 3, 1, [0, 1, 2, 0], 2, 2, param_attr=attr(at("w")), bias_attr=False
        ),
        {"x": "x4"},
    ),
    "conv3d": (
        lambda x: layers().conv3d(
            input=x,
            num_filters=3,
            filter_size=[3, 3, 3],
            padding=1,
            act="elu",
            param_attr=attr(at("w3")),
        ),
        {"x": "x5"},
    ),
    "conv2d_t": (
        lambda x: layers().conv2d_transpose(
            x,
            3,
            filter_size=3,
            stride=2,
            padding=1,
            bias_attr=False,
            param_attr=attr(at("wt")),
        ),
        {"x": "x4"},
    ),
    "conv2d_t_size": (
        lambda x: layers().conv2d_transpose(
            x, 3, 12, 3, 1, 2, bias_attr=False, param_attr=attr(at("wt"))
        ),
        {"x": "x4"},
    ),
    "pool2d_max": (lambda x: layers().pool2d(x, 3, "max", 2, 1), {"x": "x4"}),
    "pool2d_avg": (lambda x: layers().pool2d(x, 3, "avg", 2, 1), {"x": "x4"}),
    "pool2d_avgin": (lambda x: layers().pool2d(x, 3, "avg", 2, 1, exclusive=False), {"x": "x4"}),
    "pool2d_ceil": (lambda x: layers().pool2d(x, 3, "max", 2, ceil_mode=True), {"x": "x4"}),
    "pool2d_global": (
        lambda x: layers().pool2d(
            input=x, pool_type="avg", global_pooling=True, use_cudnn=False, data_format="NCHW"
        ),
        {"x": "x4"},
    ),
    "pool2d_wide": (lambda x: layers().pool2d(x, 2, "max", 2, [0, 1, 1, 0]), {"x": "x4"}),
    "pool3d": (
        lambda x: layers().pool3d(
            input=x,
            pool_type="max",
            pool_size=[2, 3, 3],
            pool_stride=[1, 2, 2],
            pool_padding=[0, 1, 1],
        ),
        {"x": "x5"},
    ),
    "batch_norm": (
        lambda x: layers().batch_norm(input=x, act="relu", is_test=False, data_layout="NCHW"),
        {"x": "x4"},
    ),
    "layer_norm": (
        lambda x: layers().layer_norm(x, begin_norm_axis=2, epsilon=1e-5),
        {"x": "x4"},
    ),
    "instance_norm": (lambda x: layers().instance_norm(x), {"x": "x4"}),
    "fc": (
        lambda x: layers().fc(
            input=x,
            size=3,
            num_flatten_dims=2,
            act="tanh",
            param_attr=attr(np.full((36, 3), 0.1, "float32")),
        ),
        {"x": "x4"},
    ),
    "cross_entropy": (
        lambda x, y: layers().cross_entropy(input=x, label=y),
        {"x": "p", "y": "lab_ign"},
    ),
    "swce": (
        lambda x, y: layers().softmax_with_cross_entropy(logits=x, label=y, return_softmax=True),
        {"x": "logits", "y": "lab_ign"},
    ),
    "swce_soft": (
        lambda x, y: layers().softmax_with_cross_entropy(x, y, soft_label=True),
        {"x": "logits", "y": "p"},
    ),
    "norm": (lambda x: layers().l2_normalize(x=x, axis=1), {"x": "logits"}),
    "kldiv": (lambda x, y: layers().kldiv_loss(x, y, "batchmean"), {"x": "logits", "y": "p"}),
    "embedding": (
        lambda x: layers().embedding(
            input=x,
            size=[9, 4],
            is_sparse=True,
            is_distributed=False,
            dtype="float32",
            padding_idx=int(at("ids")[1, 0]),
            param_attr=attr(at("tab")),
        ),
        {"x": "ids"},
    ),
    "hard_sigmoid": (lambda x: layers().hard_sigmoid(x), {"x": "logits"}),
    "hard_swish": (lambda x: layers().hard_swish(x), {"x": "logits"}),
    "swish": (lambda x: layers().swish(x), {"x": "logits"}),
    "gelu": (lambda x: layers().gelu(x), {"x": "logits"}),
    "stanh": (lambda x: layers().stanh(x), {"x": "logits"}),
    "selu": (lambda x: layers().selu(x), {"x": "logits"}),
    "label_smooth": (
        lambda x: layers().label_smooth(label=x, epsilon=0.1, dtype="float32"),
        {"x": "p"},
    ),
    "lrn": (lambda x: layers().lrn(x, n=5, k=1.0, alpha=1e-1, beta=0.75), {"x": "x4"}),
    **{
        f"seq_{kind}": (
            lambda x, kind=kind: layers().sequence_pool(input=x, pool_type=kind),
            {"x": ("rows", LENS)},
        )
        for kind in ("sum", "average", "sqrt", "max", "first", "last")
    },
    "seq_reverse": (lambda x: layers().sequence_reverse(x), {"x": ("rows", LENS)}),
    "seq_pad": (lambda x: layers().sequence_pad(x, 9.0, maxlen=5), {"x": ("rows", LENS)}),
    "seq_conv": (
        lambda x: layers().sequence_conv(
            x, 2, 3, bias_attr=False, param_attr=attr(np.full((9, 2), 0.1, "float32"))
        ),
        {"x": ("rows", LENS)},
    ),
}


def test_layers_compute_what_paddle_computes() -> None:
    keys = {key for _, inputs in CASES.values() for key in map(_key, inputs.values())}
    counts: dict[str, int] = {}

    def build(**inputs: Any) -> list[Any]:
        made = []
        for name, (layer, given) in CASES.items():
            found = layer(**{at: inputs[_key(value)] for at, value in given.items()})
            found = list(found) if isinstance(found, (list, tuple)) else [found]
            counts[name] = len(found)
            made += found
        return made

    found = run(build, **{key: (at(key), LENS) if key == "rows" else at(key) for key in keys})
    for name, count in counts.items():
        for index in range(count):
            wanted = at(f"{name}.{index}")
            if name == "embedding":  # this one loses the dimension of one that 2.6.2 keeps
                wanted = wanted[:, 0]
            value = found.pop(0).reshape(wanted.shape)
            np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=2e-6, err_msg=name)


def _key(value: Any) -> str:
    return value[0] if isinstance(value, tuple) else value


@pytest.mark.parametrize("name", ["conv2d_groups", "batch_norm", "fc", "embedding"])
def test_parameters_have_the_names_that_paddle_gives(name: str) -> None:
    build, inputs = CASES[name]
    run(build, **{key: at(_key(value)) for key, value in inputs.items()})
    assert run.names == at(f"{name}.params").tolist()  # type: ignore[attr-defined]


def test_losses_that_need_arrays_of_their_own() -> None:
    p, logits = at("p"), at("logits")
    soft = run(lambda x, y: layers().cross_entropy(x, y, soft_label=True), x=p, y=p[::-1].copy())
    np.testing.assert_allclose(soft[0], at("soft_ce.0"), rtol=1e-5)
    labels = np.where(p > 0.8, -100, p).astype("float32")
    sig = run(
        lambda x, y: layers().sigmoid_cross_entropy_with_logits(x=x, label=y, normalize=True),
        x=logits,
        y=labels,
    )
    np.testing.assert_allclose(sig[0], at("sigce.0"), rtol=1e-5, atol=1e-6)
    hit = (p[:, 1:2] > 0.2).astype("float32")
    log = run(lambda x, y: layers().log_loss(input=x, label=y), x=p[:, :1].copy(), y=hit)
    np.testing.assert_allclose(log[0], at("log_loss.0"), rtol=1e-5)
    left, right = logits[:, :1].copy(), p[:, :1].copy()
    huber = run(lambda x, y: layers().huber_loss(x, y, 0.5), x=left, y=right)
    np.testing.assert_allclose(huber[0], at("huber.0"), rtol=1e-5, atol=1e-6)
    cos = run(lambda x, y: layers().cos_sim(x, y), x=logits, y=p)
    lengths = np.linalg.norm(logits, axis=1) * np.linalg.norm(p, axis=1)
    np.testing.assert_allclose(cos[0][:, 0], (logits * p).sum(1) / lengths, rtol=1e-5)
    flat = run(
        lambda x: layers().conv2d(
            x,
            6,
            3,
            padding=1,
            groups=2,
            param_attr=attr(at("w")),
            bias_attr=False,
            data_format="NHWC",
        ),
        x=at("x4").transpose(0, 2, 3, 1).copy(),
    )
    np.testing.assert_allclose(flat[0].shape[1:], (6, 6, 6))


def test_records_expand_and_share() -> None:
    rows, logits = at("rows"), at("logits")
    more = run(lambda x, y: layers().sequence_expand(x, y), x=logits[:3].copy(), y=(rows, LENS))
    np.testing.assert_allclose(more[0], at("seq_expand.0"))
    shares = run(lambda x: layers().sequence_softmax(x), x=(rows[:, :1].copy(), LENS))
    np.testing.assert_allclose(shares[0], at("seq_softmax.0"), rtol=1e-5)
    pooled = run(
        lambda x: layers().sequence_pool(
            layers().embedding(x, [9, 4], param_attr=attr(at("tab"))), "sum"
        ),
        x=(np.array([[1], [2], [3], [4]]), [1, 3]),
    )
    table = at("tab")
    np.testing.assert_allclose(pooled[0], [table[1], table[2] + table[3] + table[4]], rtol=1e-6)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_auc_counts_over_all_and_over_the_last_batches(steps: int) -> None:
    from paddle import fluid

    scores = fluid.layers.data("s", [2])
    label = fluid.layers.data("l", [1], dtype="int64")
    whole, recent, states = fluid.layers.auc(
        input=scores, label=label, num_thresholds=63, slide_steps=steps
    )
    assert len(states) == 4
    share = fluid.layers.accuracy(input=scores, label=label, k=1)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    for score, hit, wanted in zip(at("score"), at("hit"), at(f"auc_{steps}"), strict=True):
        feed = {"s": np.stack([1 - score, score], 1), "l": hit[:, None]}
        found = exe.run(feed=feed, fetch_list=[whole, recent, share])
        np.testing.assert_allclose([float(np.ravel(v)[0]) for v in found], wanted, rtol=1e-5)
