"""The fold itself: verbs, order, and deeds held against contracts."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

import fleetx as fleet
from fleetx import PlanError, roles
from fleetx.engine.engine import Engine
from fleetx.plan.compose import Request, compose
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.job import Job
from fleetx.plan.optimizer_spec import OptimizerSpec
from fleetx.plan.step import Step
from fleetx.plan.strategy import REGISTRY, Strategy
from fleetx.testing import world
from tests.engine.training import data, net, plain, spread, weights
from tests.strategies.paddle import start

P = ParamSpec("P")


def own_registry(test: Callable[P, None]) -> Callable[P, None]:
    """Forget the strategies that a test registers on a rank, which lives longer than the test."""

    @functools.wraps(test)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        kept = dict(REGISTRY)
        try:
            test(*args, **kwargs)
        finally:
            REGISTRY.clear()
            REGISTRY.update(kept)

    return wrapped


def touching(*parts: str) -> Contract:
    return Contract(phase=Phase.CADENCE, touches=frozenset(parts))


def engine_for(
    *names: str,
    model: nn.Module | None = None,
    criterion: Callable[[Any, Any], Tensor] | None = None,
) -> Engine:
    roles.start(is_collective=True)
    options = fleet.DistributedStrategy().request().options
    request = Request(strategies={name: {} for name in names}, options=options)
    plan = compose(request, roles.worker_num())
    mesh = roles.mesh(plan.mesh)
    return Engine(plan, model or net(), device=roles.device(), mesh=mesh, criterion=criterion)


@world(2)
@own_registry
def test_the_engine_drives_whole_batches() -> None:
    engine = engine_for(criterion=F.cross_entropy)
    engine.attach(torch.optim.SGD(engine.job.model.parameters(), lr=0.1))
    inputs, targets = data()
    rank, size = roles.worker_index(), roles.worker_num()
    for step in range(12):
        at = torch.arange(step * 16, (step + 1) * 16) % len(inputs)
        mine = at[rank::size]
        engine.train_batch((inputs[mine], targets[mine]))
    torch.testing.assert_close(weights(engine.job.model), plain("sgd", 16), rtol=1e-6, atol=1e-6)


@world(1)
@own_registry
def test_whole_batches_need_a_criterion() -> None:
    engine = engine_for()
    engine.attach(torch.optim.SGD(engine.job.model.parameters(), lr=0.1))
    with pytest.raises(PlanError, match="no criterion turns outputs into a loss"):
        engine.train_batch(data())


class EverySecond:
    """A cadence as a strategy would build it: two batches make an update."""

    def __init__(self) -> None:
        self.batches = 0

    def due(self) -> bool:
        self.batches += 1
        return self.batches % 2 == 0


@world(2)
@own_registry
def test_a_held_batch_exchanges_nothing_and_keeps_its_gradients() -> None:
    from torch.distributed.tensor.debug import CommDebugMode

    class Merge(Strategy, name="merge"):
        contract = touching("due", "scale")

        @override
        def step(self, step: Step, job: Job) -> Step:
            return replace(step, due=EverySecond().due, scale=lambda loss: step.scale(loss) / 2)

    engine = engine_for(Merge.name)
    model = engine.job.model
    optimizer = fleet.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer.bind(engine)
    inputs, targets = data()
    mine = slice(roles.worker_index(), 32, 2), slice(32 + roles.worker_index(), 64, 2)
    before = weights(model)
    counts = []
    for part in mine:
        with CommDebugMode() as counted:
            optimizer.minimize(F.cross_entropy(model(inputs[part]), targets[part]))
        counts.append(counted.get_total_counts())
        if part is mine[0]:
            assert torch.equal(weights(model), before), "no update yet"
            assert all(p.grad is not None for p in model.parameters()), "gradients wait"
            assert spread(torch.cat([p.grad.flatten() for p in model.parameters()])) > 0  # type: ignore[union-attr]
    assert counts == [0, 1], "one all-reduce in two batches"
    assert not torch.equal(weights(model), before)
    assert spread(weights(model)) == 0
    assert all(p.grad is None for p in model.parameters())
    whole = net()
    F.cross_entropy(whole(inputs[:64]), targets[:64]).backward()
    expected = torch.cat([(p - 0.1 * p.grad).flatten() for p in whole.parameters()])  # type: ignore[operator]
    torch.testing.assert_close(weights(model), expected.detach(), rtol=1e-6, atol=1e-6)

    optimizer.zero_grad()
    F.cross_entropy(model(inputs), targets).backward()
    with pytest.raises(RuntimeError, match=r"call optimizer\.backward\(loss\) instead"):
        optimizer.step()


@world(2)
@own_registry
def test_a_reduce_verb_sees_every_bucket() -> None:
    import torch.distributed as dist

    seen: list[int] = []

    class Count(Strategy, name="count"):
        contract = Contract(phase=Phase.CODEC, touches=frozenset({"reduce"}))

        @override
        def step(self, step: Step, job: Job) -> Step:
            def reduce(bucket: Any) -> Any:
                seen.append(bucket.buffer().numel())
                mean = bucket.buffer().div_(job.size("dp"))
                work = dist.all_reduce(mean, group=job.mesh["dp"].get_group(), async_op=True)
                assert work is not None
                return work.get_future().then(lambda future: future.value()[0])

            return replace(step, reduce=reduce)

    engine = engine_for(Count.name, criterion=F.cross_entropy)
    engine.attach(torch.optim.SGD(engine.job.model.parameters(), lr=0.1))
    inputs, targets = data()
    mine = slice(roles.worker_index(), 16, 2)
    engine.train_batch((inputs[mine], targets[mine]))
    assert sum(seen) == sum(p.numel() for p in net().parameters())
    torch.testing.assert_close(
        weights(engine.job.model), plain("sgd", 16, steps=1), rtol=1e-6, atol=1e-6
    )


@world(1)
@own_registry
def test_settle_follows_every_due_batch_also_a_skipped_one() -> None:
    settled: list[float | None] = []
    verdicts = iter([True, False])

    class Picky(Strategy, name="picky"):
        contract = touching("update", "settle")

        @override
        def step(self, step: Step, job: Job) -> Step:
            def settle(loss: Tensor | None) -> None:
                settled.append(None if loss is None else float(loss))

            return replace(step, update=lambda: next(verdicts) and step.update(), settle=settle)

    engine = engine_for(Picky.name, criterion=F.cross_entropy)
    engine.attach(torch.optim.SGD(engine.job.model.parameters(), lr=0.1))
    first = engine.train_batch(data())
    before = weights(engine.job.model)
    second = engine.train_batch(data())
    assert settled == [float(first), float(second)]
    assert torch.equal(weights(engine.job.model), before)


@world(1)
@own_registry
def test_an_optimizer_is_rebuilt_by_names_and_keeps_its_scheduler() -> None:
    class Swap(Strategy, name="swap"):
        contract = touching("optimizer")

        @override
        def optimizer(self, spec: OptimizerSpec, job: Job) -> OptimizerSpec:
            return replace(spec, cls=torch.optim.RMSprop, defaults={"lr": 0.3})

    engine = engine_for(Swap.name)
    bias = [p for n, p in engine.job.model.named_parameters() if n.endswith("bias")]
    rest = [p for n, p in engine.job.model.named_parameters() if n.endswith("weight")]
    groups: list[dict[str, Any]] = [{"params": bias, "lr": 0.7}, {"params": rest}]
    mine = torch.optim.SGD(groups, lr=0.2)
    scheduler = torch.optim.lr_scheduler.StepLR(mine, step_size=1, gamma=0.1)
    built = engine.attach(mine)
    assert type(built) is torch.optim.RMSprop
    assert [len(group["params"]) for group in built.param_groups] == [3, 3]
    assert [group["lr"] for group in built.param_groups] == [0.7, 0.2]
    engine.begin()
    engine.finish()
    scheduler.step()
    assert [round(group["lr"], 6) for group in built.param_groups] == [0.07, 0.02]


class _Renamed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


@pytest.mark.parametrize("deed", ["model", "forward", "optimizer", "due"])
@world(1)
@own_registry
def test_an_undeclared_deed_is_refused(deed: str) -> None:
    class Sly(Strategy, name="sly"):
        contract = Contract(phase=Phase.MEMORY)

        @override
        def model(self, model: nn.Module, job: Job) -> nn.Module:
            if deed == "model":
                return nn.Sequential(*model.children())
            if deed == "forward":
                model.forward = lambda x: x
            return model

        @override
        def optimizer(self, spec: OptimizerSpec, job: Job) -> OptimizerSpec:
            return replace(spec, defaults={}) if deed == "optimizer" else spec

        @override
        def step(self, step: Step, job: Job) -> Step:
            return replace(step, due=lambda: False) if deed == "due" else step

    part = "model" if deed == "forward" else deed
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(PlanError, match=rf"sly changed \['{part}'\], which its contract does not"):
        engine_for(Sly.name, model=model).attach(optimizer)


@world(1)
@own_registry
def test_a_state_that_the_plan_cannot_use_is_refused() -> None:
    class Other(Strategy, name="other"):
        contract = touching("optimizer")

        @override
        def optimizer(self, spec: OptimizerSpec, job: Job) -> OptimizerSpec:
            return replace(spec, cls=torch.optim.RMSprop, defaults={"lr": 0.3})

    model = net()
    mine = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    model(torch.ones(2, 6)).sum().backward()
    mine.step()
    engine = engine_for(Other.name, model=model)
    with pytest.raises(PlanError, match="the SGD has state already, and this plan replaces it by"):
        engine.attach(mine)


@world(1)
@own_registry
def test_renaming_a_parameter_is_refused() -> None:
    class Wrap(Strategy, name="wrap"):
        contract = touching("model")

        @override
        def model(self, model: nn.Module, job: Job) -> nn.Module:
            return _Renamed(model)

    with pytest.raises(PlanError, match="wrap renamed parameters, which breaks checkpoints"):
        engine_for(Wrap.name)


@world(1)
@own_registry
def test_the_state_of_strategies_travels_with_the_optimizer() -> None:
    class Remembers(Strategy, name="remembers"):
        contract = touching("settle")
        updates = 0

        @override
        def step(self, step: Step, job: Job) -> Step:
            def settle(loss: Tensor | None) -> None:
                self.updates += 1

            return replace(step, settle=settle)

        @override
        def state_dict(self) -> dict[str, Any]:
            return {"updates": self.updates}

        @override
        def load_state_dict(self, state: Any) -> None:
            self.updates = state["updates"]

    def optimizer() -> fleet.DistributedOptimizer:
        engine = engine_for(Remembers.name)
        made = fleet.DistributedOptimizer(
            torch.optim.SGD(engine.job.model.parameters(), lr=0.1, momentum=0.9)
        )
        made.bind(engine)
        inputs, targets = data()
        made.minimize(F.cross_entropy(engine.job.model(inputs), targets))
        return made

    state = optimizer().state_dict()
    assert state["strategies"] == {"remembers": {"updates": 1}}
    state["strategies"]["remembers"]["updates"] = 41
    other = optimizer()
    other.load_state_dict(state)
    assert other.state_dict()["strategies"] == {"remembers": {"updates": 41}}


HOOKS = ["register_hook", "register_post_accumulate_grad_hook"]
CUT: dict[str, dict[str, Any]] = {
    "sharding": {"sharding": True},
    "tensor_parallel": {
        "tensor_parallel": True,
        "tensor_parallel_configs": {"tensor_parallel_degree": 2, "column": ["0"], "row": ["2"]},
    },
}


@world(2)
@pytest.mark.parametrize("kind", HOOKS)
@pytest.mark.parametrize("name", CUT)
def test_a_hook_of_a_parameter_that_is_replaced_is_refused(name: str, kind: str) -> None:
    start(**CUT[name])
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    getattr(model[0].weight, kind)(lambda gradient: None)
    with pytest.raises(PlanError, match=rf"'0\.weight' has a gradient hook, and {name} replaces"):
        fleet.distributed_model(model)


@world(2)
@pytest.mark.parametrize("name", CUT)
def test_a_hook_that_is_registered_later_is_called(name: str) -> None:
    start(**CUT[name])
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    before = fleet.full_state_dict(model, everywhere=True)
    weight: Any = model[0].weight
    weight.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))
    optimizer.minimize(model(torch.ones(2, 4)).sum())
    after = fleet.full_state_dict(model, everywhere=True)
    assert torch.equal(before["0.weight"], after["0.weight"])
    assert not torch.equal(before["2.weight"], after["2.weight"])


@world(2)
def test_hooks_of_an_optimizer_that_is_replaced_are_called() -> None:
    start(sharding=True)
    layer, calls = nn.Linear(4, 1), list[int]()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    model = fleet.distributed_model(layer)
    fleet.distributed_optimizer(optimizer).minimize(model(torch.ones(2, 4)).sum())
    assert calls == [1]
