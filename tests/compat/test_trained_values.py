"""What scripts of Paddle 1 read and set beside a program: rates, gradients, averages."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fleetx import roles
from fleetx.record.error import ProgramError


@pytest.fixture(autouse=True)
def fluid() -> Iterator[Any]:
    """A program and a scope of the test's own."""
    from paddle import fluid

    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
    ):
        yield fluid
    if roles.started():
        roles.stop()


def weighed(fluid: Any, name: str = "weight") -> Any:
    """The input times a weight that begins at 0."""
    x = fluid.layers.data(name="x", shape=[1], dtype="float32")
    attr = fluid.ParamAttr(name, initializer=fluid.initializer.Constant(0.0))
    return fluid.layers.fc(x, 1, param_attr=attr, bias_attr=False)


def value_of(fluid: Any, name: str) -> float:
    return float(np.array(fluid.global_scope().find_var(name).get_tensor()).item())


def runs(fluid: Any) -> Callable[..., Any]:
    """Runs the program once; the gradient of the weight is 1."""
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    feed = {"x": np.ones((1, 1), "float32")}
    return lambda fetches=(): exe.run(feed=feed, fetch_list=fetches)


def plain(optimizer: Any) -> Any:
    return optimizer


def distributed(optimizer: Any) -> Any:
    from paddle.distributed import fleet

    fleet.init(is_collective=True)
    return fleet.distributed_optimizer(optimizer)


@pytest.mark.parametrize("wrap", [plain, distributed])
def test_the_rate_may_be_set_in_the_scope(fluid: Any, wrap: Callable[[Any], Any]) -> None:
    optimizer = wrap(fluid.optimizer.Momentum(1.0, 0.0))
    optimizer.minimize(fluid.layers.mean(weighed(fluid)))
    run = runs(fluid)
    run()
    name = optimizer._global_learning_rate().name
    assert value_of(fluid, name) == pytest.approx(1.0)
    rate = fluid.global_scope().find_var(name).get_tensor()
    rate.set(np.array([0.25], "float32"), fluid.CPUPlace())
    run()
    assert value_of(fluid, name) == pytest.approx(0.25)
    assert value_of(fluid, "weight") == pytest.approx(-1.25)
    assert run([name])[0].item() == pytest.approx(0.25)


def test_a_rate_that_follows_a_scheduler_is_not_set(fluid: Any) -> None:
    import paddle

    scheduler = paddle.optimizer.lr.StepDecay(0.5, 1, 0.5)
    paddle.optimizer.SGD(scheduler).minimize(fluid.layers.mean(weighed(fluid)))
    rate = fluid.global_scope().find_var("learning_rate_0").get_tensor()
    assert np.array(rate).item() == pytest.approx(0.5)
    with pytest.raises(ProgramError, match="follows a scheduler"):
        rate.set(np.array([0.25], "float32"), fluid.CPUPlace())


def test_the_rate_of_one_of_several_optimizers_is_refused(fluid: Any) -> None:
    first = fluid.optimizer.SGD(1.0)
    first.minimize(fluid.layers.mean(weighed(fluid)))
    second = fluid.optimizer.SGD(2.0)
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        second.minimize(fluid.layers.mean(weighed(fluid, "other")))
    with pytest.raises(ProgramError, match="2 optimizers"):
        value_of(fluid, "learning_rate_0")


def test_gradients_that_minimize_returns_are_fetched(fluid: Any) -> None:
    _, pairs = fluid.optimizer.SGD(1.0).minimize(fluid.layers.mean(weighed(fluid)))
    gradients = [gradient for _, gradient in pairs]
    run = runs(fluid)
    assert run(gradients)[0].item() == pytest.approx(1.0)
    assert run(gradients[0])[0].item() == pytest.approx(1.0)


def test_an_average_whose_decay_follows_the_steps(fluid: Any) -> None:
    fluid.optimizer.SGD(1.0).minimize(fluid.layers.mean(weighed(fluid)))
    steps = fluid.layers.learning_rate_scheduler._decay_step_counter()
    average = fluid.optimizer.ExponentialMovingAverage(0.25, thres_steps=steps)
    average.update()
    run, kept = runs(fluid), 0.0
    for step in range(4):  # 1/10, 2/11, then what was given
        run()
        decay = min(0.25, (step + 1) / (step + 10))
        kept = decay * kept + (1 - decay) * -(step + 1)
    with average.apply(fluid.Executor(fluid.CPUPlace())):
        assert value_of(fluid, "weight") == pytest.approx(kept / (1 - 0.25**4))
    assert value_of(fluid, "weight") == pytest.approx(-4.0)
