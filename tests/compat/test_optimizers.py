"""Optimizers in Paddle's words: numbers are those of Paddle 2.6.2 (``data/optimizers.json``)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fleetx import roles

DATA = json.loads((Path(__file__).parent / "data" / "optimizers.json").read_text())


@pytest.fixture(autouse=True)
def no_job() -> Iterator[None]:
    """Leave the job that a test began."""
    yield
    if roles.started():
        roles.stop()


def cases() -> dict[str, Any]:
    import paddle

    nn, decay = paddle.nn, paddle.regularizer
    return {
        "SGD": {},
        "SGD_l1": {"cls": "SGD", "weight_decay": decay.L1Decay(0.1)},
        "Momentum_nesterov_l2_clip": {
            "cls": "Momentum",
            "momentum": 0.9,
            "use_nesterov": True,
            "weight_decay": 0.05,
            "grad_clip": nn.ClipGradByGlobalNorm(0.3),
        },
        "Momentum_value": {
            "cls": "Momentum",
            "momentum": 0.9,
            "grad_clip": nn.ClipGradByValue(0.1),
        },
        "Momentum_norm": {"cls": "Momentum", "momentum": 0.9, "grad_clip": nn.ClipGradByNorm(0.2)},
        "Adam": {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-2},
        "Adam_l2": {"cls": "Adam", "weight_decay": 0.1},
        "AdamW": {"weight_decay": 0.1, "apply_decay_param_fun": lambda n: n.endswith("w_0")},
        "Adamax": {"epsilon": 1e-2},
        "Adagrad": {"initial_accumulator_value": 0.1, "epsilon": 1e-2},
        "RMSProp": {"rho": 0.9, "epsilon": 1e-2, "momentum": 0.5},
        "RMSProp_centered": {
            "cls": "RMSProp",
            "rho": 0.9,
            "epsilon": 1e-2,
            "momentum": 0.5,
            "centered": True,
            "weight_decay": 0.05,
        },
        "Adadelta": {"rho": 0.9, "epsilon": 1e-2},
        "Lamb": {
            "lamb_weight_decay": 0.1,
            "exclude_from_weight_decay_fn": lambda p: p.name.endswith("b_0"),
        },
        "Momentum_attr": {
            "cls": "Momentum",
            "momentum": 0.9,
            "weight_decay": 0.05,
            "attr": {"learning_rate": 0.5, "regularizer": decay.L1Decay(0.2)},
        },
    }


NAMES = sorted(DATA["optimizers"])


def attributes(attr: dict[str, Any]) -> tuple[Any, Any]:
    import paddle

    assign = paddle.nn.initializer.Assign
    weight = paddle.ParamAttr(initializer=assign(np.array(DATA["w"], "float32")), **attr)
    return weight, paddle.ParamAttr(initializer=assign(np.array(DATA["b"], "float32")))


def batches() -> Iterator[tuple[Any, Any]]:
    for x, y in zip(DATA["x"], DATA["y"], strict=True):
        yield np.array(x, "float32"), np.array(y, "float32")


@pytest.mark.parametrize("name", NAMES)
def test_an_eager_loop_moves_parameters_as_paddle_does(name: str) -> None:
    import paddle

    given = cases()[name]
    cls, attr = given.pop("cls", name), given.pop("attr", {})
    weight, bias = attributes(attr)
    layer = paddle.nn.Linear(2, 3, weight_attr=weight, bias_attr=bias)
    optimizer = getattr(paddle.optimizer, cls)(
        learning_rate=0.1, parameters=layer.parameters(), **given
    )
    for (x, y), (loss, w, b) in zip(batches(), DATA["optimizers"][name], strict=True):
        found = ((layer(paddle.to_tensor(x)) - paddle.to_tensor(y)) ** 2).mean()
        found.backward()
        optimizer.step()
        optimizer.clear_grad()
        assert float(found) == pytest.approx(loss, abs=1e-5)
        np.testing.assert_allclose(layer.weight.numpy(), w, atol=1e-5)
        np.testing.assert_allclose(layer.bias.numpy(), b, atol=1e-5)
    keys = [
        key.replace(layer.weight.name, "W").replace(layer.bias.name, "B")
        for key in optimizer.state_dict()
    ]
    assert sorted(keys) == DATA["state_keys"][name]


OLD: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {}),
    "SGD_l1": ("SGDOptimizer", {"regularization": "L1DecayRegularizer(0.1)"}),
    "Momentum_nesterov_l2_clip": (
        "Momentum",
        {
            "momentum": 0.9,
            "use_nesterov": True,
            "regularization": "L2Decay(0.05)",
            "grad_clip": "GradientClipByGlobalNorm(clip_norm=0.3)",
        },
    ),
    "Momentum_value": (
        "MomentumOptimizer",
        {"momentum": 0.9, "grad_clip": "GradientClipByValue(max=0.1, min=-0.1)"},
    ),
    "Adam": ("AdamOptimizer", {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-2}),
    "Adagrad": ("Adagrad", {"initial_accumulator_value": 0.1, "epsilon": 1e-2}),
    "RMSProp": ("RMSProp", {"rho": 0.9, "epsilon": 1e-2, "momentum": 0.5}),
    "Adamax": ("Adamax", {"epsilon": 1e-2}),
    "Adadelta": ("Adadelta", {"rho": 0.9, "epsilon": 1e-2}),
    "Lamb": (
        "Lamb",
        {
            "lamb_weight_decay": 0.1,
            "exclude_from_weight_decay_fn": lambda p: p.name.endswith("b_0"),
        },
    ),
    "Momentum_attr": (
        "Momentum",
        {"momentum": 0.9, "regularization": "L2DecayRegularizer(0.05)"},
    ),
}


@pytest.mark.parametrize("name", sorted(OLD))
def test_a_program_of_paddle_1_moves_parameters_alike(name: str) -> None:
    from paddle import fluid

    cls, given = OLD[name]
    kinds = {"regularization": fluid.regularizer, "grad_clip": fluid.clip}
    options = {
        key: eval(f"kind.{value}", {"kind": kinds[key]}) if key in kinds else value
        for key, value in given.items()
    }
    attr = cases()[name].get("attr", {})
    x = fluid.layers.data(name="x", shape=[2], dtype="float32")
    y = fluid.layers.data(name="y", shape=[3], dtype="float32")
    weight, bias = attributes(attr)
    made = fluid.layers.fc(input=x, size=3, param_attr=weight, bias_attr=bias)
    loss = fluid.layers.mean(fluid.layers.square(made - y))
    optimizer = getattr(fluid.optimizer, cls)(learning_rate=0.1, **options)
    optimizer.minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    rate = optimizer._global_learning_rate()
    rate.persistable = True
    for (a, b), (expected, w, _) in zip(batches(), DATA["optimizers"][name], strict=True):
        found, now = exe.run(feed={"x": a, "y": b}, fetch_list=[loss, rate])
        assert float(np.ravel(found)[0]) == pytest.approx(expected, abs=1e-5)
        assert float(np.ravel(now)[0]) == pytest.approx(0.1)
        value = fluid.global_scope().find_var("fc_0.w_0").get_tensor()
        np.testing.assert_allclose(np.array(value), w, atol=1e-5)


def schedulers() -> dict[str, Any]:
    from paddle.optimizer import lr

    inner = lr.PiecewiseDecay(boundaries=[3, 6], values=[0.1, 0.05, 0.01], verbose=False)
    return {
        "NoamDecay": lr.NoamDecay(d_model=16, warmup_steps=4, learning_rate=2.0),
        "PiecewiseDecay": lr.PiecewiseDecay(boundaries=[3, 6], values=[0.1, 0.05, 0.01]),
        "NaturalExpDecay": lr.NaturalExpDecay(0.5, gamma=0.1),
        "InverseTimeDecay": lr.InverseTimeDecay(0.5, gamma=0.1),
        "PolynomialDecay": lr.PolynomialDecay(0.5, decay_steps=5, end_lr=0.01, power=2.0),
        "PolynomialDecay_cycle": lr.PolynomialDecay(0.5, decay_steps=5, cycle=True),
        "LinearWarmup": lr.LinearWarmup(0.5, warmup_steps=4, start_lr=0.0, end_lr=0.5),
        "LinearWarmup_inner": lr.LinearWarmup(inner, warmup_steps=4, start_lr=0.0, end_lr=0.5),
        "ExponentialDecay": lr.ExponentialDecay(0.5, gamma=0.9),
        "MultiStepDecay": lr.MultiStepDecay(0.5, milestones=[3, 6], gamma=0.8),
        "StepDecay": lr.StepDecay(0.5, step_size=3, gamma=0.8),
        "LambdaDecay": lr.LambdaDecay(0.5, lr_lambda=lambda x: 0.95**x),
        "MultiplicativeDecay": lr.MultiplicativeDecay(0.5, lr_lambda=lambda x: 0.95),
        "CosineAnnealingDecay": lr.CosineAnnealingDecay(0.5, T_max=5, eta_min=0.01),
        "OneCycleLR": lr.OneCycleLR(max_learning_rate=1.0, total_steps=12),
        "CyclicLR": lr.CyclicLR(base_learning_rate=0.1, max_learning_rate=0.5, step_size_up=3),
        "LinearLR": lr.LinearLR(learning_rate=0.5, total_steps=5),
        "CosineAnnealingWarmRestarts": lr.CosineAnnealingWarmRestarts(0.5, T_0=4, T_mult=2),
    }


@pytest.mark.parametrize("name", sorted(set(DATA["lr"]) - {"ReduceOnPlateau"}))
def test_schedulers_give_paddles_rates_and_go_on_from_their_state(name: str) -> None:
    made, other = schedulers()[name], schedulers()[name]
    found = []
    for number, _ in enumerate(DATA["lr"][name]):
        if number == 5:
            other.set_state_dict(made.state_dict())
            made = other
        found.append(made())
        made.step()
    assert found == pytest.approx(DATA["lr"][name])


def test_a_scheduler_that_looks_at_a_metric() -> None:
    from paddle.optimizer import lr

    made = lr.ReduceOnPlateau(1.0, factor=0.5, patience=2, cooldown=1)
    found = []
    for metric in [1.0, 0.9, 0.95, 0.93, 0.94, 0.96, 0.97, 0.98, 0.99, 1.0, 0.5, 0.6]:
        found.append(made())
        made.step(metric)
    assert found == pytest.approx(DATA["lr"]["ReduceOnPlateau"])


def test_an_optimizer_obeys_a_scheduler_and_a_rate_set_by_hand() -> None:
    import paddle

    weight = paddle.nn.Linear(1, 1, bias_attr=False)
    scheduler = paddle.optimizer.lr.PiecewiseDecay(boundaries=[1], values=[0.5, 0.25])
    optimizer = paddle.optimizer.SGD(learning_rate=scheduler, parameters=weight.parameters())
    moved = []
    for _ in range(2):
        before = weight.weight.numpy().item()
        weight(paddle.ones([1, 1])).backward()
        optimizer.step()
        optimizer.clear_grad()
        scheduler.step()
        moved.append(before - weight.weight.numpy().item())
    assert moved == pytest.approx([0.5, 0.25])
    assert optimizer.get_lr() == 0.25
    with pytest.raises(RuntimeError, match="is a scheduler"):
        optimizer.set_lr(0.1)
    plain = paddle.optimizer.SGD(learning_rate=0.1, parameters=weight.parameters())
    plain.set_lr(0.3)
    assert plain.get_lr() == 0.3


def test_a_scheduler_steers_a_program() -> None:
    import paddle

    paddle.enable_static()
    x = paddle.static.data(name="x", shape=[None, 1], dtype="float32")
    loss = paddle.mean(paddle.static.nn.fc(x, size=1))
    scheduler = paddle.optimizer.lr.StepDecay(learning_rate=0.5, step_size=1, gamma=0.5)
    paddle.optimizer.SGD(learning_rate=scheduler).minimize(loss)
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    rates = []
    for _ in range(3):
        found = exe.run(feed={"x": np.ones((1, 1), "float32")}, fetch_list=["learning_rate_0"])
        rates.append(float(np.ravel(found[0])[0]))
        scheduler.step()
    assert rates == pytest.approx([0.5, 0.25, 0.125])


def test_state_moves_to_another_optimizer() -> None:
    import paddle

    def train(layer: Any, optimizer: Any, steps: int) -> None:
        for _ in range(steps):
            (layer(paddle.ones([2, 2])) ** 2).mean().backward()
            optimizer.minimize(None)
            optimizer.clear_grad()

    paddle.seed(1)
    layer = paddle.nn.Linear(2, 2)
    optimizer = paddle.optimizer.Adam(0.1, parameters=layer.parameters())
    train(layer, optimizer, 2)
    kept = {name: np.array(value) for name, value in optimizer.state_dict().items()}
    weights = {name: np.array(value) for name, value in layer.state_dict().items()}
    train(layer, optimizer, 2)
    other = paddle.optimizer.Adam(0.1, parameters=layer.parameters())
    expected = layer.weight.numpy().copy()
    layer.set_state_dict(weights)
    other.set_state_dict(kept)
    train(layer, other, 2)
    np.testing.assert_allclose(layer.weight.numpy(), expected, rtol=1e-5)


def test_a_limit_set_for_a_program() -> None:
    from paddle import fluid

    x = fluid.layers.data(name="x", shape=[1], dtype="float32")
    loss = fluid.layers.mean(fluid.layers.fc(input=x, size=1, bias_attr=False))
    optimizer = fluid.optimizer.SGD(learning_rate=1.0)
    fluid.clip.set_gradient_clip(clip=fluid.clip.GradientClipByGlobalNorm(clip_norm=0.5))
    optimizer.minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    weight = fluid.global_scope().find_var("fc_0.w_0").get_tensor()
    before = np.array(weight).item()
    exe.run(feed={"x": np.full((1, 1), 10, "float32")}, fetch_list=[loss])
    assert before - np.array(weight).item() == pytest.approx(0.5)
    with pytest.raises(NotImplementedError, match="ErrorClipByValue"):
        fluid.clip.ErrorClipByValue(max=1.0)


def test_groups_of_parameters_and_lists_that_are_refused() -> None:
    import paddle

    layer = paddle.nn.Linear(1, 1)
    optimizer = paddle.optimizer.SGD(
        0.1, parameters=[{"params": layer.parameters(), "learning_rate": 0.5}]
    )
    assert optimizer.inner().param_groups[0]["lr"] == pytest.approx(0.05)
    with pytest.raises(ValueError, match="sets 'beta1'"):
        paddle.optimizer.Adam(0.1, parameters=[{"params": layer.parameters(), "beta1": 0.5}])
    with pytest.raises(AttributeError, match="without parameters"):
        paddle.optimizer.SGD(0.1).step()
    with pytest.raises(TypeError, match="learning_rate is a number"):
        paddle.optimizer.SGD("fast")
    with pytest.raises(ValueError, match="rescale_grad"):
        paddle.optimizer.Momentum(0.1, rescale_grad=2.0)


def test_rows_that_a_batch_does_not_use_stay_in_lazy_mode() -> None:
    import paddle

    table = torch.nn.Parameter(torch.ones(3, 2))
    vars(table)["sparse_rows"] = True
    optimizer = paddle.optimizer.Adam(0.1, parameters=[table], lazy_mode=True)
    for rows in ([0, 1], [0]):
        table[rows].sum().backward()
        optimizer.step()
        optimizer.clear_grad()
    assert table[2].tolist() == [1, 1]
    assert table[1].tolist() == pytest.approx([0.9, 0.9])
    assert table[0].tolist() == pytest.approx([0.8, 0.8], abs=1e-3)


def linear_program(fluid: Any) -> Any:
    x = fluid.layers.data(name="x", shape=[4], dtype="float32")
    hidden = fluid.layers.fc(input=x, size=8, act="tanh")
    return hidden, fluid.layers.mean(fluid.layers.square(fluid.layers.fc(input=hidden, size=1)))


def losses(fluid: Any, loss: Any, steps: int = 6) -> list[float]:
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    batch = {"x": np.random.RandomState(0).randn(8, 4).astype("float32")}
    return [float(np.ravel(exe.run(feed=batch, fetch_list=[loss])[0])[0]) for _ in range(steps)]


def test_mixed_precision_around_an_optimizer() -> None:
    from paddle import fluid
    from paddle.fluid.contrib.mixed_precision.decorator import decorate

    _, loss = linear_program(fluid)
    optimizer = decorate(
        fluid.optimizer.SGD(learning_rate=0.1),
        init_loss_scaling=128.0,
        use_dynamic_loss_scaling=True,
    )
    assert optimizer._global_learning_rate().name == "learning_rate_0"
    optimizer.minimize(loss)
    found = losses(fluid, loss)
    assert found[-1] < found[0] / 2


def test_recomputation_around_an_optimizer() -> None:
    from paddle import fluid

    hidden, loss = linear_program(fluid)
    optimizer = fluid.optimizer.RecomputeOptimizer(fluid.optimizer.Adam(learning_rate=0.05))
    with pytest.raises(ValueError, match="_set_checkpoints"):
        optimizer.minimize(loss)
    optimizer._set_checkpoints([hidden])
    optimizer.minimize(loss)
    found = losses(fluid, loss)
    assert found[-1] < found[0]


def test_averages_of_parameters_over_time() -> None:
    from paddle import fluid

    x = fluid.layers.data(name="x", shape=[1], dtype="float32")
    attr = fluid.ParamAttr(initializer=fluid.initializer.Constant(1.0))
    loss = fluid.layers.mean(fluid.layers.fc(input=x, size=1, param_attr=attr, bias_attr=False))
    fluid.optimizer.SGD(learning_rate=0.1).minimize(loss)
    average = fluid.optimizer.ExponentialMovingAverage(0.5)
    average.update()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    test = fluid.default_main_program().clone(for_test=True)
    batch = {"x": np.ones((1, 1), "float32")}
    for _ in range(2):
        exe.run(feed=batch, fetch_list=[loss])
    with average.apply(exe):
        inside = exe.run(test, feed=batch, fetch_list=[loss])[0]
    outside = exe.run(test, feed=batch, fetch_list=[loss])[0]
    assert float(np.ravel(inside)[0]) == pytest.approx((0.25 * 0.9 + 0.5 * 0.8) / 0.75)
    assert float(np.ravel(outside)[0]) == pytest.approx(0.8)


def test_halves_of_minimize() -> None:
    from paddle import fluid

    _, loss = linear_program(fluid)
    optimizer = fluid.optimizer.SGD(learning_rate=0.1)
    pairs = optimizer.backward(loss)
    optimizer.apply_gradients(pairs)
    found = losses(fluid, loss)
    assert found[-1] < found[0]


def test_minimize_returns_parameters_and_gradients_that_have_names() -> None:
    from paddle import fluid

    _, loss = linear_program(fluid)
    _, pairs = fluid.optimizer.SGD(learning_rate=0.1).minimize(loss)
    assert [(p.name, g.name) for p, g in pairs] == [
        ("fc_0.w_0", "fc_0.w_0@GRAD"),
        ("fc_0.b_0", "fc_0.b_0@GRAD"),
        ("fc_1.w_0", "fc_1.w_0@GRAD"),
        ("fc_1.b_0", "fc_1.b_0@GRAD"),
    ]


def test_gradients_that_are_changed_by_hand_and_weights_that_decay_behind_the_update() -> None:
    """The update is by what was given: twice the gradient, and none for the bias."""
    from paddle import fluid

    _, loss = linear_program(fluid)
    optimizer = fluid.optimizer.SGD(learning_rate=0.1)
    weight = fluid.default_main_program().global_block().var("fc_0.w_0")
    old = weight * 1.0
    (_, by_weight), (bias, by_bias), *_ = optimizer.backward(loss)
    optimizer.apply_gradients([(weight, by_weight * 2.0), (bias, by_bias * 0.0)])
    with fluid.default_main_program()._optimized_guard([weight, by_weight]):
        fluid.layers.assign(weight - old * 0.5, weight)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    held = {n: fluid.global_scope().find_var(f"fc_0.{n}").get_tensor() for n in ("w_0", "b_0")}
    before = {name: np.array(value) for name, value in held.items()}
    moved = exe.run(feed={"x": np.ones((2, 4), "float32")}, fetch_list=[by_weight])[0]
    assert np.abs(moved).max() > 1e-3
    wanted = before["w_0"] - 0.2 * moved - 0.5 * before["w_0"]
    np.testing.assert_allclose(np.array(held["w_0"]), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.array(held["b_0"]), before["b_0"])


def test_first_values_that_come_from_others() -> None:
    from paddle import fluid

    main, startup = fluid.default_main_program(), fluid.default_startup_program()
    first = fluid.layers.create_parameter([2], "float32", name="first")
    copy = fluid.framework.Parameter(main.global_block(), [2], "float32", name="copy")
    begun = startup.global_block()._clone_variable(copy)
    startup.global_block().append_op(
        type="scale",
        inputs={"X": startup.global_block().var("first")},
        outputs={"Out": begun},
        attrs={"scale": 2.0},
    )
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    found, source = exe.run(main, fetch_list=[copy, first])
    np.testing.assert_array_equal(found, 2 * source)
    with pytest.raises(NotImplementedError, match="start-up program is not covered"):
        startup.global_block().append_op(type="matmul", outputs={"Out": begun})


def test_optimizers_that_do_not_exist_here_say_so() -> None:
    from paddle import fluid

    with pytest.raises(NotImplementedError, match="Dpsgd"):
        fluid.optimizer.Dpsgd(learning_rate=0.1)
    slim = fluid.contrib.slim.quantization.quantize_transpiler_v2.QuantizeTranspilerV2()
    with pytest.raises(NotImplementedError, match="torchao"):
        slim.apply(None, None, is_test=True)


def test_scripts_fetch_the_scale_of_the_loss_and_the_learning_rate() -> None:
    from paddle import fluid
    from paddle.fluid.contrib.mixed_precision.decorator import decorate

    _, loss = linear_program(fluid)
    optimizer = decorate(fluid.optimizer.SGD(learning_rate=0.5), init_loss_scaling=8.0)
    optimizer.minimize(loss)
    block = fluid.default_main_program().global_block()
    rate, scale = block.vars["learning_rate_0"], optimizer.get_loss_scaling()
    assert scale.name == "loss_scaling_0"
    assert not block.has_var("learning_rate_1")
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    feed = {"x": np.ones((2, 4), "float32")}
    _, now, scaled = exe.run(feed=feed, fetch_list=[loss, rate, scale])
    assert (float(now), float(scaled)) == (0.5, 8.0)
