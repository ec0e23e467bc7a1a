"""Limits on gradients that scripts of Paddle 1 set beside the optimizer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def program_of_its_own() -> Iterator[Any]:
    from paddle import fluid

    main, start = fluid.Program(), fluid.Program()
    with (
        fluid.program_guard(main, start),
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
    ):
        yield fluid


def weight_attr(fluid: Any, name: str, **told: Any) -> Any:
    return fluid.ParamAttr(name, initializer=fluid.initializer.Constant(0.0), **told)


def loss_of(fluid: Any, **told: Any) -> Any:
    """The gradient of each of three weights is 10."""
    x = fluid.layers.data(name="x", shape=[3], dtype="float32")
    attr = weight_attr(fluid, "weight", **told)
    return fluid.layers.mean(fluid.layers.fc(x, 1, param_attr=attr, bias_attr=False))


def moved(fluid: Any) -> float:
    """How far one run moves the weights, as a vector."""
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    exe.run(fluid.default_main_program(), feed={"x": np.full((1, 3), 10, "float32")})
    return float(np.linalg.norm(np.array(fluid.global_scope().find_var("weight").get_tensor())))


def plain(optimizer: Any, loss: Any) -> None:
    optimizer.minimize(loss)


def distributed(optimizer: Any, loss: Any) -> None:
    from paddle.distributed import fleet
    from paddle.fluid import clip

    fleet.init(is_collective=True)
    made = fleet.distributed_optimizer(optimizer, fleet.DistributedStrategy())
    clip.set_gradient_clip(clip.GradientClipByGlobalNorm(0.5))
    made.minimize(loss)


def test_a_limit_ends_with_its_program() -> None:
    with program_of_its_own() as fluid:
        loss = loss_of(fluid)
        fluid.clip.set_gradient_clip(fluid.clip.GradientClipByGlobalNorm(0.5))
        plain(fluid.optimizer.SGD(1.0), loss)
        assert moved(fluid) == pytest.approx(0.5)
    with program_of_its_own() as fluid:
        plain(fluid.optimizer.SGD(1.0), loss_of(fluid))
        assert moved(fluid) == pytest.approx(10 * 3**0.5)


def test_a_clone_keeps_the_limit() -> None:
    with program_of_its_own() as fluid:
        loss = loss_of(fluid)
        fluid.clip.set_gradient_clip(fluid.clip.GradientClipByGlobalNorm(0.5))
        clone = fluid.default_main_program().clone()
        with fluid.program_guard(clone, fluid.default_startup_program()):
            plain(fluid.optimizer.SGD(1.0), clone.global_block().var(loss.name))
            assert moved(fluid) == pytest.approx(0.5)


def test_the_program_may_be_named() -> None:
    with program_of_its_own() as fluid:
        first = fluid.default_main_program()
    with program_of_its_own() as fluid:
        fluid.clip.set_gradient_clip(fluid.clip.GradientClipByValue(0.5), program=first)
        plain(fluid.optimizer.SGD(1.0), loss_of(fluid))
        assert moved(fluid) == pytest.approx(10 * 3**0.5)


def test_a_limit_between_the_distributed_optimizer_and_its_minimize() -> None:
    with program_of_its_own() as fluid:
        distributed(fluid.optimizer.SGD(1.0), loss_of(fluid))
        assert moved(fluid) == pytest.approx(0.5)


@pytest.mark.parametrize("minimize", [plain, distributed])
def test_the_optimizers_own_limit_wins(minimize: Callable[[Any, Any], None]) -> None:
    with program_of_its_own() as fluid:
        loss = loss_of(fluid)
        fluid.clip.set_gradient_clip(fluid.clip.GradientClipByGlobalNorm(0.5))
        own = fluid.clip.GradientClipByGlobalNorm(2.0)
        minimize(fluid.optimizer.SGD(1.0, grad_clip=own), loss)
        assert moved(fluid) == pytest.approx(2.0)


def test_a_limit_of_all_listed_parameters() -> None:
    with program_of_its_own() as fluid:
        loss = loss_of(fluid)
        listed = fluid.default_main_program().all_parameters()
        limit = fluid.clip.GradientClipByGlobalNorm(0.5)
        fluid.clip.set_gradient_clip(limit, param_list=listed)
        plain(fluid.optimizer.SGD(1.0), loss)
        assert moved(fluid) == pytest.approx(0.5)


def test_a_limit_of_a_parameters_own() -> None:
    with program_of_its_own() as fluid:
        limit = fluid.clip.GradientClipByNorm(0.5)
        plain(fluid.optimizer.SGD(1.0), loss_of(fluid, gradient_clip=limit))
        assert moved(fluid) == pytest.approx(0.5)


def test_limits_of_some_parameters_are_refused() -> None:
    with program_of_its_own() as fluid:
        loss = loss_of(fluid, gradient_clip=fluid.clip.GradientClipByNorm(0.5))
        x = fluid.layers.data(name="z", shape=[3], dtype="float32")
        free = fluid.layers.fc(x, 1, param_attr=weight_attr(fluid, "free"), bias_attr=False)
        with pytest.raises(ValueError, match=r"weight is limited by .* and that of free by None"):
            plain(fluid.optimizer.SGD(1.0), loss + fluid.layers.mean(free))
        fluid.clip.set_gradient_clip(fluid.clip.GradientClipByNorm(0.1), param_list=["free"])
        with pytest.raises(ValueError, match=r"one grad_clip=fluid\.clip"):
            plain(fluid.optimizer.SGD(1.0), loss + fluid.layers.mean(free))
