"""Optimizers of Paddle 1 around others, several in one script."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fleetx import roles


@pytest.fixture(autouse=True)
def no_job() -> Iterator[None]:
    """Leave the job that a test began."""
    yield
    if roles.started():
        roles.stop()


def after_two_runs(wrap: Callable[[Any, Any, Any], Any]) -> float:
    """A weight that begins at 0, whose gradient is 1, after two runs of a program of its own."""
    from paddle import fluid

    main, start = fluid.Program(), fluid.Program()
    with (
        fluid.program_guard(main, start),
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
    ):
        x = fluid.layers.data(name="x", shape=[1], dtype="float32")
        attr = fluid.ParamAttr("weight", initializer=fluid.initializer.Constant(0.0))
        out = fluid.layers.fc(x, 1, param_attr=attr, bias_attr=False)
        loss = fluid.layers.mean(out)
        wrap(fluid, fluid.optimizer.SGD(1.0), out).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(start)
        exe.run(main, feed={"x": np.ones((1, 1), "float32")})
        exe.run(main, feed={"x": np.ones((1, 1), "float32")})
        return float(np.array(fluid.global_scope().find_var("weight").get_tensor()).item())


def merged(fluid: Any, optimizer: Any, _: Any) -> Any:
    return fluid.optimizer.GradientMergeOptimizer(optimizer, k_steps=2, avg=True)


def recomputed(fluid: Any, optimizer: Any, out: Any) -> Any:
    made = fluid.optimizer.RecomputeOptimizer(optimizer)
    made._set_checkpoints([out])
    return made


def of_the_fleet(fluid: Any, optimizer: Any, _: Any) -> Any:
    from paddle.distributed import fleet

    return fleet.distributed_optimizer(optimizer)


def test_what_wraps_one_optimizer_is_not_asked_of_the_next() -> None:
    assert after_two_runs(merged) == pytest.approx(-1.0)
    assert after_two_runs(recomputed) == pytest.approx(-2.0)
    assert after_two_runs(merged) == pytest.approx(-1.0)
    assert after_two_runs(of_the_fleet) == pytest.approx(-2.0)


def test_wrappers_keep_what_the_script_asked_of_the_job() -> None:
    from paddle.distributed import fleet

    strategy = fleet.DistributedStrategy()
    strategy.gradient_merge = True
    strategy.gradient_merge_configs = {"k_steps": 2, "avg": False}
    fleet.init(is_collective=True, strategy=strategy)
    assert after_two_runs(recomputed) == pytest.approx(-2.0)
    assert after_two_runs(of_the_fleet) == pytest.approx(-2.0)
    strategy = fleet.DistributedStrategy()
    strategy.gradient_merge = True
    strategy.gradient_merge_configs = {"k_steps": 2, "avg": True}

    def given(fluid: Any, optimizer: Any, out: Any) -> Any:
        return fleet.distributed_optimizer(recomputed(fluid, optimizer, out), strategy)

    assert after_two_runs(given) == pytest.approx(-1.0)
    assert after_two_runs(of_the_fleet) == pytest.approx(-1.0)


def test_a_scale_of_the_loss_that_stays() -> None:
    def fixed(fluid: Any, optimizer: Any, _: Any) -> Any:
        decorate = fluid.contrib.mixed_precision.decorate
        return decorate(optimizer, init_loss_scaling=8.0, use_dynamic_loss_scaling=False)

    assert after_two_runs(fixed) == pytest.approx(-2.0)


def trained_under(**options: Any) -> float:
    """The weight after two runs under ``strategy.amp`` with these options."""
    from paddle.distributed import fleet

    strategy = fleet.DistributedStrategy()
    strategy.amp = True
    strategy.amp_configs = options
    fleet.init(is_collective=True, strategy=strategy)
    return after_two_runs(of_the_fleet)


SAID = {"init_loss_scaling": 32768.0, "decr_ratio": 0.8, "use_dynamic_loss_scaling": True}


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", **SAID},
        {"dtype": "bfloat16", "init_loss_scaling": 1.0, "use_dynamic_loss_scaling": False},
        {"use_pure_bf16": True, "decr_ratio": 0.5},
        {"use_dynamic_loss_scaling": False},
        {"use_dynamic_loss_scaling": False, "incr_every_n_steps": 1000, "decr_ratio": 0.8},
    ],
)
def test_defaults_of_a_scale_that_does_not_change_are_no_wish(options: dict[str, Any]) -> None:
    assert trained_under(**options) == pytest.approx(-2.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("decr_ratio", 0.7),
        ("incr_every_n_steps", 500),
        ("init_loss_scaling", 128.0),
    ],
)
def test_wishes_that_bfloat16_cannot_obey_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}.*has no effect"):
        trained_under(dtype="bfloat16", **{name: value})


def test_a_wish_that_is_no_number_is_refused_by_its_name() -> None:
    with pytest.raises((TypeError, ValueError), match="decr_ratio"):
        trained_under(dtype="bfloat16", decr_ratio="0.8")


def test_the_scale_changes_as_paddles_does_in_float16() -> None:
    from paddle.distributed import fleet

    strategy = fleet.DistributedStrategy()
    strategy.amp = True
    assert strategy.request().strategies["amp"]["decr_ratio"] == 0.8
    strategy.amp_configs = {"dtype": "bfloat16"}
    assert "decr_ratio" not in strategy.request().strategies["amp"]


def test_an_optimizer_in_bfloat16() -> None:
    def brain(fluid: Any, optimizer: Any, _: Any) -> Any:
        return fluid.contrib.mixed_precision.decorate(optimizer, use_bf16=True)

    assert after_two_runs(brain) == pytest.approx(-2.0)
