"""Habits of real scripts: sizes that are only hints, models as files, what fleets are asked."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch


def computed(fetches: list[Any], program: Any = None, **feed: Any) -> list[Any]:
    """One run of a program."""
    import paddle

    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    return list(exe.run(program, feed=feed, fetch_list=fetches))


def test_old_inputs_are_fed_in_other_sizes_than_declared() -> None:
    from paddle import fluid

    batch, length, heads = -1, 8, 2
    word = fluid.layers.data("word", [batch, length, 4], append_batch_size=False)
    label = fluid.layers.data("label", [batch * length, 1], append_batch_size=False)
    parted = fluid.layers.reshape(word, [0, 0, heads, 2], inplace=True)
    turned = fluid.layers.transpose(parted, [0, 2, 1, 3])
    joined = fluid.layers.reshape(fluid.layers.transpose(turned, [0, 2, 1, 3]), [0, 0, 4])
    rows = fluid.layers.reshape(joined, [-1, 4])
    cost = fluid.layers.reduce_sum(fluid.layers.reduce_sum(rows, 1, keep_dim=True) * label)
    for wide in (3, 8):
        data = np.random.rand(2, wide, 4).astype("float32")
        weight = np.random.rand(2 * wide, 1).astype("float32")
        found, made = computed([cost, turned], word=data, label=weight)
        assert made.shape == (2, heads, wide, 2)
        assert np.allclose(found, (data.reshape(-1, 4).sum(1, keepdims=True) * weight).sum())


def test_new_inputs_keep_the_sizes_that_were_declared() -> None:
    from paddle import fluid

    x = fluid.data("x", [None, 4], "float32")
    with pytest.raises(Exception, match="was declared as"):
        computed([fluid.layers.mean(x)], x=np.ones((2, 5), "float32"))


def test_sizes_that_come_with_the_data_are_shown_as_minus_one() -> None:
    from paddle import fluid

    x = fluid.data("x", [None, 4], "float32")
    assert x.shape == (-1, 4)
    assert x.shape != (2, 4)
    assert -1 in x.shape
    assert 3 not in x.shape
    assert str(x.shape) == "[-1, 4]"


def test_a_seed_of_dropout_drops_the_same_numbers_at_every_run() -> None:
    from paddle import fluid

    x = fluid.data("x", [None, 50], "float32")
    kept = fluid.layers.dropout(x, 0.5, seed=7, dropout_implementation="upscale_in_train")
    tests = fluid.default_main_program().clone(for_test=True)
    ones = np.ones((2, 50), "float32")
    (first,), (second,) = (computed([kept], x=ones) for _ in range(2))
    assert (first == second).all()
    assert set(np.unique(first)) == {0.0, 2.0}
    assert (computed([kept], tests, x=ones)[0] == 1.0).all()


def test_running_variances_are_those_of_paddles_cpu() -> None:
    import paddle
    from paddle import fluid

    data = np.arange(24, dtype="float32").reshape(2, 3, 2, 2) ** 1.3
    golden = [20.577341, 27.518764, 33.09768]  # paddlepaddle 2.6.2
    layer = paddle.nn.BatchNorm2D(3)
    layer(paddle.to_tensor(data))
    assert np.allclose(layer._variance.numpy(), golden)
    paddle.enable_static()
    x = fluid.data("x", [None, 3, 2, 2], "float32")
    loss = fluid.layers.mean(fluid.layers.batch_norm(x))
    fluid.optimizer.SGD(0.1).minimize(loss)
    computed([loss], x=data)
    held = fluid.global_scope().find_var("batch_norm_0.w_2").get_tensor()
    assert held._is_initialized()
    assert np.allclose(np.array(held), golden)


def test_data_norm_normalises_by_all_that_was_seen() -> None:
    from paddle import fluid

    x = fluid.data("x", [None, 2], "float32")
    start = {"batch_size": 4.0, "batch_sum": 8.0, "batch_square": 16.0}
    made = fluid.layers.data_norm(x, name="seen", param_attr=start, epsilon=0.0)
    loss = fluid.layers.mean(fluid.layers.fc(made, 1))
    tests = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.SGD(0.1).minimize(loss)
    data = np.array([[2.0, 4.0], [4.0, 6.0]], "float32")
    (found,) = computed([made], x=data)
    assert np.allclose(found, (data - 2) * 0.5)
    names = ("seen.batch_size", "seen.batch_sum", "seen.batch_square_sum")
    held = [fluid.global_scope().find_var(name).get_tensor() for name in names]
    wanted = [[6.0, 6.0], [14.0, 18.0], [20.0, 36.0]]
    assert np.allclose([np.array(tensor) for tensor in held], wanted, rtol=1e-5)
    fluid.Executor(fluid.CPUPlace()).run(tests, feed={"x": data}, fetch_list=[made])
    assert np.allclose([np.array(tensor) for tensor in held], wanted, rtol=1e-5)
    with pytest.raises(ValueError, match="leave both out"):
        fluid.layers.data_norm(x, slot_dim=2)


def test_a_model_is_a_file_that_is_written_under_a_guard(tmp_path: Path) -> None:
    import paddle
    from paddle import fluid

    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        x = fluid.layers.data("x", [4])
        out = fluid.layers.fc(x, 2, act="softmax")
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        fluid.io.save_inference_model(str(tmp_path), ["x"], [out], exe)
        operators = len(main.global_block().ops)
    assert operators == len(main.global_block().ops)
    model = tmp_path / "__model__"
    assert model.is_file()
    data = np.random.rand(3, 4).astype("float32")
    (wanted,) = exe.run(main, feed={"x": data}, fetch_list=[out])
    bytes_of_it = model.read_bytes()
    again = fluid.Program.parse_from_string(bytes_of_it)
    assert np.allclose(exe.run(again, feed={"x": data}, fetch_list=[out.name])[0], wanted)
    paddle.static.save_to_file(str(tmp_path / "copy"), bytes_of_it)
    program = paddle.static.deserialize_program(
        paddle.static.load_from_file(str(tmp_path / "copy"))
    )
    weights = paddle.static.serialize_persistables([x], [out], exe)
    paddle.static.deserialize_persistables(program, weights, exe)
    assert np.allclose(exe.run(program, feed={"x": data}, fetch_list=[out.name])[0], wanted)


def test_a_program_is_made_of_its_own_bytes() -> None:
    from paddle import fluid

    x = fluid.data("x", [None, 1], "float32")
    attr = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(1.0))
    loss = fluid.layers.mean(fluid.layers.fc(x, 1, param_attr=attr, bias_attr=False))
    fluid.optimizer.SGD(0.5).minimize(loss)
    written = fluid.default_main_program().desc.serialize_to_string()
    again = fluid.Program.parse_from_string(written)
    assert computed([loss.name], again, x=np.ones((2, 1), "float32"))[0] == 1.0
    held = fluid.global_scope().find_var("w").get_tensor()
    assert np.array(held).ravel().tolist() == [0.5]
    with pytest.raises(fluid.core.EnforceNotMet, match="of another process"):
        fluid.Program.parse_from_string(written.replace(b"program ", b"program 0"))


def test_layers_of_scripts_ask_for_the_helper_of_paddles_own() -> None:
    import paddle

    class Scaled(paddle.nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._dtype = self._helper.get_default_dtype()
            self.scale = self.create_parameter(shape=[2], dtype=self._dtype)

    assert Scaled().scale.dtype == torch.float32


def test_parts_of_layers_in_programs_are_refused_where_heads_would_mix() -> None:
    import paddle

    paddle.enable_static()
    x = paddle.static.data("x", [None, 3, 8])
    row = paddle.distributed.split(
        x, size=(8, 8), operation="linear", axis=1, gather_out=False, num_partitions=2
    )
    assert paddle.reshape(row, [0, 0, -1, 2]).shape[-2:] == [4, 2]
    for reshape in (paddle.reshape, paddle.fluid.layers.reshape):
        with pytest.raises(NotImplementedError, match="would mix heads"):
            reshape(row, [0, 0, 2, 4])


def test_fleet_util_counts_over_buckets_and_days(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from paddle import fluid
    from paddle.fluid.incubate.fleet.utils.fleet_util import FleetUtil

    util = FleetUtil()
    util.rank0_print("trained")
    assert "trained" in capsys.readouterr().out
    scope = fluid.Scope()
    with fluid.scope_guard(scope):
        made = {}
        for name, value in {
            **{"positive": [[0, 0, 0, 40000]], "negative": [[40000, 0, 0, 0]]},
            **{"sqrerr": [4.0], "abserr": [8.0], "prob": [20000.0], "q": [0.0]},
            **{"pos": [40000.0], "total": [80000.0]},
        }.items():
            array = np.array(value, "float64")
            attr = fluid.initializer.NumpyArrayInitializer(array)
            block = fluid.default_startup_program().global_block()
            made[name] = block.create_var(
                name=name, shape=array.shape, dtype="float64", persistable=True, initializer=attr
            )
        fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
        assert util.get_global_auc(scope, "positive", "negative") == 1.0
        found = util.get_global_metrics(scope, "positive", "negative")
        assert np.allclose(found[0:1] + found[2:], [1, 1e-4, 0.00707107, 0.5, 0.25, 2, 0, 80000])
        assert np.isclose(found[1], 1 / 3)  # three quarters are predicted where all are right
        util.set_zero("positive", scope, param_type="float64")
        assert util.get_global_auc(scope, "positive", "negative") == 0.5
        assert util.get_global_auc(scope, "nothing", "negative") is None
    assert util.get_online_pass_interval("{1..2}", "{0..1}", 30, 2, False) == [
        ["0000", "0030"],
        ["0100", "0130"],
    ]
    assert util.get_last_save_model(str(tmp_path))[:3] == [-1, -1, ""]


def test_fleet_util_of_an_unknown_mode_is_refused() -> None:
    from paddle.incubate.distributed.fleet.fleet_util import FleetUtil

    with pytest.raises(ValueError, match="neither 'pslib' nor 'transpiler'"):
        FleetUtil(mode="box")


def test_strategies_of_servers_say_how_their_programs_are_compiled() -> None:
    from paddle import fluid
    from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy import (  # noqa: E501
        StrategyFactory,
    )

    strategy = StrategyFactory.create_half_async_strategy()
    strategy.get_build_strategy().async_mode = True
    strategy.get_execute_strategy().num_threads = 2
    assert strategy.get_execute_strategy().num_threads == 2
    x = fluid.data("x", [None, 1], "float32")
    loss = fluid.layers.mean(x)
    compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        build_strategy=strategy.get_build_strategy(),
        exec_strategy=strategy.get_execute_strategy(),
    )
    assert computed([loss], compiled, x=np.ones((2, 1), "float32"))[0] == 1.0


def test_minimize_of_pslib_takes_a_scope_second() -> None:
    import paddle
    from paddle import fluid
    from paddle.distributed import fleet

    from fleetx import roles

    paddle.enable_static()
    fleet.init(is_collective=True)
    try:
        x = fluid.data("x", [None, 1], "float32")
        attr = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(1.0))
        loss = fluid.layers.mean(fluid.layers.fc(x, 1, param_attr=attr, bias_attr=False))
        optimizer = fleet.distributed_optimizer(fluid.optimizer.SGD(0.5))
        optimizer.minimize([loss], [fluid.global_scope()])
        computed([loss], x=np.ones((2, 1), "float32"))
        held = fluid.global_scope().find_var("w").get_tensor()
        assert np.array(held).ravel().tolist() == [0.5]
    finally:
        roles.stop()


def test_a_weight_is_divided_by_its_largest_singular_value() -> None:
    from paddle import fluid

    x = fluid.data("x", [3, 2, 2], "float32")
    made = fluid.layers.spectral_norm(x, dim=0, power_iters=50)
    weight = (np.arange(12, dtype="float32").reshape(3, 2, 2) - 4) / 3
    (found,) = computed([made], x=weight)
    golden = [-0.31838876, -0.23879156, -0.15919438, -0.07959719]  # paddlepaddle 2.6.2
    assert np.allclose(found.ravel()[:4], golden, atol=1e-5)


def test_centres_of_classes_follow_their_samples() -> None:
    from paddle import fluid

    x = fluid.data("x", [None, 2], "float32")
    label = fluid.data("label", [None, 1], "int64")
    attr = fluid.ParamAttr(name="centers", initializer=fluid.initializer.Constant(1.0))
    loss = fluid.layers.center_loss(x, label, 3, 0.5, attr)
    data = np.array([[2.0, 1.0], [4.0, 1.0], [0.0, 0.0]], "float32")
    (found,) = computed([loss], x=data, label=np.array([[0], [0], [2]], "int64"))
    assert np.allclose(found.ravel(), [0.5, 4.5, 1.0])
    held = fluid.global_scope().find_var("centers").get_tensor()
    wanted = [[1 + 0.5 * 4 / 3, 1.0], [1.0, 1.0], [0.75, 0.75]]
    assert np.allclose(np.array(held), wanted)


def test_volumes_are_convolved_the_other_way() -> None:
    import paddle
    from paddle import fluid

    x = fluid.data("x", [None, 2, 3, 3, 3], "float32")
    one = fluid.ParamAttr(initializer=fluid.initializer.Constant(1.0))
    made = fluid.layers.conv3d_transpose(
        x, 4, output_size=6, filter_size=2, stride=2, param_attr=one
    )
    data = np.random.rand(1, 2, 3, 3, 3).astype("float32")
    (found,) = computed([made], x=data)
    wide = data.sum(1).repeat(2, 1).repeat(2, 2).repeat(2, 3)
    assert np.allclose(found, np.repeat(wide[:, None], 4, 1), atol=1e-5)
    paddle.disable_static()
    again = paddle.nn.functional.conv3d_transpose(
        paddle.to_tensor(data), paddle.ones([2, 4, 2, 2, 2]), stride=2
    )
    assert np.allclose(again.numpy(), found, atol=1e-5)


def test_role_makers_reduce_and_gather() -> None:
    from paddle.distributed import fleet

    from fleetx import roles

    fleet.init(is_collective=True)
    try:
        maker, kept = fleet.fleet._role_maker, np.zeros(2)
        maker._barrier_worker()
        assert maker.all_reduce_worker(np.array([1.0, 2.0]), kept).tolist() == [1.0, 2.0]
        assert kept.tolist() == [1.0, 2.0]
        assert maker._all_gather(3) == [3]
        assert (maker.get_rank(), maker.get_size()) == (0, 1)
    finally:
        roles.stop()


def test_the_origin_of_a_program_is_saved_with_what_its_optimizer_keeps(tmp_path: Path) -> None:
    import paddle
    from paddle import fluid
    from paddle.fluid.incubate.fleet.collective import fleet

    from fleetx import roles

    paddle.enable_static()
    fleet.init(is_collective=True)
    try:
        x = fluid.data("x", [None, 1], "float32")
        attr = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(1.0))
        loss = fluid.layers.mean(fluid.layers.fc(x, 1, param_attr=attr, bias_attr=False))
        fleet.distributed_optimizer(fluid.optimizer.Momentum(0.5, 0.9)).minimize(loss)
        computed([loss], fleet.main_program, x=np.ones((2, 1), "float32"))
        exe = fluid.Executor(fluid.CPUPlace())
        fluid.io.save_persistables(exe, str(tmp_path), main_program=fleet._origin_program)
        held = fluid.io.load_program_state(str(tmp_path))
        assert held["w_velocity_0"].ravel().tolist() == [1.0]
        assert held["w"].ravel().tolist() == [0.5]
    finally:
        roles.stop()
