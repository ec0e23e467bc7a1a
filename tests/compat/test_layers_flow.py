"""Programs written line by line: choices, loops, rates, operators by name, first values."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from fleetx import static
from fleetx.compat import after_updates, rates


def computed(*wanted: Any, **feed: Any) -> list[np.ndarray]:
    """What the default program gives."""
    from paddle import fluid

    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    return [np.asarray(v) for v in exe.run(feed=feed, fetch_list=list(wanted))]


def schedule(rate: Any, steps: int) -> list[float]:
    """The rate of the first runs."""
    found = rates.schedule_of(rate)
    return [found(at) for at in range(steps)]


def test_schedules_are_those_of_fleetx() -> None:
    from paddle import fluid

    layers = fluid.layers
    pairs = [
        (
            layers.exponential_decay(
                learning_rate=0.1, decay_steps=3, decay_rate=0.5, staircase=True
            ),
            static.lr.exponential_decay(0.1, 3, 0.5, True),
        ),
        (layers.natural_exp_decay(0.1, 3, 0.5), static.lr.natural_exp_decay(0.1, 3, 0.5)),
        (layers.inverse_time_decay(0.1, 3, 0.5), static.lr.inverse_time_decay(0.1, 3, 0.5)),
        (
            layers.polynomial_decay(0.1, 4, 0.01, power=2.0, cycle=True),
            static.lr.polynomial_decay(0.1, 4, 0.01, 2.0, True),
        ),
        (
            layers.piecewise_decay(boundaries=[2, 5], values=[0.3, 0.2, 0.1]),
            static.lr.piecewise_decay([2, 5], [0.3, 0.2, 0.1]),
        ),
        (
            layers.cosine_decay(learning_rate=0.1, step_each_epoch=2, epochs=4),
            static.lr.cosine_decay(0.1, 2, 4),
        ),
        (layers.learning_rate_scheduler.noam_decay(8, 3), static.lr.noam_decay(8, 3)),
        (
            layers.linear_lr_warmup(layers.piecewise_decay([6], [0.3, 0.1]), 4, 0.0, 0.2),
            static.lr.linear_lr_warmup(static.lr.piecewise_decay([6], [0.3, 0.1]), 4, 0.0, 0.2),
        ),
    ]
    for written, formula in pairs:
        expected = [formula(at) for at in range(10)]
        np.testing.assert_allclose(schedule(written, 10), expected, rtol=1e-5)


def warmed(rate: float, warm: int, steps: int) -> Any:
    """A learning rate as FleetX's own scripts compose it."""
    from paddle import fluid

    layers = fluid.layers
    with fluid.default_main_program()._lr_schedule_guard():
        lr = layers.tensor.create_global_var(
            shape=[1], value=0.0, dtype="float32", persistable=True, name="scheduled"
        )
        step = layers.learning_rate_scheduler._decay_step_counter()
        with layers.control_flow.Switch() as switch:
            with switch.case(step < warm):
                layers.tensor.assign(rate * (step / warm), lr)
            with switch.default():
                decayed = layers.learning_rate_scheduler.polynomial_decay(
                    learning_rate=rate,
                    decay_steps=steps,
                    end_learning_rate=0.0,
                    power=1.0,
                    cycle=False,
                )
                layers.tensor.assign(decayed, lr)
    return lr


def test_a_composed_rate_moves_parameters_and_is_fetched() -> None:
    from paddle import fluid

    x = fluid.layers.data("x", [4])
    loss = fluid.layers.mean(fluid.layers.fc(x, 1, name="h"), "mean_loss")
    assert loss.name == "mean_loss.tmp_0"
    lr = warmed(0.1, 2, 10)
    old = {p.name: p * 1.0 for p in fluid.default_main_program().global_block().all_parameters()}
    static.Optimizer(torch.optim.SGD, lr=rates.schedule_of(lr)).minimize(loss)
    after_updates.begin(fluid.default_main_program())
    weight = fluid.default_main_program().global_block().var("h.w_0")
    fluid.layers.assign(output=weight, input=weight - old["h.w_0"] * 0.5 * lr)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    held = fluid.global_scope().find_var("h.w_0").get_tensor()
    for at, wanted in enumerate([0.0, 0.05, 0.08, 0.07]):
        before = np.array(held)
        feed = {"x": np.full((2, 4), at, "float32")}
        found, moved = exe.run(feed=feed, fetch_list=[lr, "h.w_0@GRAD"])
        np.testing.assert_allclose(found, [wanted], rtol=1e-5)
        np.testing.assert_allclose(
            np.array(held), before - wanted * moved - 0.5 * wanted * before, rtol=1e-4, atol=1e-7
        )


def test_loops_and_choices() -> None:
    from paddle import fluid

    layers = fluid.layers
    i = layers.fill_constant([1], "int64", 0)
    n = layers.fill_constant(shape=[1], dtype="int64", value=5, force_cpu=True)
    go, total = layers.less_than(x=i, y=n), layers.fill_constant([1], "float32", 1.0)
    loop = layers.While(go)
    with loop.block():
        layers.assign(total * 2.0, total)
        layers.increment(x=i, value=1, in_place=True)
        layers.less_than(i, n, cond=go)
    rounds = layers.while_loop(
        lambda a, b: a < 3, lambda a, b: [a + 1, b * 3.0], [i - 5, total / 32.0]
    )
    chosen = layers.cond(total > 3.0, lambda: total + 1.0, lambda: total - 1.0)
    case = layers.case([(total < 3.0, lambda: total), (total > 30.0, lambda: total * 10.0)])
    array = layers.array_write(total, i=layers.fill_constant([1], "int64", 0))
    array = layers.array_write(total + 1, i=layers.fill_constant([1], "int64", 1), array=array)
    read = layers.array_read(array=array, i=layers.fill_constant([1], "int64", 1))
    both = layers.logical_and(x=total > 1.0, y=total < 3.0, out=go)
    found = computed(total, i, rounds[1], chosen, case, read, both, layers.is_empty(x=total))
    assert [float(np.ravel(v)[0]) for v in found] == [32, 5, 27, 33, 320, 33, 0, 0]


def test_what_only_a_run_knows_is_refused_by_name() -> None:
    from paddle import fluid

    layers = fluid.layers
    i, n = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 3)
    go = layers.less_than(i, n)
    with (
        pytest.raises(NotImplementedError, match=r"array_write.*counts by a number"),
        layers.While(go).block(),
    ):
        layers.array_write(i, i=i)
    with pytest.raises(NotImplementedError, match=r"beam_search.*topk"):
        layers.beam_search(i, i, i, i, beam_size=4, end_id=1, return_parent_idx=True)
    with pytest.raises(NotImplementedError, match="beam_search_decode"):
        layers.beam_search_decode(i, i, beam_size=4, end_id=1)


def test_operators_by_their_names() -> None:
    from paddle import fluid

    layers, block = fluid.layers, fluid.default_main_program().global_block()
    count = block.create_var(
        name="right_cnt",
        dtype=fluid.core.VarDesc.VarType.FP32,
        shape=[1],
        persistable=True,
    )
    one = layers.fill_constant([1], "float32", 1.0)
    block.append_op(
        type="elementwise_add", inputs={"X": [count], "Y": [one]}, outputs={"Out": [count]}
    )
    block.append_op(type="c_allreduce_sum", inputs={"X": [one]}, outputs={"Out": [one]})
    block.append_op(type="scale", inputs={"X": [one]}, outputs={"Out": [one]}, attrs={"scale": 3.0})
    block.append_op(
        type="c_sync_comm_stream", inputs={"X": [one]}, outputs={"Out": [one]}, attrs={}
    )
    with pytest.raises(NotImplementedError, match=r"'c_allreduce_sun'.*c_allreduce_sum"):
        block.append_op(type="c_allreduce_sun", inputs={}, outputs={})
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    runs = [[float(np.ravel(v)[0]) for v in exe.run(fetch_list=[count, one])] for _ in range(2)]
    assert runs == [[1.0, 3.0], [2.0, 3.0]]
    assert np.array(fluid.global_scope().find_var("right_cnt").get_tensor()).tolist() == [2.0]


def test_a_layer_of_the_script_itself() -> None:
    from paddle import fluid
    from paddle.fluid.layer_helper import LayerHelper

    x = fluid.layers.data("x", [3])
    helper = LayerHelper("my_norm", input=x, act="relu")
    weight = helper.create_parameter(
        attr=helper.param_attr,
        shape=[3],
        dtype=x.dtype,
        default_initializer=fluid.initializer.Constant(2.0),
    )
    out = helper.create_variable_for_type_inference(dtype=x.dtype)
    helper.append_op(
        type="elementwise_mul", inputs={"X": x, "Y": weight}, outputs={"Out": out}, attrs={}
    )
    (found,) = computed(helper.append_activation(out), x=np.array([[1, -1, 2]], "float32"))
    assert found.tolist() == [[2, 0, 4]]
    assert [p.name for p in fluid.default_main_program().all_parameters()] == ["my_norm_0.w_0"]


def filled(initializer: Any, shape: list[int]) -> torch.Tensor:
    """A tensor that an initializer filled."""
    torch.manual_seed(0)
    tensor = torch.empty(shape)
    initializer(tensor)
    return tensor


def test_first_values() -> None:
    import paddle
    from paddle import fluid

    old, new = fluid.initializer, paddle.nn.initializer
    shape = [40, 60]
    limit = math.sqrt(6 / 100)
    for made in (old.Xavier(), old.XavierInitializer(), new.XavierUniform()):
        found = filled(made, shape)
        assert limit * 0.98 < float(found.abs().max()) <= limit
    assert abs(float(filled(new.XavierNormal(), shape).std()) - math.sqrt(2 / 100)) < 5e-3
    assert abs(float(filled(old.MSRA(uniform=False), shape).std()) - math.sqrt(2 / 40)) < 1e-2
    wide = filled(old.XavierInitializer(fan_in=6, fan_out=6), shape)
    assert 0.68 < float(wide.abs().max()) <= math.sqrt(0.5)
    for made in (
        old.TruncatedNormal(scale=0.5),
        old.TruncatedNormalInitializer(loc=0.0, scale=0.5),
        new.TruncatedNormal(mean=0.0, std=0.5),
    ):
        found = filled(made, shape)
        assert 0.9 < float(found.abs().max()) <= 1.0
    for made in (old.Normal(0.0, 2.0), old.NormalInitializer(0.0, 2.0), new.Normal(std=2.0)):
        assert abs(float(filled(made, shape).std()) - 2) < 0.1
    for made in (old.Uniform(-0.5, 0.5), old.Uniform(low=-0.5, high=0.5), new.Uniform(-0.5, 0.5)):
        assert 0.49 < float(filled(made, shape).abs().max()) <= 0.5
    for made in (old.Constant(value=3.0, force_cpu=True), new.Constant(3.0)):
        assert filled(made, [2]).tolist() == [3, 3]
    for made in (old.NumpyArrayInitializer(np.eye(2)), new.Assign(np.eye(2))):
        assert filled(made, [2, 2]).tolist() == [[1, 0], [0, 1]]
    assert filled(old.Bilinear(), [1, 1, 4, 4])[0, 0, 1, 1] == 0.5625
    assert abs(float(filled(new.KaimingNormal(), shape).std()) - math.sqrt(2 / 40)) < 1e-2
    same = [filled(old.Uniform(seed=5), [3]) for _ in range(2)]
    assert torch.equal(*same)


def test_layers_begin_as_paddles_do() -> None:
    from paddle import fluid

    image = fluid.layers.data("image", [3, 8, 8])
    made = fluid.nets.simple_img_conv_pool(
        input=image, filter_size=3, num_filters=64, pool_size=2, pool_stride=2, act="relu"
    )
    fluid.layers.fc([made, made], 10)
    computed(made, image=np.zeros((1, 3, 8, 8), "float32"))
    held = {p.name: p for p in fluid.default_main_program().all_parameters()}
    assert list(held) == ["conv2d_0.w_0", "conv2d_0.b_0", "fc_0.w_0", "fc_0.w_1", "fc_0.b_0"]
    scope = fluid.global_scope()
    weight = np.array(scope.find_var("conv2d_0.w_0").get_tensor())
    assert abs(weight.std() - math.sqrt(2 / 27)) < 0.02
    matrix = np.array(scope.find_var("fc_0.w_0").get_tensor())
    assert matrix.shape == (576, 10)
    assert np.abs(matrix).max() <= math.sqrt(6 / 586)


@pytest.mark.parametrize(
    ("kind", "trained", "tested"),
    [("downgrade_in_infer", {0.0, 1.0}, 0.75), ("upscale_in_train", {0.0, 4 / 3}, 1.0)],
)
def test_dropout_scales_now_or_in_tests(kind: str, trained: set[float], tested: float) -> None:
    from paddle import fluid

    x = fluid.layers.data("x", [64])
    found = fluid.layers.dropout(
        x, dropout_prob=0.25, is_test=False, seed=1, dropout_implementation=kind
    )
    test = fluid.default_main_program().clone(for_test=True)
    exe, feed = fluid.Executor(fluid.CPUPlace()), {"x": np.ones((4, 64), "float32")}
    (now,) = exe.run(feed=feed, fetch_list=[found])
    assert {round(float(v), 4) for v in np.unique(now)} == {round(v, 4) for v in trained}
    (then,) = exe.run(test, feed=feed, fetch_list=[found.name])
    np.testing.assert_allclose(then, np.full((4, 64), tested), rtol=1e-6)


def test_functions_of_the_script_and_printing(capsys: pytest.CaptureFixture[str]) -> None:
    import paddle

    paddle.enable_static()
    x = paddle.static.data("x", [None, 2])
    out = (
        paddle.static.default_main_program()
        .global_block()
        .create_var(name="out", shape=[1, 2], dtype="float32")
    )
    paddle.static.py_func(lambda a: a * 2, x, out)
    shown = paddle.static.Print(out, message="here")
    (found,) = computed(shown, x=np.array([[1, 2]], "float32"))
    assert found.tolist() == [[2, 4]]
    assert "here" in capsys.readouterr().out


def test_layers_of_2_x() -> None:
    import paddle

    paddle.enable_static()
    nn = paddle.static.nn
    ids = paddle.static.data("ids", [None, 1], "int64")
    rows = nn.embedding(ids, size=[10, 4], is_sparse=True)
    assert list(rows.shape)[1:] == [1, 4]
    more = nn.sparse_embedding(ids, size=[10, 4])
    assert list(more.shape)[1:] == [4]
    made = nn.fc(x=paddle.concat([rows, more.unsqueeze(1)], axis=-1), size=3, activation="tanh")
    old = nn.fc(input=made, size=2, act="softmax")
    state = paddle.static.create_global_var(
        name="total", persistable=True, dtype="float32", shape=[1], value=2.0
    )
    paddle.assign(state + 1.0, state)
    (found, total) = computed(old, state, ids=np.array([[1], [2]]))
    np.testing.assert_allclose(found.sum(-1), 1.0, rtol=1e-5)
    assert total.tolist() == [3.0]


def test_what_a_batch_counts_and_a_second_start() -> None:
    from paddle import fluid

    image = fluid.layers.data("image", [3, 4, 4])
    label = fluid.layers.data("label", [1], dtype="int64")
    made = fluid.layers.batch_norm(
        input=fluid.layers.conv2d(image, 2, 3, act=None, bias_attr=False),
        act="relu",
        name="bn",
        moving_mean_name="bn_mean",
        moving_variance_name="bn_variance",
        is_test=False,
    )
    predicted = fluid.layers.fc(made, 2, act="softmax")
    size = fluid.layers.create_tensor(dtype="int64")
    share = fluid.layers.accuracy(input=predicted, label=label, total=size)
    held = [v.name for v in fluid.default_main_program().list_vars() if v.persistable]
    assert {"bn.w_0", "bn.b_0", "bn_mean", "bn_variance"} <= set(held)
    feed = {"image": np.ones((5, 3, 4, 4), "float32"), "label": np.zeros((5, 1), "int64")}
    for _ in range(2):  # the start-up program runs twice
        found = computed(share, size, **feed)
        assert found[1].tolist() == [5]


def test_free_sizes_are_taken_for_equal_until_a_run() -> None:
    from paddle import fluid

    layers = fluid.layers
    words = layers.data("words", [-1, 3, 1], dtype="int64", append_batch_size=False)
    label = layers.data("1", [1], dtype="int64")
    weight = layers.data("weight", [1])
    rows = layers.embedding(words, size=[5, 4])
    flat = layers.reshape(rows, shape=[-1, rows.shape[-1]], inplace=True)
    cost = layers.softmax_with_cross_entropy(logits=flat, label=label)
    cost *= weight
    groups = layers.reshape(layers.embedding(label, size=[5, 2]), shape=[-1, 3, 2])
    both = layers.matmul(rows, groups, transpose_x=True)
    assert bool(weight)
    assert label.block.program is fluid.default_main_program()
    feed = {"words": np.zeros((2, 3, 1), "int64"), "weight": np.ones((6, 1), "float32")}
    found = computed(cost, both, **feed, **{"1": np.zeros((6, 1), "int64")})
    assert [v.shape for v in found] == [(6, 1), (2, 4, 2)]


def test_classes_that_are_drawn() -> None:
    from paddle import fluid

    x = fluid.layers.data("x", [2])
    label = fluid.layers.data("label", [1], dtype="int64")
    one = fluid.ParamAttr(initializer=fluid.initializer.Constant(0.5))
    cost = fluid.layers.nce(
        input=x, label=label, num_total_classes=1, num_neg_samples=3, param_attr=one
    )
    rows = fluid.layers.continuous_value_model(x, x)
    feed = {"x": np.array([[1.0, 2.0]], "float32"), "label": np.zeros((1, 1), "int64")}
    found, counted = computed(cost, rows, **feed)
    score = 1 / (1 + math.exp(-1.5))
    wanted = -math.log(score / (score + 3)) - 3 * math.log(3 / (score + 3))
    np.testing.assert_allclose(found, [[wanted]], rtol=1e-5)
    np.testing.assert_allclose(counted, [[math.log(2), math.log(3 / 2)]], rtol=1e-5)
