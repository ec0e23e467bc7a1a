"""Every operator of ``paddle.fluid.layers`` that old scripts use, with the keywords that occur."""

from typing import Any

import numpy as np
import pytest

RNG = np.random.RandomState(3)
X = RNG.rand(4, 6).astype("float32") + 0.1
Y = RNG.rand(4, 6).astype("float32") + 0.1
Z = RNG.rand(4, 2, 3).astype("float32")
N = RNG.randint(0, 4, (4, 1))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """The formula."""
    found: np.ndarray = 1 / (1 + np.exp(-x))
    return found


def cases(layers: Any, x: Any, y: Any, z: Any, n: Any) -> dict[str, tuple[Any, Any]]:
    """Name -> what the operator gives, and what it must give."""
    ops, tensor = layers.ops, layers.tensor
    f32 = "float32"
    row = X[0]
    return {
        "mean": (layers.mean(x=x, name="avg"), [X.mean()]),
        "mean 2": (layers.mean(x, "loss"), [X.mean()]),
        "cast": (layers.cast(x=x, dtype="int64"), X.astype("int64")),
        "cast 2": (layers.cast(n, "float32"), N),
        "reshape": (layers.reshape(x=x, shape=[0, 2, 3], inplace=True), X.reshape(4, 2, 3)),
        "reshape 2": (layers.reshape(z, [-1, z.shape[-1]]), Z.reshape(-1, 3)),
        "reduce_sum": (layers.reduce_sum(input=x, dim=1, keep_dim=True), X.sum(1, keepdims=True)),
        "reduce_sum 2": (layers.reduce_sum(x), [X.sum()]),
        "reduce_sum 3": (layers.reduce_sum(z, dim=[1, 2]), Z.sum((1, 2))),
        "reduce_mean": (layers.reduce_mean(x, dim=-1, keep_dim=True), X.mean(1, keepdims=True)),
        "reduce_max": (layers.reduce_max(x, dim=1), X.max(1)),
        "reduce_min": (layers.reduce_min(x), [X.min()]),
        "reduce_prod": (layers.reduce_prod(z, dim=[1, 2]), Z.prod((1, 2))),
        "concat": (layers.concat(input=[x, y], axis=1), np.concatenate([X, Y], 1)),
        "concat 2": (layers.concat([x, y], 0), np.concatenate([X, Y], 0)),
        "matmul": (layers.matmul(x=x, y=y, transpose_y=True, alpha=0.5), X @ Y.T * 0.5),
        "matmul 2": (layers.matmul(x, y, transpose_x=True), X.T @ Y),
        "mul": (layers.mul(z, layers.reshape(x[:6], [6, -1])), Z.reshape(4, 6) @ _square()),
        "softmax": (layers.softmax(x, use_cudnn=False), _softmax(X)),
        "elementwise_add": (layers.elementwise_add(x=x, y=y, act="relu", name="s"), X + Y),
        "elementwise_add axis": (
            layers.elementwise_add(x=z, y=layers.reduce_mean(z, dim=2), axis=0),
            Z + Z.mean(2)[..., None],
        ),
        "elementwise_sub": (layers.elementwise_sub(x=x, y=y, axis=-1), X - Y),
        "elementwise_mul": (
            layers.elementwise_mul(x=x, y=layers.reduce_mean(x, dim=1), axis=0),
            X * X.mean(1)[:, None],
        ),
        "elementwise_div": (layers.elementwise_div(x, y, name="q"), X / Y),
        "elementwise_max": (layers.elementwise_max(x, y), np.maximum(X, Y)),
        "elementwise_min": (layers.elementwise_min(x, y), np.minimum(X, Y)),
        "elementwise_pow": (layers.elementwise_pow(x, y), X**Y),
        "elementwise_mod": (layers.elementwise_mod(n, n + 1), N % (N + 1)),
        "elementwise_floordiv": (layers.elementwise_floordiv(n, n + 1), N // (N + 1)),
        "fill_constant": (
            layers.fill_constant(shape=[2, 1], dtype=f32, value=0.5, force_cpu=True),
            [[0.5], [0.5]],
        ),
        "fill_constant 2": (layers.fill_constant([1], "int64", 3), [3]),
        "fill_like": (
            layers.fill_constant_batch_size_like(input=x, shape=[-1, 2], dtype=f32, value=2.0),
            np.full((4, 2), 2.0),
        ),
        "scale": (
            layers.scale(x=x, scale=10.0, bias=-1.0, bias_after_scale=False),
            (X - 1) * 10,
        ),
        "scale 2": (layers.scale(x, scale=2.0, bias=1.0), X * 2 + 1),
        "equal": (layers.equal(n, n), np.ones((4, 1), bool)),
        "not_equal": (layers.not_equal(n, n + 1), np.ones((4, 1), bool)),
        "less_than": (layers.less_than(x=x, y=y), X < Y),
        "greater_than": (layers.greater_than(x, y), X > Y),
        "less_equal": (layers.less_equal(x, y), X <= Y),
        "greater_equal": (layers.greater_equal(x, y), X >= Y),
        "logical_not": (layers.logical_not(x > y), X <= Y),
        "logical_or": (layers.logical_or(x > y, x < y), X != Y),
        "gather": (layers.gather(input=x, index=n), X[N[:, 0]]),
        "gather_nd": (layers.gather_nd(x, layers.concat([n, n], 1)), X[N[:, 0], N[:, 0]]),
        "scatter": (layers.scatter(x, n[:1], y[:1]), _scattered()),
        "stack": (layers.stack(x=[x, y], axis=1), np.stack([X, Y], 1)),
        "unstack": (layers.unstack(x=z, axis=1)[1], Z[:, 1]),
        "transpose": (layers.transpose(x=z, perm=[0, 2, 1]), Z.transpose(0, 2, 1)),
        "split": (layers.split(x, 3, dim=1)[1], X[:, 2:4]),
        "split 2": (layers.split(x, [1, -1], dim=-1)[1], X[:, 1:]),
        "squeeze": (layers.squeeze(n, [-1]), N[:, 0]),
        "unsqueeze": (layers.unsqueeze(input=x, axes=[1, 2]), X[:, None, None]),
        "expand": (layers.expand(n, [1, 3]), np.tile(N, (1, 3))),
        "expand_as": (layers.expand_as(n, x), np.broadcast_to(N, (4, 6))),
        "flatten": (layers.flatten(z, axis=2), Z.reshape(8, 3)),
        "slice": (layers.slice(input=x, axes=[0, 1], starts=[1, 2], ends=[3, 100]), X[1:3, 2:]),
        "shape": (layers.shape(x), [4, 6]),
        "pad": (layers.pad(x, [0, 1, 2, 0], 5.0), np.pad(X, [(0, 1), (2, 0)], constant_values=5)),
        "one_hot": (layers.one_hot(input=n, depth=5), np.eye(5)[N[:, 0]]),
        "topk": (layers.topk(input=x, k=2)[0], np.sort(X, 1)[:, ::-1][:, :2]),
        "argmax": (layers.argmax(x, axis=1), X.argmax(1)),
        "argsort": (layers.argsort(x, axis=1)[0], np.sort(X, 1)),
        "range": (layers.range(0, 6, 2, dtype="int64"), [0, 2, 4]),
        "assign": (layers.assign(np.array([1.5])), [1.5]),
        "zeros": (layers.zeros([2], "int64"), [0, 0]),
        "ones": (layers.ones([2], f32), [1, 1]),
        "sums": (layers.sums([x, y]), X + Y),
        "sum": (layers.sum([x, y, x]), X + Y + X),
        "clip": (layers.clip(x, min=0.3, max=0.5), X.clip(0.3, 0.5)),
        "pow": (layers.pow(x, 2.0), X**2),
        "label_smooth": (layers.label_smooth(label=x, epsilon=0.1, dtype=f32), 0.9 * X + 0.1 / 6),
        "square_error_cost": (layers.square_error_cost(x, y), (X - Y) ** 2),
        "smooth_l1": (layers.smooth_l1(x, y), _smooth(X - Y).sum(1, keepdims=True)),
        "sequence_mask": (
            layers.sequence_mask(n, maxlen=4, dtype=f32),
            (np.arange(4) < N[..., None]).astype(f32),
        ),
        "cumsum": (layers.cumsum(x, axis=1), X.cumsum(1)),
        "cumsum 2": (layers.cumsum(x, exclusive=True, reverse=True), _after(X)),
        "l2": (
            layers.l2_normalize(x=x, axis=1),
            X / np.sqrt((X**2).sum(1, keepdims=True)),
        ),
        "tensor.concat": (tensor.concat([x, y], axis=0), np.concatenate([X, Y])),
        "linspace": (layers.linspace(0.0, 1.0, 3), [0, 0.5, 1]),
        "eye": (layers.eye(2), np.eye(2)),
        "has_nan": (layers.has_nan(x), [False]),
        "isfinite": (layers.isfinite(x), [True]),
        "maxout": (layers.maxout(z[:, :, None], 2), Z.max(1)[:, None, None]),
        "soft_relu": (layers.soft_relu(x), np.log1p(np.exp(X))),
        "ops.floor": (ops.floor(x * 3), np.floor(X * 3)),
        "ops.cos": (ops.cos(x), np.cos(X)),
        "softsign": (layers.softsign(x), X / (1 + X)),
        "sigmoid": (layers.sigmoid(x), sigmoid(X)),
        "tanh": (layers.tanh(x), np.tanh(X)),
        "rsqrt": (layers.rsqrt(x), X**-0.5),
        "square": (layers.square(x), X**2),
        "log": (layers.log(x), np.log(X)),
        "exp": (layers.exp(x), np.exp(X)),
        "leaky_relu": (layers.leaky_relu(x - 0.5), np.where(X > 0.5, X - 0.5, (X - 0.5) * 0.02)),
        "_c_allreduce": (
            layers.collective._c_allreduce(x, reduce_type="sum", use_calc_stream=True),
            X,
        ),
        "_c_allgather": (layers.collective._c_allgather(x, 1, use_calc_stream=True), X),
        "row": (x[0], row),
    }


def _square() -> np.ndarray:
    found: np.ndarray = X.reshape(-1)[:24].reshape(6, -1)
    return found


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x)
    found: np.ndarray = powers / powers.sum(-1, keepdims=True)
    return found


def _scattered() -> np.ndarray:
    found = X.copy()
    found[N[0, 0]] = Y[0]
    return found


def _smooth(apart: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.where(np.abs(apart) < 1, 0.5 * apart**2, np.abs(apart) - 0.5)
    return found


def _after(x: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.flip(np.flip(x, 1).cumsum(1), 1) - x
    return found


def check(found: Any, wanted: Any, name: str) -> None:
    """Shapes and numbers."""
    wanted = np.asarray(wanted)
    assert list(np.shape(found)) == list(wanted.shape), name
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=2e-5, atol=1e-6, err_msg=name)


def test_operators_in_a_program() -> None:
    from paddle import fluid

    made = [
        fluid.layers.data(name, list(value.shape), append_batch_size=False, dtype=str(value.dtype))
        for name, value in (("x", X), ("y", Y), ("z", Z), ("n", N))
    ]
    pairs = cases(fluid.layers, *made)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    feed = {"x": X, "y": Y, "z": Z, "n": N}
    found = exe.run(feed=feed, fetch_list=[given for given, _ in pairs.values()])
    for (name, (_, wanted)), value in zip(pairs.items(), found, strict=True):
        check(value, wanted, name)


def test_operators_on_eager_tensors() -> None:
    import paddle
    from paddle import fluid

    paddle.disable_static()
    pairs = cases(fluid.layers, *(paddle.to_tensor(value) for value in (X, Y, Z, N)))
    for name, (found, wanted) in pairs.items():
        check(found.numpy(), wanted, name)


def test_readers_feed_what_they_declare() -> None:
    from paddle import fluid

    reader = fluid.layers.py_reader(
        capacity=4,
        shapes=[[-1, 3], [-1, 1]],
        dtypes=["float32", "int64"],
        lod_levels=[0, 0],
        name="train_reader",
        use_double_buffer=True,
    )
    image, label = fluid.layers.read_file(reader)
    total = fluid.layers.reduce_sum(image) + fluid.layers.cast(
        fluid.layers.reduce_sum(label), "float32"
    )
    reader.decorate_paddle_reader(
        lambda: iter([[(np.ones(3), 1), (np.ones(3), 2)], [(np.ones(3), 3), (np.ones(3), 4)]])
    )
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    for _ in range(2):
        reader.start()
        found = [float(np.ravel(exe.run(fetch_list=[total])[0])[0]) for _ in range(2)]
        with pytest.raises(fluid.core.EOFException):
            exe.run(fetch_list=[total])
        reader.reset()
        assert found == [9.0, 13.0]


def test_readers_of_inputs() -> None:
    from paddle import fluid

    inputs = [fluid.layers.data("a", [2]), fluid.layers.data("b", [1], dtype="int64", lod_level=1)]
    reader = fluid.layers.create_py_reader_by_data(
        capacity=4, feed_list=inputs, name="r", use_double_buffer=False
    )
    a, b = fluid.layers.read_file(reader)
    rows = fluid.layers.embedding(
        b, [9, 1], param_attr=fluid.ParamAttr(initializer=fluid.initializer.Constant(1.0))
    )
    found = fluid.layers.sequence_pool(input=rows, pool_type="sum") + a
    reader.decorate_paddle_reader(lambda: iter([[([1.0, 2.0], [1, 2, 3]), ([3.0, 4.0], [5])]]))
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    reader.start()
    (value,) = exe.run(fetch_list=[found])
    assert np.asarray(value).tolist() == [[4, 5], [4, 5]]


def test_nests() -> None:
    from paddle.fluid.layers.utils import flatten, map_structure, pack_sequence_as

    nest = {"a": [1, (2, 3)], "b": 4}
    assert map_structure(lambda v: v * 2, nest) == {"a": [2, (4, 6)], "b": 8}
    assert flatten(nest) == [1, 2, 3, 4]
    assert pack_sequence_as(nest, [5, 6, 7, 8]) == {"a": [5, (6, 7)], "b": 8}


def exchanged() -> dict[str, list[Any]]:
    """What one of two workers gets, in a program."""
    import fleetx as fleet
    from fleetx import static
    from fleetx.compat import imports, modes

    fleet.init(is_collective=True)
    imports.install()
    modes.forget()
    from paddle import fluid

    rank = fleet.worker_index()
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        layers = fluid.layers
        x = layers.data("x", [2], append_batch_size=False)
        moved = layers.collective
        found = {
            "sum": moved._c_allreduce(x, reduce_type="sum", use_calc_stream=True),
            "max": moved._c_allreduce(x, reduce_type="max", use_calc_stream=True),
            "all": moved._c_allgather(x, 2, use_calc_stream=True),
            "part": moved._c_reducescatter(x, 2),
            "sent": moved._c_broadcast(x + 0.0, root=1, ring_id=0, use_calc_stream=True),
            "old": moved._broadcast(x + 0.0, 1, True),
        }
        given = x + 0.0
        block = main.global_block()
        block.append_op(type="c_allreduce_sum", inputs={"X": given}, outputs={"Out": given})
        found["op"] = given
    feed = {"x": np.array([1.0, 2.0], "float32") + rank}
    values = fluid.Executor(fluid.CPUPlace()).run(main, feed=feed, fetch_list=list(found.values()))
    imports.uninstall()
    static.reset()
    modes.forget()  # the process goes on to other tests
    return {name: np.asarray(v).tolist() for name, v in zip(found, values, strict=True)}


def test_workers_exchange() -> None:
    from fleetx.testing import world

    for rank, found in enumerate(world(2).run(exchanged)):
        assert found["sum"] == found["op"] == [3, 5]
        assert found["max"] == found["sent"] == found["old"] == [2, 3]
        assert found["all"] == [1, 2, 2, 3]
        assert found["part"] == [[3], [5]][rank]
