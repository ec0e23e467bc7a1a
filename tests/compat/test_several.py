"""Several ``minimize()`` calls on one program, against the same training in plain torch."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fleetx import roles
from fleetx.testing import world
from tests.compat.workers import served

FIRST = {
    "g": np.array([[0.5, -1.0], [2.0, 0.3]], "float32"),
    "d": np.array([[1.5], [-0.7]], "float32"),
}


@pytest.fixture(autouse=True)
def no_job() -> Iterator[None]:
    """Leave the job that a test began."""
    yield
    if roles.started():
        roles.stop()


def batch(step: int) -> dict[str, Any]:
    chance = np.random.RandomState(step)
    return {name: chance.randn(4, 2).astype("float32") for name in ("noise", "real")}


def weights(fluid: Any, *names: str) -> list[Any]:
    scope = fluid.global_scope()
    return [np.array(scope.find_var(name).get_tensor()).copy() for name in names]


def layer(fluid: Any, x: Any, size: int, name: str, **options: Any) -> Any:
    first = fluid.initializer.NumpyArrayInitializer(FIRST[name])
    attr = fluid.ParamAttr(name=name, initializer=first)
    return fluid.layers.fc(x, size, param_attr=attr, bias_attr=False, **options)


def losses(fluid: Any) -> tuple[Any, Any]:
    """What a discriminator and a generator make small."""
    noise = fluid.layers.data(name="noise", shape=[2], dtype="float32")
    real = fluid.layers.data(name="real", shape=[2], dtype="float32")
    drawn = layer(fluid, noise, 2, "g", act="tanh")
    of_real, of_drawn = (layer(fluid, x, 1, "d", act="sigmoid") for x in (real, drawn))
    judged = fluid.layers.square(of_real - 1.0) + fluid.layers.square(of_drawn)
    return fluid.layers.mean(judged), fluid.layers.mean(fluid.layers.square(of_drawn - 1.0))


def begun(fluid: Any) -> Any:
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    return exe


class Reference:
    """The same two networks, whose gradients are taken before either moves."""

    def __init__(self, **rules: Callable[[Any], Any]) -> None:
        self.d, self.g = (torch.tensor(FIRST[n], requires_grad=True) for n in ("d", "g"))
        self.rules = [rules["d"]([self.d]), rules["g"]([self.g])]

    def step(self, fed: dict[str, Any]) -> list[float]:
        noise, real = (torch.tensor(fed[name]) for name in ("noise", "real"))
        of_drawn = torch.sigmoid(torch.tanh(noise @ self.g) @ self.d)
        by_d = ((torch.sigmoid(real @ self.d) - 1) ** 2 + of_drawn**2).mean()
        by_g = ((of_drawn - 1) ** 2).mean()
        (self.d.grad,) = torch.autograd.grad(by_d, [self.d], retain_graph=True)
        (self.g.grad,) = torch.autograd.grad(by_g, [self.g])
        for rule in self.rules:
            rule.step()
        return [by_d.item(), by_g.item()]

    def weights(self) -> list[Any]:
        return [self.d.detach().numpy().copy(), self.g.detach().numpy().copy()]


def sgd(rate: float) -> Callable[[Any], Any]:
    return lambda parameters: torch.optim.SGD(parameters, lr=rate)


def test_two_networks_that_train_against_each_other() -> None:
    from paddle import fluid

    by_d, by_g = losses(fluid)
    clip = fluid.clip.GradientClipByGlobalNorm(0.05)
    rate = fluid.layers.piecewise_decay([2], [0.1, 0.01])
    _, of_d = fluid.optimizer.Adam(rate, beta1=0.5).minimize(by_d, parameter_list=["d"])
    _, of_g = fluid.optimizer.SGD(0.3, grad_clip=clip).minimize(by_g, parameter_list=["g"])
    assert [(p.name, g.name) for p, g in (*of_d, *of_g)] == [("d", "d@GRAD"), ("g", "g@GRAD")]
    exe = begun(fluid)
    told = Reference(
        d=lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.5, 0.999)),
        g=lambda p: torch.optim.SGD(p, lr=0.3),
    )
    for step in range(5):
        told.rules[0].param_groups[0]["lr"] = 0.1 if step < 2 else 0.01
        found = exe.run(feed=batch(step), fetch_list=[by_d, by_g, "g@GRAD"])
        # the limit is of the generator alone: the reference clips by hand
        wanted, slope = clipped(told, batch(step), 0.05)
        np.testing.assert_allclose([float(v) for v in found[:2]], wanted, rtol=1e-4)
        np.testing.assert_allclose(found[2], slope, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(weights(fluid, "d"), told.weights()[:1], rtol=1e-4)
        np.testing.assert_allclose(weights(fluid, "g"), told.weights()[1:], rtol=1e-4)


def clipped(told: Any, fed: dict[str, Any], limit: float) -> tuple[list[float], Any]:
    """A step of the reference with a limit on the generator's gradient, and that before it."""
    found: list[Any] = []

    def shorten(*_: Any) -> None:
        found.append(told.g.grad.numpy().copy())
        torch.nn.utils.clip_grad_norm_([told.g], limit)

    hook = told.rules[1].register_step_pre_hook(shorten)
    losses_before = told.step(fed)
    hook.remove()
    return losses_before, found[0]


def test_one_loss_is_shared_by_two_optimizers() -> None:
    """As scripts train wide and deep parts."""
    from paddle import fluid

    x = fluid.layers.data(name="noise", shape=[2], dtype="float32")
    total = layer(fluid, x, 1, "d") + fluid.layers.reduce_sum(layer(fluid, x, 2, "g"), dim=1)
    loss = fluid.layers.mean(fluid.layers.square(total))
    fluid.optimizer.SGD(0.1).minimize(loss, parameter_list=["d"])
    fluid.optimizer.Momentum(0.01, momentum=0.9).minimize(loss, parameter_list=["g"])
    exe = begun(fluid)
    d, g = (torch.tensor(FIRST[name], requires_grad=True) for name in ("d", "g"))
    rules = [torch.optim.SGD([d], lr=0.1), torch.optim.SGD([g], lr=0.01, momentum=0.9)]
    for step in range(4):
        exe.run(feed={"noise": batch(step)["noise"]})
        x = torch.tensor(batch(step)["noise"])
        ((x @ d + (x @ g).sum(1)) ** 2).mean().backward()
        for rule in rules:
            rule.step()
            rule.zero_grad()
    for found, wanted in zip(weights(fluid, "d", "g"), (d, g), strict=True):
        np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-4)


def test_losses_that_share_nothing_are_differentiated_once() -> None:
    from paddle import fluid

    from fleetx.compat.routes import first_order

    noise = fluid.layers.data(name="noise", shape=[2], dtype="float32")
    parts = [fluid.layers.mean(layer(fluid, noise, size, n)) for n, size in (("d", 1), ("g", 2))]
    parts[1] = parts[1] * 2.0
    optimizer = fluid.optimizer.SGD(1.0)
    for name, loss in zip(("d", "g"), parts, strict=True):
        optimizer.minimize(loss, parameter_list=[name])
    program = fluid.default_main_program()
    assert all(node.target is not first_order for node in program.graph.nodes)
    exe = begun(fluid)
    fed = batch(0)["noise"]
    exe.run(feed={"noise": fed})
    mean = fed.mean(0)[:, None]
    d, g = weights(fluid, "d", "g")
    np.testing.assert_allclose(d, FIRST["d"] - mean, rtol=1e-4)
    np.testing.assert_allclose(g, FIRST["g"] - mean.repeat(2, 1), rtol=1e-4)


def test_a_call_is_made_again_and_assignments_follow_the_rule_that_moves() -> None:
    """The weights of a critic are limited behind its update, as scripts do."""
    from paddle import fluid

    by_d, by_g = losses(fluid)
    first = fluid.optimizer.SGD(5.0)
    first.minimize(by_d, parameter_list=["d"])
    first.minimize(by_d, parameter_list=["d"])
    d = fluid.default_main_program().global_block().var("d")
    fluid.layers.assign(fluid.layers.clip(d, -1.0, 1.0) * 0.5, d)
    fluid.optimizer.SGD(0.3).minimize(by_g, parameter_list=["g"])
    exe = begun(fluid)
    told = Reference(d=sgd(5.0), g=sgd(0.3))
    for step in range(3):
        exe.run(feed=batch(step))
        told.step(batch(step))
        with torch.no_grad():
            told.d.clamp_(-1, 1).mul_(0.5)
        for found, wanted in zip(weights(fluid, "d", "g"), told.weights(), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_files_keep_the_state_of_each(tmp_path: Path) -> None:
    from paddle import fluid

    by_d, by_g = losses(fluid)
    fluid.optimizer.Momentum(0.1, momentum=0.9).minimize(by_d, parameter_list=["d"])
    fluid.optimizer.Adam(0.05).minimize(by_g, parameter_list=["g"])
    exe = begun(fluid)
    for step in range(2):
        exe.run(feed=batch(step))
    fluid.io.save_persistables(exe, str(tmp_path))
    assert {"d_velocity_0", "g_moment1_0"} <= {path.name for path in tmp_path.iterdir()}
    for step in range(2, 4):
        exe.run(feed=batch(step))
    whole = weights(fluid, "d", "g")
    exe.run(fluid.default_startup_program())
    fluid.io.load_persistables(exe, str(tmp_path))
    for step in range(2, 4):
        exe.run(feed=batch(step))
    for found, wanted in zip(weights(fluid, "d", "g"), whole, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_what_cannot_be_one_update_is_refused() -> None:
    from paddle import fluid
    from paddle.distributed import fleet

    by_d, by_g = losses(fluid)
    main = fluid.default_main_program()
    fluid.optimizer.SGD(0.1).minimize(by_d, parameter_list=["d"])
    again = layer(fluid, main.global_block().var("real"), 1, "d")
    with pytest.raises(Exception, match="has an optimizer already that moves 'd'"):
        fluid.optimizer.SGD(0.1).minimize(by_g)
    with pytest.raises(Exception, match="would read the moved value"):
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(again) + by_g, parameter_list=["g"])
    with pytest.raises(Exception, match="no gradient by a parameter"):
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(again), parameter_list=["g"])
    with pytest.raises(Exception, match="no_grad_set names a variable"):
        fluid.optimizer.SGD(0.1).minimize(by_g, parameter_list=["g"], no_grad_set={by_d.name})
    fleet.init(is_collective=True)
    strategy = fleet.DistributedStrategy()
    strategy.gradient_merge, strategy.gradient_merge_configs = True, {"k_steps": 2}
    with pytest.raises(Exception, match="different strategies"):
        fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), strategy).minimize(
            by_g, parameter_list=["g"]
        )
    begun(fluid).run(feed=batch(0))  # by the first alone
    np.testing.assert_array_equal(weights(fluid, "g")[0], FIRST["g"])


def test_strategies_that_need_one_loss_are_refused() -> None:
    from paddle import fluid
    from paddle.distributed import fleet

    by_d, by_g = losses(fluid)
    strategy = fleet.DistributedStrategy()
    strategy.recompute, strategy.recompute_configs = True, {"checkpoints": [by_d.name]}
    fleet.init(is_collective=True, strategy=strategy)
    one, other = (fleet.distributed_optimizer(fluid.optimizer.SGD(0.1)) for _ in range(2))
    one.minimize(by_d, parameter_list=["d"])
    with pytest.raises(Exception, match="cannot train under recompute"):
        other.minimize(by_g, parameter_list=["g"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_where_no_loss_is_scaled(dtype: str) -> None:
    from paddle import fluid
    from paddle.distributed import fleet

    by_d, by_g = losses(fluid)
    strategy = fleet.DistributedStrategy()
    strategy.amp, strategy.amp_configs = True, {"dtype": dtype, "decr_ratio": 0.5}
    fleet.init(is_collective=True, strategy=strategy)
    one, other = (fleet.distributed_optimizer(fluid.optimizer.SGD(rate)) for rate in (0.5, 0.3))
    one.minimize(by_d, parameter_list=["d"])
    if dtype == "float16":
        with pytest.raises(Exception, match="cannot train under amp in float16"):
            other.minimize(by_g, parameter_list=["g"])
        return
    other.minimize(by_g, parameter_list=["g"])
    exe, told = begun(fluid), Reference(d=sgd(0.5), g=sgd(0.3))
    for step in range(3):
        exe.run(feed=batch(step))
        told.step(batch(step))
    for found, wanted in zip(weights(fluid, "d", "g"), told.weights(), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-2)
        assert np.abs(found - wanted).max() > 1e-6


def on_a_worker() -> list[Any]:
    """Weights on one of two workers that have half of each batch."""
    with served():
        from paddle import fluid
        from paddle.distributed import fleet

        fleet.init(is_collective=True)
        by_d, by_g = losses(fluid)
        one, other = fluid.optimizer.SGD(0.5), fluid.optimizer.Momentum(0.3, momentum=0.5)
        fleet.distributed_optimizer(one).minimize(by_d, parameter_list=["d"])
        fleet.distributed_optimizer(other).minimize(by_g, parameter_list=["g"])
        exe, rank = begun(fluid), fleet.worker_index()
        for step in range(3):
            exe.run(feed={n: v[2 * rank : 2 * rank + 2] for n, v in batch(step).items()})
        return weights(fluid, "d", "g")


def test_two_workers() -> None:
    told = Reference(d=sgd(0.5), g=lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.5))
    for step in range(3):
        told.step(batch(step))
    for found in world(2, timeout=240).run(on_a_worker):
        for one, wanted in zip(found, told.weights(), strict=True):
            np.testing.assert_allclose(one, wanted, rtol=1e-4)
