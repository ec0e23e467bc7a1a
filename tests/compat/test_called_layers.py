# ruff: noqa: PLW0108 (names are counted where they are called)
"""Layers and functions of programs, each called with keywords that real scripts pass.

What other tests call is not called again; ``test_called_names.py`` counts them all.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Case = tuple[Callable[..., Any], dict[str, Any], Any]
"""Builds variables from inputs; the inputs; what must come out."""

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]], "float32")
Y = np.array([[2.0, 0.5, 1.0], [-1.0, 2.0, 4.0]], "float32")
UNIT = np.array([[0.2, 0.3, 0.5], [0.7, 0.2, 0.1]], "float32")
WHOLE = np.array([[1], [2]], "int64")
PICTURE = np.arange(32, dtype="float32").reshape(1, 2, 4, 4)
CUBE = np.arange(16, dtype="float32").reshape(1, 2, 2, 2, 2)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def column_of_tens() -> Any:
    return np.array([[10.0], [20.0]], "float32")


def computed(build: Callable[..., Any], feeds: dict[str, Any]) -> list[Any]:
    """The values of what a function builds from inputs."""
    from paddle import fluid

    main, startup = fluid.Program(), fluid.Program()
    with (
        fluid.scope_guard(fluid.Scope()),
        fluid.program_guard(main, startup),
        fluid.unique_name.guard(),
    ):
        made = build(*(fluid.data(n, [*a.shape], str(a.dtype)) for n, a in feeds.items()))
        fetches = [*made] if isinstance(made, (list, tuple)) else [made]
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(startup)
        return [*map(np.asarray, executor.run(main, feeds, fetches))]


def check(cases: list[Case]) -> None:
    wrong = []
    for number, (build, feeds, wanted) in enumerate(cases):
        expected = [*wanted] if isinstance(wanted, tuple) else [wanted]
        try:
            found = computed(build, feeds)
            for got, want in zip(found, expected, strict=True):
                assert got.reshape(-1) == pytest.approx(np.asarray(want).reshape(-1), abs=1e-5)
                assert got.shape == np.shape(want) or np.size(want) == 1
        except Exception as error:  # all of them are told, not the first alone
            wrong.append(f"{number}: {type(error).__name__} {error}")
    assert not wrong, "\n".join(wrong)


def elements() -> list[Case]:
    """Each element for itself, or with that of another tensor."""
    from paddle import fluid
    from paddle.fluid.layers import ops

    layers = fluid.layers
    one, two = {"x": X}, {"x": X, "y": Y}
    whole = {"x": np.array([1, 2], "int64"), "y": np.array([1, 3], "int64")}
    column = {"x": X, "y": np.array([10.0, 20.0], "float32")}
    return [
        (lambda x, y: layers.elementwise_add(x, y, axis=0, name="a"), column, X + column_of_tens()),
        (lambda x, y: layers.elementwise_sub(x=x, y=y, axis=-1), two, X - Y),
        (lambda x, y: layers.elementwise_mul(x=x, y=y, axis=0), column, X * column_of_tens()),
        (lambda x, y: layers.elementwise_div(x, y, name="d"), two, X / Y),
        (lambda x, y: layers.elementwise_max(x, y), two, np.maximum(X, Y)),
        (lambda x, y: layers.cast(layers.equal(x, y), "int64"), whole, [1, 0]),
        (lambda x: layers.cast(layers.logical_not(x > 0), "int64"), one, (X <= 0).astype(int)),
        (lambda x: layers.softsign(x), one, X / (1 + abs(X))),
        (lambda x: ops.cos(x), one, np.cos(X)),
        (lambda x: ops.floor(x), one, np.floor(X)),
        (lambda x: layers.sigmoid(x), one, sigmoid(X)),
        (lambda x: layers.tanh(x), one, np.tanh(X)),
        (lambda x: layers.pow(x, 2.0), one, X**2),
        (lambda x: layers.clip(x, min=-1.0, max=2.0), one, X.clip(-1, 2)),
        (lambda x: layers.log(x), {"x": UNIT}, np.log(UNIT)),
        (lambda x: layers.rsqrt(x), {"x": UNIT}, UNIT**-0.5),
        (lambda x: layers.softmax(x, use_cudnn=False), one, softmax(X)),
        (lambda x: layers.mean(x, name="m"), one, X.mean()),
        (lambda x: layers.reduce_sum(input=x), one, X.sum()),
        (lambda x: layers.reduce_mean(x, dim=1, keep_dim=True), one, X.mean(1, keepdims=True)),
        (lambda x: layers.dropout(x=x, dropout_prob=0.5, is_test=True), one, X / 2),
    ]


def shapes() -> list[Case]:
    """Other arrangements of the same numbers."""
    import paddle
    from paddle import fluid

    layers = fluid.layers
    one = {"x": X}
    at = {"x": X, "at": np.array([[0, 1], [1, 2]], "int64")}
    return [
        (lambda x: layers.concat(input=[x, x], axis=1), one, np.concatenate([X, X], 1)),
        (lambda x: layers.slice(input=x, axes=[1], starts=[1], ends=[3]), one, X[:, 1:3]),
        (lambda x: layers.unsqueeze(input=x, axes=[1]), one, X[:, None]),
        (lambda x: layers.squeeze(layers.unsqueeze(x, [0]), [0]), one, X),
        (lambda x: layers.unstack(x=x, axis=0), one, (X[0], X[1])),
        (lambda x: layers.expand(x, [2, 1]), one, np.tile(X, (2, 1))),
        (lambda x, y: layers.expand_as(x, y), {"x": X[:1], "y": Y}, np.tile(X[:1], (2, 1))),
        (lambda x, at: layers.gather_nd(x, at), at, [X[0, 1], X[1, 2]]),
        (lambda: layers.range(0, 6, 2, dtype="int64"), {}, np.array([0, 2, 4])),
        (lambda x: layers.shape(x), one, np.array([2, 3])),
        (lambda x: layers.argmax(x, axis=1), one, X.argmax(1)),
        (lambda x: layers.topk(input=x, k=2), one, (np.sort(X)[:, :0:-1], [[2, 0], [1, 0]])),
        (
            lambda x: layers.fill_constant_batch_size_like(
                input=x, shape=[1, 4], dtype="float32", value=7
            ),
            one,
            np.full((2, 4), 7.0),
        ),
        (lambda x: layers.one_hot(input=x, depth=3), {"x": WHOLE}, np.eye(3)[[1, 2]]),
        (
            lambda x: layers.label_smooth(label=x, epsilon=0.1, dtype="float32"),
            {"x": np.eye(3, dtype="float32")},
            0.9 * np.eye(3) + 0.1 / 3,
        ),
        (
            lambda x: layers.sequence_pool(layers.lod_reset(x, target_lod=[0, 1, 2]), "sum"),
            one,
            X,
        ),
        (
            lambda x: paddle.static.nn.embedding(
                input=x, size=[4, 2], param_attr=_filled(np.arange(8).reshape(4, 2))
            ),
            {"x": WHOLE[:, 0]},
            [[2, 3], [4, 5]],
        ),
    ]


def _filled(values: Any) -> Any:
    from paddle import fluid

    return fluid.ParamAttr(
        initializer=fluid.initializer.NumpyArrayInitializer(np.asarray(values, "float32"))
    )


def losses() -> list[Case]:
    """What is minimised, and layers with parameters."""
    from paddle import fluid

    layers = fluid.layers
    pair = {"x": X, "y": Y}
    soft, wanted = {"x": UNIT, "y": softmax(Y)}, softmax(Y)
    binary = {"x": UNIT[:, :1], "y": np.array([[0.0], [1.0]], "float32")}
    norms = np.sqrt((X**2).sum(1, keepdims=True))
    centred = X - X.mean(1, keepdims=True)
    spread = np.sqrt(X.var(1, keepdims=True) + 1e-3)
    likely = binary["y"] * np.log(UNIT[:, :1] + 1e-4)
    likely += (1 - binary["y"]) * np.log(1 - UNIT[:, :1] + 1e-4)
    table = np.arange(8).reshape(4, 2)
    return [
        (lambda x, y: layers.matmul(x, y, transpose_y=True, alpha=0.5), pair, X @ Y.T / 2),
        (
            lambda x, y: layers.cross_entropy(x, y, soft_label=True),
            soft,
            -(wanted * np.log(UNIT)).sum(1, keepdims=True),
        ),
        (
            lambda x, y: layers.softmax_with_cross_entropy(x, y, soft_label=True),
            {"x": X, "y": wanted},
            -(wanted * np.log(softmax(X))).sum(1, keepdims=True),
        ),
        (
            lambda x, y: layers.sigmoid_cross_entropy_with_logits(x=x, label=y),
            {"x": X, "y": UNIT},
            -UNIT * np.log(sigmoid(X)) - (1 - UNIT) * np.log(1 - sigmoid(X)),
        ),
        (lambda x, y: layers.log_loss(input=x, label=y), binary, -likely),
        (
            lambda x, y: layers.cos_sim(x, y),
            pair,
            (X * Y).sum(1, keepdims=True) / norms / np.sqrt((Y**2).sum(1, keepdims=True)),
        ),
        (lambda x: layers.l2_normalize(x=x, axis=1), {"x": X}, X / norms),
        (lambda x: layers.layer_norm(input=x, epsilon=1e-3), {"x": X}, centred / spread),
        (
            lambda x: layers.embedding(
                x,
                size=[4, 2],
                dtype="float32",
                padding_idx=2,
                is_distributed=False,
                param_attr=_filled(table),
            ),
            {"x": WHOLE},
            [[2, 3], [0, 0]],
        ),
        (
            lambda x: layers.batch_norm(x, data_layout="NHWC", is_test=True),
            {"x": PICTURE.transpose(0, 2, 3, 1)},
            PICTURE.transpose(0, 2, 3, 1) / np.sqrt(1 + 1e-5),
        ),
    ]


def windows() -> list[Case]:
    """Windows over pictures and over what has three dimensions."""
    from paddle import fluid

    layers = fluid.layers
    halves = PICTURE.reshape(1, 2, 2, 2, 2, 2)
    return [
        (
            lambda x: layers.conv2d(
                x, 1, 1, data_format="NCHW", name="c", param_attr=_filled(np.ones((1, 2, 1, 1)))
            ),
            {"x": PICTURE},
            PICTURE.sum(1, keepdims=True),
        ),
        (
            lambda x: layers.pool2d(x, 2, "avg", 2, data_format="NCHW"),
            {"x": PICTURE},
            halves.mean((3, 5)),
        ),
        (
            lambda x: layers.conv3d(
                input=x,
                num_filters=1,
                filter_size=2,
                padding=0,
                act="relu",
                bias_attr=False,
                name="c3",
                param_attr=_filled(np.ones((1, 2, 2, 2, 2))),
            ),
            {"x": CUBE},
            CUBE.sum().reshape(1, 1, 1, 1, 1),
        ),
        (
            lambda x: layers.pool3d(
                input=x, pool_size=2, pool_stride=2, pool_padding=0, pool_type="max"
            ),
            {"x": CUBE},
            CUBE.max((2, 3, 4), keepdims=True),
        ),
    ]


@pytest.mark.parametrize("cases", [elements, shapes, losses, windows])
def test_layers_compute_what_formulas_say(cases: Callable[[], list[Case]]) -> None:
    check(cases())


def test_records_are_those_of_another_variable() -> None:
    from paddle import fluid

    x = fluid.data("x", [None, 3], "float32")
    y = fluid.data("y", [None, 1], "int64", lod_level=1)
    sums = fluid.layers.sequence_pool(fluid.layers.lod_reset(x, y), "sum")
    feed = {"x": X, "y": fluid.create_lod_tensor(WHOLE, [[2]], fluid.CPUPlace())}
    (found,) = fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=[sums])
    assert found == pytest.approx(X.sum(0, keepdims=True))


def started(make: Callable[[], Any], shape: list[int]) -> Any:
    """First values by an initializer."""
    from paddle import fluid

    def build() -> Any:
        return fluid.layers.create_parameter(
            shape, "float32", attr=fluid.ParamAttr(initializer=make())
        )

    return computed(build, {})[0]


def test_initializers_draw_where_they_are_told() -> None:
    from paddle import fluid

    first = fluid.initializer
    assert (started(lambda: first.Constant(3.0, force_cpu=True), [2, 2]) == 3).all()
    uniform = started(lambda: first.Uniform(low=2.0, high=3.0), [50, 20])
    assert 2 <= uniform.min() < 2.1
    assert 2.9 < uniform.max() <= 3
    wide = started(lambda: first.XavierInitializer(fan_in=1, fan_out=5), [50, 20])
    assert 0.95 < abs(wide).max() <= 1
    narrow = started(lambda: first.Xavier(), [50, 50])
    assert 0.95 < abs(narrow).max() / np.sqrt(6 / 100) <= 1
    cut = started(lambda: first.TruncatedNormalInitializer(loc=5.0, scale=1.0), [50, 20])
    assert 3 <= cut.min() <= cut.max() <= 7
    assert cut.mean() == pytest.approx(5, abs=0.2)


def after_steps(optimizer: Callable[[], Any], attr: Callable[[], Any] | None = None) -> Any:
    """A weight that begins with 1, after two updates by the gradient 2."""
    from paddle import fluid

    main, startup = fluid.Program(), fluid.Program()
    with (
        fluid.scope_guard(fluid.Scope()),
        fluid.program_guard(main, startup),
        fluid.unique_name.guard(),
    ):
        given = attr() if attr else fluid.ParamAttr()
        given.initializer = fluid.initializer.Constant(1.0)
        weight = fluid.layers.create_parameter([1], "float32", attr=given)
        moves = fluid.layers.create_parameter([1], "float32")
        optimizer().minimize(fluid.layers.mean(weight * 2 + moves))
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(startup)
        for _ in range(2):
            executor.run(main, {}, [])
        return float(np.asarray(executor.run(main, {}, [weight], use_prune=True)[0])[0])


def test_optimizers_take_what_scripts_give_them() -> None:
    from paddle import fluid

    rate, decay = 0.1, fluid.regularizer.L2Decay(0.5)
    limit = fluid.clip.GradientClipByValue(max=1.0, min=-1.0)
    sgd = fluid.optimizer.SGD
    wanted = {
        "sgd": 1.0,
        "momentum": 1.0,
        "l1": 1 - 2 * rate * (2 + 0.5),
        "clipped": 1 - 2 * rate * 1.0,
        "fixed": 1.0,
        "own": 1 - rate * (2 + 0.5),
    }
    for name, speed in (("sgd", 0.0), ("momentum", 0.9)):
        velocity = 0.0
        for _ in range(2):
            velocity = speed * velocity + 2 + 0.5 * wanted[name]
            wanted[name] -= rate * velocity
    wanted["own"] -= rate * (2 + 0.5 * wanted["own"])
    l1 = fluid.regularizer.L1DecayRegularizer(0.5)
    adam = fluid.optimizer.Adam
    found = {
        "sgd": after_steps(lambda: sgd(learning_rate=rate, regularization=decay)),
        "momentum": after_steps(
            lambda: fluid.optimizer.Momentum(rate, momentum=0.9, regularization=decay)
        ),
        "l1": after_steps(lambda: sgd(rate, regularization=l1)),
        "clipped": after_steps(lambda: sgd(rate, grad_clip=limit)),
        "fixed": after_steps(lambda: sgd(rate), lambda: fluid.ParamAttr(trainable=False)),
        "own": after_steps(lambda: sgd(rate), lambda: fluid.ParamAttr(regularizer=decay)),
        "adam": after_steps(
            lambda: adam(rate, beta1=0.9, beta2=0.999, epsilon=1e-8, grad_clip=limit)
        ),
        "rms": after_steps(
            lambda: fluid.optimizer.RMSProp(
                learning_rate=rate, epsilon=1e-6, momentum=0.0, regularization=None
            )
        ),
    }
    wanted["adam"] = 1 - 2 * rate
    squares, wanted["rms"] = 0.0, 1.0
    for _ in range(2):
        squares = 0.95 * squares + 0.05 * 4
        wanted["rms"] -= rate * 2 / np.sqrt(squares + 1e-6)
    assert found == pytest.approx(wanted, rel=1e-4)


def test_programs_are_saved_and_loaded_by_keywords(tmp_path: Path) -> None:
    import paddle
    from paddle import fluid

    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        x = fluid.data("x", [None, 3], "float32")
        y = fluid.layers.fc(x, 2, param_attr=fluid.ParamAttr("w"), bias_attr=False)
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(startup)
    kept = np.array(fluid.global_scope().find_var("w").get_tensor())
    folders = [str(tmp_path / name) for name in ("all", "parameters", "model")]
    fluid.io.save_persistables(executor=executor, dirname=folders[0], main_program=main)
    fluid.io.save_params(executor, folders[1], main_program=main)
    fluid.io.save_inference_model(
        dirname=folders[2],
        feeded_var_names=["x"],
        target_vars=[y],
        executor=executor,
        main_program=main,
        model_filename="model",
        params_filename="params",
    )

    def read() -> Any:
        found = np.array(fluid.global_scope().find_var("w").get_tensor())
        fluid.global_scope().find_var("w").get_tensor().set(0 * kept, fluid.CPUPlace())
        return found.tolist()

    assert read() == kept.tolist()
    assert read() != kept.tolist()
    fluid.io.load_persistables(executor=executor, dirname=folders[0], main_program=main)
    assert read() == kept.tolist()
    paddle.static.load_vars(
        executor=executor, dirname=folders[1], main_program=main, predicate=lambda var: True
    )
    assert read() == kept.tolist()
    program, feeds, fetches = fluid.io.load_inference_model(
        folders[2], executor, model_filename="model", params_filename="params"
    )
    (found,) = executor.run(program, {feeds[0]: X}, fetches)
    assert found == pytest.approx(X @ kept, abs=1e-5)


def test_small_things_around_programs(tmp_path: Path) -> None:
    import paddle
    from paddle import fluid
    from paddle.fluid import core
    from paddle.fluid.contrib import memory_usage
    from paddle.fluid.contrib.reader import distributed_batch_reader
    from paddle.fluid.framework import Parameter, Variable
    from paddle.fluid.proto import framework_pb2
    from paddle.fluid.transpiler.details import program_to_code

    x = fluid.data("x", [4, 3], "float32")
    assert isinstance(x, Variable)
    assert isinstance(x, fluid.Variable)
    assert not fluid.in_dygraph_mode()
    assert not fluid.framework.in_dygraph_mode()
    block = fluid.default_main_program().global_block()
    made = Parameter(
        block,
        shape=[3],
        dtype="float32",
        type=None,
        name="p",
        lod_level=0,
        stop_gradient=True,
        trainable=False,
        regularizer=None,
        gradient_clip_attr=None,
        error_clip=None,
    )
    assert made.name == "p"
    fluid.layers.fc(x, 2)
    least, most, unit = memory_usage(program=fluid.default_main_program(), batch_size=4)
    assert 0 < least <= most
    assert unit in {"B", "KB", "MB", "GB"}
    file = tmp_path / "code"
    with open(file, "w") as out:
        program_to_code(fluid.default_main_program(), fout=out)
    assert "fc_0.w_0" in file.read_text()
    assert list(distributed_batch_reader(lambda: iter([1, 2]))()) == [1, 2]
    kinds = framework_pb2.VarType
    assert len({kinds.FP16, kinds.INT8, kinds.INT32, kinds.INT64}) == 4
    assert core.PaddleDType.INT32 != core.PaddleDType.INT64
    role = core.op_proto_and_checker_maker.OpRole
    assert role.Forward != role.Optimize
    names = fluid.unique_name.UniqueNameGenerator()
    assert [names("fc"), names("fc")] == ["fc_0", "fc_1"]
    major, _ = paddle.__version__.split(".", 1)
    assert int(major) == 2
    loaders = [
        fluid.io.DataLoader.from_generator(
            feed_list=[x], capacity=2, use_double_buffer=False, iterable=True
        ),
        paddle.io.DataLoader.from_generator(
            feed_list=[x], capacity=2, use_double_buffer=False, iterable=True
        ),
    ]
    for loader in loaders:
        loader.set_batch_generator(lambda: iter([[np.ones((4, 3), "float32")]]), fluid.CPUPlace())
        (batch,) = loader()
        given = batch[0] if isinstance(batch, list) else batch
        assert np.asarray(given["x"]).shape == (4, 3)


def test_a_handler_sees_values_while_a_data_set_is_read() -> None:
    from paddle import fluid
    from paddle.fluid.executor import FetchHandler

    class Told(FetchHandler):  # type: ignore[misc]
        def handler(self, res_dict: Any) -> None:
            told.append(res_dict)

    told: list[Any] = []
    x = fluid.data("x", [4, 3], "float32")
    handler = Told({"x": x}, period_secs=7)
    assert handler.period_secs == 7
    handler.handler({"x": 1})
    assert told == [{"x": 1}]
