"""Lookahead around an optimizer, against the same formula by hand."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetx import roles
from fleetx.testing import world
from tests.compat.workers import served

ALPHA, K, RATE = 0.3, 3, 0.1
FIRST = np.array([[1.0], [-2.0]], "float32")


@pytest.fixture(autouse=True)
def no_job() -> Iterator[None]:
    """Leave the job that a test began."""
    yield
    if roles.started():
        roles.stop()


def batch(step: int, rows: int = 4) -> Any:
    return np.random.RandomState(step).randn(rows, 2).astype("float32")


def by_hand(batches: Sequence[Any], *, after_first: bool = False, velocity: float = 0.0) -> Any:
    """The weight after each update of ``mean((x @ w)^2)``, and what is behind it."""
    fast, slow, moved, found = FIRST.astype("float64"), FIRST.astype("float64"), 0.0, []
    for count, x in enumerate(batches, start=1):
        moved = velocity * moved + 2 * x.T.astype("float64") @ (x @ fast) / len(x)
        fast = fast - RATE * moved
        if after_first and count == 1:
            slow = fast
        if count % K == 0:
            fast = slow = slow + ALPHA * (fast - slow)
        found.append(fast)
    return found


def program(fluid: Any, optimizer: Any) -> Any:
    """A program with one weight of that loss, and that weight."""
    x = fluid.layers.data(name="x", shape=[2], dtype="float32")
    attr = fluid.ParamAttr("w", initializer=fluid.initializer.NumpyArrayInitializer(FIRST))
    out = fluid.layers.fc(x, 1, param_attr=attr, bias_attr=False)
    loss = fluid.layers.mean(fluid.layers.square(out))
    optimizer.minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    return exe


def weight(fluid: Any) -> Any:
    return np.array(fluid.global_scope().find_var("w").get_tensor()).copy()


def trained(fluid: Any, exe: Any, batches: Sequence[Any]) -> list[Any]:
    found = []
    for x in batches:
        exe.run(feed={"x": x})
        found.append(weight(fluid))
    return found


def test_every_kth_update_of_a_program_goes_back_to_slow_weights() -> None:
    from paddle import fluid

    optimizer = fluid.optimizer.LookaheadOptimizer(fluid.optimizer.SGD(RATE), alpha=ALPHA, k=K)
    batches = [batch(step) for step in range(8)]
    found = trained(fluid, program(fluid, optimizer), batches)
    np.testing.assert_allclose(found, by_hand(batches), rtol=1e-5)
    plain = [FIRST - RATE * 2 * batches[0].T @ (batches[0] @ FIRST) / 4]
    np.testing.assert_allclose(found[:1], plain, rtol=1e-5)


def test_slow_weights_begin_behind_the_first_update_in_paddle_2() -> None:
    import paddle
    from paddle import fluid

    optimizer = paddle.incubate.LookAhead(
        paddle.optimizer.Momentum(RATE, momentum=0.9), alpha=ALPHA, k=K
    )
    batches = [batch(step) for step in range(7)]
    found = trained(fluid, program(fluid, optimizer), batches)
    wanted = by_hand(batches, after_first=True, velocity=0.9)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    assert np.abs(wanted[-1] - by_hand(batches, velocity=0.9)[-1]).max() > 1e-3


def eager_parts(paddle: Any) -> tuple[Any, Any]:
    with paddle.utils.unique_name.guard():  # a process of its own names its layers so
        layer = paddle.nn.Linear(2, 1, bias_attr=False)
    layer.weight.set_value(paddle.to_tensor(FIRST))
    adam = paddle.optimizer.Adam(RATE, parameters=layer.parameters())
    return layer, paddle.incubate.LookAhead(adam, alpha=ALPHA, k=K)


def eager_run(paddle: Any, layer: Any, optimizer: Any, steps: range) -> list[Any]:
    found = []
    for step in steps:
        loss = paddle.mean(paddle.square(layer(paddle.to_tensor(batch(step)))))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        found.append(layer.weight.numpy().copy())
    return found


def test_eager_state_goes_on_between_two_meetings() -> None:
    import paddle

    paddle.disable_static()
    layer, optimizer = eager_parts(paddle)
    whole = eager_run(paddle, layer, optimizer, range(8))
    layer, optimizer = eager_parts(paddle)
    first = eager_run(paddle, layer, optimizer, range(4))
    kept = {name: value.clone() for name, value in optimizer.state_dict().items()}
    values = {name: value.clone() for name, value in layer.state_dict().items()}
    layer, optimizer = eager_parts(paddle)
    layer.set_state_dict(values)
    optimizer.set_state_dict(kept)
    rest = eager_run(paddle, layer, optimizer, range(4, 8))
    np.testing.assert_allclose([*first, *rest], whole, rtol=1e-6)
    alone = paddle.nn.Linear(2, 1, bias_attr=False)
    alone.weight.set_value(paddle.to_tensor(FIRST))
    adam = paddle.optimizer.Adam(RATE, parameters=alone.parameters())
    plain = eager_run(paddle, alone, adam, range(3))
    np.testing.assert_allclose(whole[:2], plain[:2])
    wanted = plain[0] + ALPHA * (plain[2] - plain[0])
    np.testing.assert_allclose(whole[2], wanted, rtol=1e-5)


def test_files_keep_slow_weights_and_a_startup_program_begins_them_anew(tmp_path: Path) -> None:
    from paddle import fluid

    optimizer = fluid.optimizer.LookaheadOptimizer(fluid.optimizer.SGD(RATE), alpha=ALPHA, k=K)
    exe = program(fluid, optimizer)
    batches = [batch(step) for step in range(6)]
    trained(fluid, exe, batches[:4])
    fluid.io.save_persistables(exe, str(tmp_path))
    trained(fluid, exe, batches[4:])
    exe.run(fluid.default_startup_program())
    np.testing.assert_allclose(trained(fluid, exe, batches[:5]), by_hand(batches[:5]), rtol=1e-5)
    fluid.io.load_persistables(exe, str(tmp_path))
    found = trained(fluid, exe, batches[4:])
    np.testing.assert_allclose(found, by_hand(batches)[4:], rtol=1e-5)


def test_what_cannot_be_in_force_is_refused() -> None:
    import paddle
    from paddle import fluid
    from paddle.distributed import fleet

    sgd = fluid.optimizer.SGD(RATE)
    with pytest.raises(ValueError, match="alpha is the share"):
        fluid.optimizer.LookaheadOptimizer(sgd, alpha=1.5)
    with pytest.raises(ValueError, match="k is a number of updates"):
        fluid.optimizer.LookaheadOptimizer(sgd, k=0)
    with pytest.raises(TypeError, match="takes an optimizer"):
        paddle.incubate.LookAhead(None)
    wrapped = fluid.optimizer.LookaheadOptimizer(sgd)
    with pytest.raises(ValueError, match="two Lookahead"):
        fluid.optimizer.LookaheadOptimizer(wrapped)
    strategy = fleet.DistributedStrategy()
    strategy.cuda_graph = True
    fleet.init(is_collective=True, strategy=strategy)
    with pytest.raises(ValueError, match="cuda_graph replays updates"):
        program(fluid, fleet.distributed_optimizer(wrapped))


def test_servers_make_updates_that_nothing_follows() -> None:
    from paddle import fluid
    from paddle.fluid.incubate.fleet.base import role_maker
    from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet

    role = role_maker.UserDefinedRoleMaker(
        current_id=0,
        role=role_maker.Role.WORKER,
        worker_num=1,
        server_endpoints=["127.0.0.1:1"],
    )
    fleet.init(role)
    wrapped = fluid.optimizer.LookaheadOptimizer(fluid.optimizer.SGD(RATE))
    with pytest.raises(ValueError, match="lets servers make the updates"):
        program(fluid, fleet.distributed_optimizer(wrapped))


def on_a_worker(strategy_name: str) -> list[Any]:
    """Weights on one of two workers that share each batch."""
    from paddle import fluid
    from paddle.distributed import fleet

    strategy = fleet.DistributedStrategy()
    if strategy_name:
        setattr(strategy, strategy_name, True)
        strategy.sharding_configs = {"sharding_degree": 2}
    fleet.init(is_collective=True, strategy=strategy)
    inner = fluid.optimizer.Momentum(RATE, momentum=0.9)
    wrapped = fluid.optimizer.LookaheadOptimizer(inner, alpha=ALPHA, k=K)
    exe = program(fluid, fleet.distributed_optimizer(wrapped))
    rank = fleet.worker_index()
    return trained(fluid, exe, [batch(step)[2 * rank : 2 * rank + 2] for step in range(7)])


def all_workers() -> list[Any]:
    """Data parallel, and a weight of which each worker has a part."""
    made = []
    for name in ("", "sharding"):
        with served():
            made.append(on_a_worker(name))
    return made


def test_two_workers() -> None:
    wanted = by_hand([batch(step) for step in range(7)], velocity=0.9)
    for found in world(2, timeout=120).run(all_workers):
        np.testing.assert_allclose(found[0], wanted, rtol=1e-4)
        np.testing.assert_allclose(found[1], wanted, rtol=1e-4)
