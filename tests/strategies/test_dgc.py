"""Deep gradient compression: the formulas, what travels, and company."""

import io
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

import fleetx as fleet
from fleetx import PlanError, roles
from fleetx.engine.engine import Engine
from fleetx.plan.compose import compose
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.job import Job
from fleetx.plan.step import Step
from fleetx.plan.strategy import Strategy
from fleetx.testing import world
from tests.engine.training import spread, weights

Array = NDArray[np.float64]
RAMP = {"rampup_begin_step": 3, "rampup_step": 6, "sparsity": [0.75, 0.9, 0.99]}
WIDTH = 128  # a square matrix of this width is just large enough to be compressed


def batches(rank: int, steps: int, samples: int = 8) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        drawn = torch.randn(2, samples, WIDTH, generator=generator)
        yield drawn[0], drawn[1]


def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(WIDTH, WIDTH)


def switched_on(options: dict[str, Any], **others: Any) -> fleet.DistributedStrategy:
    strategy = fleet.DistributedStrategy()
    strategy.dgc = True
    setattr(strategy, "dgc_configs", options)  # noqa: B010
    for name, value in others.items():
        setattr(strategy, name, value)
    return strategy


def start(
    strategy: fleet.DistributedStrategy, model: nn.Module | None = None, **options: Any
) -> tuple[nn.Module, fleet.DistributedOptimizer]:
    roles.stop()  # a model of the job before may still be there
    fleet.init(is_collective=True, strategy=strategy)
    model = fleet.distributed_model(layer() if model is None else model)
    sgd = torch.optim.SGD(model.parameters(), **({"lr": 0.5, "momentum": 0.9} | options))
    return model, fleet.distributed_optimizer(sgd)


def trained(
    strategy: fleet.DistributedStrategy, steps: int = 12, samples: int = 8, **options: Any
) -> Tensor:
    model, optimizer = start(strategy, **options)
    for x, y in batches(fleet.worker_index(), steps, samples):
        optimizer.minimize(F.mse_loss(model(x), y))
    assert spread(weights(model)) == 0
    return weights(model)


def top(values: Array, wanted: int) -> NDArray[np.intp]:
    return np.argsort(-np.abs(values))[:wanted]


def reference(
    steps: int,
    config: dict[str, Any],
    ranks: int = 2,
    *,
    lr: float = 0.5,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> Array:
    """Both workers in one process, in 64 bits, written from the formulas alone."""
    model = layer()
    w = model.weight.detach().double().numpy().reshape(-1)
    b = model.bias.detach().double().numpy()
    start, levels, limit = config["rampup_begin_step"], config["sparsity"], config.get("limit", 0)
    u, v = np.zeros((ranks, w.size)), np.zeros((ranks, w.size))
    slow, sign = np.zeros_like(b), -1 if maximize else 1
    data = [list(batches(rank, steps)) for rank in range(ranks)]
    for step in range(steps):
        gw, gb = [], []
        for rank in range(ranks):
            x, y = (part.double().numpy() for part in data[rank][step])
            error = sign * 2 * (x @ w.reshape(WIDTH, WIDTH).T + b - y) / y.size
            g = (error.T @ x).reshape(-1) / ranks
            if limit and step >= start:
                g *= min(1, limit / math.sqrt(ranks) / np.linalg.norm(g))
            gw.append(ranks * g + weight_decay * w)
            gb.append(error.sum(0))
        if step < start:
            g = sum(gw) / ranks
            u[:] = momentum * u[0] + g
            move = g + momentum * u[0] if nesterov else u[0]
        else:
            at = min(int((step - start) * len(levels) / config["rampup_step"]), len(levels) - 1)
            wanted, sums = max(1, int(w.size * (1 - levels[at]))), np.zeros_like(w)
            for rank in range(ranks):
                if nesterov:
                    u[rank] = momentum * (u[rank] + gw[rank])
                    v[rank] += u[rank] + gw[rank]
                else:
                    u[rank] = momentum * u[rank] + gw[rank]
                    v[rank] += u[rank]
                chosen = top(v[rank], wanted)
                sums[chosen] += v[rank][chosen]
                u[rank][chosen] = v[rank][chosen] = 0
            move = sums / ranks
        small = sum(gb) / ranks + weight_decay * b
        slow = momentum * slow + small
        w = w - lr * move
        b = b - lr * (small + momentum * slow if nesterov else slow)
    return np.concatenate([w, b])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"nesterov": True},
        {"weight_decay": 0.1},
        {"nesterov": True, "weight_decay": 0.1, "momentum": 0.5},
        {"weight_decay": 0.1, "maximize": True, "lr": 0.01},
    ],
)
def test_weights_are_those_of_the_formulas(options: dict[str, Any]) -> None:
    expected = torch.from_numpy(reference(12, RAMP, **options))
    for found in world(2).run(lambda: trained(switched_on(RAMP), **options)):
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)


def test_local_clipping_is_that_of_the_formulas() -> None:
    expected = torch.from_numpy(reference(12, RAMP | {"limit": 0.05}))
    free = torch.from_numpy(reference(12, RAMP))
    assert float((expected - free).abs().max()) > 1e-3
    options = RAMP | {"local_grad_clip_norm": 0.05}
    for found in world(2).run(lambda: trained(switched_on(options))):
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)


def test_three_workers_stay_equal_to_the_last_bit() -> None:
    expected = torch.from_numpy(reference(12, RAMP, ranks=3))
    for found in world(3).run(lambda: trained(switched_on(RAMP))):
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)


def plain(optimizer: Callable[[nn.Linear], torch.optim.Optimizer], steps: int = 12) -> Tensor:
    roles.stop()
    fleet.init(is_collective=True, strategy=fleet.DistributedStrategy())
    model = fleet.distributed_model(layer())
    wrapped = fleet.distributed_optimizer(optimizer(model))
    for x, y in batches(fleet.worker_index(), steps):
        wrapped.minimize(F.mse_loss(model(x), y))
    return weights(model)


@world(2)
def test_nothing_stays_at_home_at_a_sparsity_of_zero() -> None:
    # What is sent loses its velocity, so that everything sent means no momentum at all.
    found = trained(switched_on({"sparsity": [0.0]}))
    expected = plain(
        lambda model: torch.optim.SGD(
            [
                {"params": [model.weight], "momentum": 0.0},
                {"params": [model.bias], "momentum": 0.9},
            ],
            lr=0.5,
        )
    )
    assert torch.equal(found, expected)


@world(2)
@pytest.mark.parametrize("nesterov", [False, True])
def test_the_warm_up_is_plain_training(nesterov: bool) -> None:
    found = trained(switched_on({"rampup_begin_step": 100}), nesterov=nesterov, weight_decay=0.01)
    expected = plain(
        lambda model: torch.optim.SGD(
            model.parameters(), lr=0.5, momentum=0.9, nesterov=nesterov, weight_decay=0.01
        )
    )
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def kept(optimizer: fleet.DistributedOptimizer) -> dict[str, Any]:
    state: dict[str, Any] = optimizer.state_dict()["strategies"]["dgc"]
    return state


@world(2)
@pytest.mark.parametrize("half", [False, True])
def test_what_is_not_sent_goes_on_waiting(half: bool) -> None:
    model, optimizer = start(switched_on({"sparsity": [0.9]}, fp16_allreduce=half), lr=1.0)
    assert isinstance(model, nn.Linear)
    zeros = torch.zeros(WIDTH, WIDTH)
    u, v = zeros, zeros
    for x, y in batches(fleet.worker_index(), 5):
        before = model.weight.detach().clone()
        (gradient,) = torch.autograd.grad(
            F.mse_loss(F.linear(x, before.requires_grad_()), y), before
        )
        optimizer.minimize(F.mse_loss(F.linear(x, model.weight) + 0 * model(x).sum(), y))
        state = kept(optimizer)
        grown = v + 0.9 * u + gradient
        sent = grown - state["v"]["weight"]
        moved = before.detach() - model.weight.detach()
        dist.all_reduce(sent)
        torch.testing.assert_close(moved, sent / 2, rtol=1e-5, atol=1e-6)
        u, v = state["u"]["weight"], state["v"]["weight"]
        assert int((u == 0).sum()) == 1638
        lost = float(v[u == 0].abs().max())
        assert 0 < lost < 1e-4 if half else lost == 0  # what rounding to the wire lost waits, too


class Bytes(TorchDispatchMode):
    """Counts what this rank gives to collectives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sent: dict[str, int] = {}

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            name = func._schema.name.removeprefix("c10d::")
            own = args[1] if "gather" in name else args[0]
            tensors = own if isinstance(own, list | tuple) else [own]
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            self.sent[name] = self.sent.get(name, 0) + size
        return func(*args, **kwargs or {})


def traffic(**others: Any) -> list[dict[str, int]]:
    model, optimizer = start(
        switched_on({"rampup_begin_step": 1, "rampup_step": 2, "sparsity": [0.9, 0.999]}, **others)
    )
    found = []
    for x, y in batches(fleet.worker_index(), 4):
        loss = F.mse_loss(model(x), y)
        with Bytes() as counted:
            optimizer.minimize(loss)
        found.append(counted.sent)
    return found


@pytest.mark.parametrize(("half", "whole", "entry"), [(False, 4, 8), (True, 2, 6)])
def test_bytes_that_travel(half: bool, whole: int, entry: int) -> None:
    small = {"allreduce_": whole * WIDTH}
    for found in world(2).run(lambda: traffic(fp16_allreduce=half)):
        assert found == [
            {"allreduce_": whole * (WIDTH * WIDTH + WIDTH)},
            {"_allgather_base_": math.ceil(entry * 1638 / 8) * 8} | small,
            {"_allgather_base_": entry * 16} | small,
            {"_allgather_base_": entry * 16} | small,
        ]


class Net(nn.Module):
    """Convolutions in channels-last order and large layers in several buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 256, 3, padding=1)
        self.hidden = nn.Linear(256, 300)
        self.out = nn.Linear(300, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.convolution(x).relu().mean((2, 3))
        out: Tensor = self.out(self.hidden(hidden).tanh())
        return out


def losses(*, channels_last: bool, steps: int, **others: Any) -> tuple[list[float], Tensor]:
    torch.manual_seed(1)
    net = Net()
    if channels_last:
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    options = {"rampup_begin_step": 4, "rampup_step": 8, "sparsity": [0.9, 0.99]}
    strategy = switched_on(options, fuse_all_reduce_ops=False, **others)
    model, optimizer = start(strategy, net, lr=0.1, weight_decay=1e-3)
    generator = torch.Generator().manual_seed(fleet.worker_index())
    x = torch.randn(32, 8, 6, 6, generator=generator)
    y = x.mean((2, 3))[:, :4].argmax(1)
    found = []
    for _ in range(steps):
        loss = F.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        found.append(float(loss))
    assert spread(weights(model)) == 0
    return found, weights(model)


def test_a_small_model_learns() -> None:
    for found, _ in world(2).run(lambda: losses(channels_last=False, steps=120)):
        assert found[0] > 1.2
        assert found[-1] < 0.3


@world(2)
def test_the_order_of_memory_makes_no_difference() -> None:
    _, ordinary = losses(channels_last=False, steps=12)
    _, channels_last = losses(channels_last=True, steps=12)
    torch.testing.assert_close(ordinary, channels_last, rtol=1e-5, atol=1e-6)


@world(2)
@pytest.mark.parametrize("average", [True, False])
def test_several_batches_make_one_update(average: bool) -> None:
    options = RAMP | {"local_grad_clip_norm": 0.05}
    model, optimizer = start(
        switched_on(
            options, gradient_merge=True, gradient_merge_configs={"k_steps": 2, "avg": average}
        ),
        weight_decay=0.1,
    )
    for x, y in batches(fleet.worker_index(), 12):
        for part in (slice(0, 4), slice(4, 8)):
            loss = F.mse_loss(model(x[part]), y[part])
            optimizer.minimize(loss if average else loss / 2)
    assert kept(optimizer)["step"] == 12
    expected = trained(switched_on(options), weight_decay=0.1)
    torch.testing.assert_close(weights(model), expected, rtol=1e-5, atol=1e-6)


class Scaling(Strategy, name=None):
    """A loss scale that changes, and updates that are skipped when a gradient is not finite."""

    name = "scaling"
    contract = Contract(phase=Phase.PRECISION, touches=frozenset({"scale", "ready", "update"}))

    def __init__(self, *factors: float) -> None:
        super().__init__()
        self.factors = list(factors)
        self.skipped = 0

    @override
    def step(self, step: Step, job: Job) -> Step:
        def ready(due: bool) -> bool:
            factor = self.factors.pop(0)
            for parameter in job.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(factor)
            return step.ready(due)

        def update() -> bool:
            assert job.step is not None
            gradients = [p.grad for p in job.model.parameters() if p.grad is not None]
            bad = torch.tensor(float(not all(g.isfinite().all() for g in gradients)))
            # Everybody sees it in its own gradients, without asking the others.
            assert float(job.step.agree(bad)) == float(bad)
            self.skipped += int(bad)
            return False if bad else step.update()

        def scale(loss: Tensor) -> Tensor:
            return step.scale(loss) * self.factors[0]

        return replace(step, scale=scale, ready=ready, update=update)


def scaled(scaling: Scaling, options: dict[str, Any], model: nn.Module | None = None) -> Engine:
    roles.start(is_collective=True)
    plan = compose(switched_on(options, fuse_all_reduce_ops=False).request(), roles.worker_num())
    strategies = sorted([*plan.strategies, scaling], key=lambda s: s.contract.phase)
    plan = replace(plan, strategies=tuple(strategies))
    mesh = roles.mesh(plan.mesh)
    engine = Engine(plan, model or layer(), device=roles.device(), mesh=mesh)
    parameters = engine.job.model.parameters()
    engine.attach(torch.optim.SGD(parameters, lr=0.5, momentum=0.9, weight_decay=0.1))
    return engine


def batch(engine: Engine, x: Tensor, y: Tensor) -> bool:
    loss = F.mse_loss(engine.job.model(x), y)
    engine.backward(loss)
    moved = engine.finish(loss.detach())
    engine.job.model.zero_grad()
    return moved


@world(2)
def test_a_changing_loss_scale_changes_nothing() -> None:
    options = RAMP | {"local_grad_clip_norm": 0.05}
    engine = scaled(Scaling(*[1024.0] * 5, *[512.0] * 2, *[2.0**20] * 5), options)
    for x, y in batches(roles.worker_index(), 12):
        assert batch(engine, x, y)
    assert torch.equal(weights(engine.job.model), trained(switched_on(options), weight_decay=0.1))


@world(2)
@pytest.mark.parametrize("begin", [0, 100])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_skipped_update_leaves_no_trace(begin: int, bad: float) -> None:
    torch.manual_seed(0)
    first = nn.Linear(WIDTH, WIDTH)
    model = nn.Sequential(first, nn.Linear(WIDTH, WIDTH))
    options = {"sparsity": [0.9], "rampup_begin_step": begin}
    scaling = Scaling(*[256.0] * 20)
    engine = scaled(scaling, options, model)
    (codec,) = (s for s in engine.plan.strategies if s.name == "dgc")
    for number, (x, y) in enumerate(batches(roles.worker_index(), 8)):
        before, state = weights(model), flattened(codec.state_dict())
        if number == 4 and roles.worker_index() == 1:
            # One number of the first layer, on one rank; the second layer is exchanged before it.
            hook = first.weight.register_hook(lambda g: g.index_fill(0, torch.tensor(77), bad))
        assert batch(engine, x, y) == (number != 4)
        if number == 4:
            assert torch.equal(weights(model), before)
            assert torch.equal(flattened(codec.state_dict()), state)
            if roles.worker_index() == 1:
                hook.remove()
    assert scaling.skipped == 1
    assert codec.state_dict()["step"] == 7
    assert weights(model).isfinite().all()


def flattened(state: dict[str, Any]) -> Tensor:
    parts = [tensor.flatten() for key in "uv" for tensor in state[key].values()]
    return torch.cat([torch.tensor([float(state["step"])]), *parts])


@world(2)
def test_training_goes_on_from_a_saved_state() -> None:
    data = list(batches(dist.get_rank(), 12))
    model, optimizer = start(switched_on(RAMP), weight_decay=0.1)
    file = io.BytesIO()
    for step, (x, y) in enumerate(data):
        if step == 7:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        optimizer.minimize(F.mse_loss(model(x), y))
    expected, final = weights(model), flattened(kept(optimizer))
    # A new job: nothing but the file is left of the old one.
    saved = torch.load(io.BytesIO(file.getvalue()))
    model, optimizer = start(switched_on(RAMP), weight_decay=0.1)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    assert torch.equal(
        flattened(kept(optimizer)), flattened(saved["optimizer"]["strategies"]["dgc"])
    )
    for x, y in data[7:]:
        optimizer.minimize(F.mse_loss(model(x), y))
    assert torch.equal(weights(model), expected)
    assert torch.equal(flattened(kept(optimizer)), final)
    # What waits differs from rank to rank.
    assert spread(kept(optimizer)["v"]["weight"].flatten()) > 0


@world(2)
def test_a_state_of_another_model_is_refused() -> None:
    _, optimizer = start(switched_on(RAMP))
    strange = {"step": 1, "u": {"other": torch.zeros(3)}, "v": {"other": torch.zeros(3)}}
    state = optimizer.state_dict() | {"strategies": {"dgc": strange}}
    with pytest.raises(ValueError, match=r"'other'.*does not compress"):
        optimizer.load_state_dict(state)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (torch.optim.Adam, "with Adam cannot be in force"),
        (lambda p: torch.optim.SGD(p, lr=0.1), r"SGD\(momentum=0\) cannot be in force"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1), "dampening=0.1"),
    ],
)
@pytest.mark.parametrize("size", [1, 2])
def test_other_update_rules_are_refused(make: Any, reason: str, size: int) -> None:
    def run() -> None:
        fleet.init(is_collective=True, strategy=switched_on({}))
        model = fleet.distributed_model(layer())
        with pytest.raises(PlanError, match=reason):
            fleet.distributed_optimizer(make(model.parameters()))

    world(size).run(run)


def test_no_second_rule_and_no_empty_list() -> None:
    strategy = switched_on({}, lars=True)
    with pytest.raises(PlanError):
        compose(strategy.request(), 2)
    with pytest.raises(ValueError, match="at least one level"):
        switched_on({"sparsity": []})


@world(2)
def test_groups_keep_what_the_user_set() -> None:
    _, optimizer = start(switched_on({}), weight_decay=0.1, nesterov=True)
    (small, large) = optimizer.param_groups
    assert [p.numel() for p in large["params"]] == [WIDTH * WIDTH]
    assert (large["momentum"], large["weight_decay"], large["nesterov"]) == (0, 0, False)
    assert (small["momentum"], small["weight_decay"], small["nesterov"]) == (0.9, 0.1, True)
    assert small["lr"] == large["lr"] == 0.5


@world(2)
def test_momentum_never_acts_twice() -> None:
    model, optimizer = start(switched_on({}))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    assert schedule is not None
    x, y = next(batches(fleet.worker_index(), 1))
    with pytest.raises(RuntimeError, match="cycle_momentum=False"):
        optimizer.minimize(F.mse_loss(model(x), y))


@world(2)
def test_a_second_exchange_before_the_update_is_refused() -> None:
    model, _ = start(switched_on({}))
    x, y = next(batches(fleet.worker_index(), 1))
    F.mse_loss(model(x), y).backward()
    with pytest.raises(RuntimeError, match="exchanged twice before one update"):
        F.mse_loss(model(x), y).backward()


@world(2)
def test_learning_rates_act_at_once() -> None:
    model, optimizer = start(switched_on({"sparsity": [0.9]}))
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = weights(model)
    x, y = next(batches(fleet.worker_index(), 1))
    optimizer.minimize(F.mse_loss(model(x), y))
    assert torch.equal(weights(model), before)


class Forked(nn.Module):
    """The second layer is used in every other batch only."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, both: bool) -> Tensor:
        out: Tensor = self.always(x)
        return self.sometimes(out) if both else out


@world(2)
def test_a_parameter_that_nobody_used_keeps_its_memory() -> None:
    torch.manual_seed(0)
    model, optimizer = start(
        switched_on({"sparsity": [0.9]}, find_unused_parameters=True), Forked()
    )
    assert isinstance(model, Forked)
    for number, (x, y) in enumerate(batches(fleet.worker_index(), 4)):
        state, before = kept(optimizer), model.sometimes.weight.detach().clone()
        optimizer.minimize(F.mse_loss(model(x, both=number % 2 == 0), y))
        if number % 2:
            now = kept(optimizer)
            for key in "uv":
                old, new = state[key], now[key]
                assert torch.equal(old["sometimes.weight"], new["sometimes.weight"])
                assert not torch.equal(old["always.weight"], new["always.weight"])
            assert torch.equal(before, model.sometimes.weight.detach())


@world(1)
def test_one_worker_trains_with_plain_momentum() -> None:
    found = trained(switched_on({"sparsity": [0.9]}))
    expected = plain(lambda model: torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9))
    assert torch.equal(found, expected)


@world(2)
def test_a_model_with_nothing_to_compress_is_refused() -> None:
    with pytest.raises(fleet.PlanError, match="would compress nothing"):
        start(switched_on({}), nn.Linear(4, 4))


def test_the_plan_says_what_travels() -> None:
    strategy = switched_on({"rampup_begin_step": 10, "sparsity": [0.99, 0.999]})
    text = strategy.explain(nn.Linear(1024, 1000, bias=False), workers=4)
    assert "all-reduce of gradients during the backward of the first 10 updates, 5.859 MiB" in text
    # 1024 entries of 8 bytes, for three others.
    assert "all-gather of values and places of the largest entries" in text
    assert "each later update, 24 KiB" in text
