"""The golden trajectories of Paddle, through Paddle's spellings."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetx import roles
from fleetx.testing import world
from tests.compat.workers import served

GOLDEN = Path(__file__).parent.parent / "golden"


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return found


def optimizer(name: str, given: dict[str, Any]) -> tuple[Any, Any]:
    """The optimizer that a file describes, and its scheduler if it has one."""
    import paddle
    from paddle import fluid

    decay = given.get("L2Decay") or given.get("l2_decay") or given.get("weight_decay")
    regularizer = paddle.regularizer.L2Decay(float(decay)) if decay else None
    rate = given.get("learning_rate", 0.1)
    if name.startswith("lars"):
        keys = ("momentum", "lars_coeff", "lars_weight_decay", "exclude_from_weight_decay")
        options = {key: given[key] for key in (*keys, "epsilon")}
        return fluid.optimizer.LarsMomentum(rate, regularization=regularizer, **options), None
    if name.startswith("lamb"):
        ends = tuple(given.get("exclude_endswith") or ())
        keys = ("lamb_weight_decay", "beta1", "beta2", "epsilon")
        options = {key: given[key] for key in keys}
        left_out = (lambda p: p.name.endswith(ends)) if ends else None
        return paddle.optimizer.Lamb(rate, exclude_from_weight_decay_fn=left_out, **options), None
    if name.startswith("adam"):
        options = {key: given[key] for key in ("beta1", "beta2", "epsilon") if key in given}
        return paddle.optimizer.Adam(rate, weight_decay=regularizer, **options), None
    if name.startswith("gradient_merge"):
        inner = (
            fluid.optimizer.Momentum(rate, given["momentum"])
            if given["inner"] == "momentum"
            else fluid.optimizer.SGD(learning_rate=rate)
        )
        merged = fluid.optimizer.GradientMergeOptimizer(inner, given["k_steps"], given["avg"])
        return merged, None
    if name == "sgd":
        return paddle.optimizer.SGD(rate), None
    scheduler = None
    if "boundaries" in given:
        scheduler = paddle.optimizer.lr.PiecewiseDecay(given["boundaries"], given["values"])
    limit = given.get("grad_clip", "")
    assert limit in {"", "ClipGradByGlobalNorm(0.5)"}
    clip = paddle.nn.ClipGradByGlobalNorm(0.5) if limit else None
    return paddle.optimizer.Momentum(
        scheduler or rate,
        given.get("momentum", 0.9),
        use_nesterov=bool(given.get("use_nesterov") or given.get("nesterov")),
        weight_decay=regularizer,
        grad_clip=clip,
    ), scheduler


def fed(key: str) -> str:
    """How the gradient of a parameter is fed."""
    return "g_" + key.replace(".", "_")


ALONE = [
    "adam",
    "adam_l2decay",
    "gradient_merge_momentum_avg",
    "gradient_merge_sgd_avg",
    "gradient_merge_sgd_sum",
    "lamb_default",
    "lamb_exclude",
    "lars_default_exclude",
    "momentum",
    "momentum_globalnorm_clip",
    "momentum_l2decay",
    "momentum_nesterov",
    "momentum_piecewise_lr",
    "sgd",
]


@pytest.mark.parametrize("name", ALONE)
def test_a_program_ends_where_paddles_ends(name: str) -> None:
    import paddle

    golden = read(name)
    paddle.enable_static()
    total: Any = None
    for key, start in golden["initial_params"].items():
        shape = list(golden["shapes"][key])
        feed = paddle.static.data(name=fed(key), shape=shape, dtype="float32")
        value = paddle.static.create_parameter(
            shape=shape,
            dtype="float32",
            name=key,
            default_initializer=paddle.nn.initializer.Assign(np.array(start, "float32")),
        )
        part = paddle.sum(value * feed)
        total = part if total is None else total + part
    made, scheduler = optimizer(name, golden["hyperparameters"])
    made.minimize(total)
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    try:
        for grads, expected in zip(golden["grads"], golden["params_after_step"], strict=True):
            batch = {fed(key): np.array(grad, "float32") for key, grad in grads.items()}
            exe.run(feed=batch, fetch_list=[total])
            for key, value in expected.items():
                found = paddle.static.global_scope().find_var(key).get_tensor()
                np.testing.assert_allclose(np.array(found), value, rtol=2e-5, atol=1e-6)
            if scheduler is not None:
                scheduler.step()
    finally:
        if roles.started():
            roles.stop()


TOGETHER = [
    "dp_momentum",
    "dp_sgd",
    "gradient_merge_avg",
    "lars",
    "localsgd_pure_sgd",
    "sharding_sgd",
]


def trained(name: str) -> list[dict[str, Any]]:
    """On one of two workers: the parameters after each step."""
    import paddle
    from paddle.distributed import fleet

    golden = read(f"dist_{name}")
    paddle.enable_static()
    strategy = fleet.DistributedStrategy()
    for flag, value in golden["strategy"].items():
        setattr(strategy, flag, value)
    fleet.init(is_collective=True, strategy=strategy)
    x = paddle.static.data(name="x", shape=[None, 3], dtype="float32")
    y = paddle.static.data(name="y", shape=[None, 1], dtype="float32")
    assign = paddle.nn.initializer.Assign
    out = paddle.static.nn.fc(
        x,
        size=1,
        weight_attr=paddle.ParamAttr(name="w", initializer=assign(np.float32(golden["w0"]))),
        bias_attr=paddle.ParamAttr(name="b", initializer=assign(np.float32(golden["b0"]))),
    )
    loss = paddle.mean(paddle.square(out - y))
    described = golden["optimizer"]
    plain = (
        paddle.optimizer.Momentum(described["lr"], momentum=described["momentum"])
        if described["type"] == "momentum"
        else paddle.optimizer.SGD(learning_rate=described["lr"])
    )
    fleet.distributed_optimizer(plain, strategy=strategy).minimize(loss)
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    rank = fleet.worker_index()
    scope = paddle.static.global_scope()
    found = []
    for a, b in zip(golden["x"][rank], golden["y"][rank], strict=True):
        exe.run(feed={"x": np.float32(a), "y": np.float32(b)}, fetch_list=[loss])
        found.append({n: np.array(scope.find_var(n).get_tensor()).tolist() for n in ("w", "b")})
    return found


def on_a_worker() -> dict[str, list[dict[str, Any]]]:
    """All files on one of two workers."""
    made = {}
    for name in TOGETHER:
        with served():
            made[name] = trained(name)
    return made


def test_two_workers_end_where_paddles_end() -> None:
    ranks = world(2).run(on_a_worker)
    for name in TOGETHER:
        golden = read(f"dist_{name}")["ranks"]
        for rank, expected in enumerate(golden):
            for step, values in enumerate(expected):
                for key in ("w", "b"):
                    if values.get(key) is None:
                        continue
                    found = ranks[rank][name][step][key]
                    told = f"{name}: {key} of worker {rank} after step {step}"
                    np.testing.assert_allclose(
                        found, values[key], rtol=2e-5, atol=2e-6, err_msg=told
                    )
