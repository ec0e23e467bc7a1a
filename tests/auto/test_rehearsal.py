"""A model's own forward and backward, as a copy of it runs on the CPU that is here."""

import random
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import isnan
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import override

import fleetx as fleet
from fleetx.auto.clock import OperatorClock
from fleetx.auto.cluster import Cluster, Device, Link
from fleetx.auto.estimate import Estimate, estimate
from fleetx.auto.rehearsal import Rehearsal
from fleetx.plan.accounts import Accounts
from fleetx.plan.compose import compose
from fleetx.plan.subject import Subject
from fleetx.plan.trace import Operation
from fleetx.plan.whole_call import WholeCall
from fleetx.testing import world
from tests.libraries import transformers

CPU = torch.device("cpu")
WORKER = Device(
    kind="cpu",
    memory_gigabytes=8,
    teraflops={"product 32": 0.01, "product 16": 0.01},
    memory_gigabytes_per_second=1,
    microseconds_per_kernel=1,
)
LINK = Link(gigabytes_per_second=1, microseconds=1)
ROOM = 1e9


def gpt() -> nn.Module:
    config = transformers.GPT2Config(
        n_layer=4, n_embd=32, n_head=4, vocab_size=64, n_positions=16, bos_token_id=0
    )
    made: nn.Module = transformers.GPT2LMHeadModel(config)
    return made


def accounts(
    model: nn.Module,
    sample: Any,
    timed: OperatorClock | None = None,
    workers: int = 1,
    **flags: Any,
) -> Accounts:
    strategy = fleet.DistributedStrategy()
    for name, value in flags.items():
        setattr(strategy, name, value)
    subject = Subject(model=model, sample=sample, clock=timed)
    return Accounts(compose(strategy.request(), workers), subject)


def words(samples: int) -> dict[str, Tensor]:
    return {"input_ids": torch.zeros(samples, 16, dtype=torch.int64)}


class Called(OperatorClock):
    """Its models take ten seconds forward and thirty backward, and its operators are all alike."""

    def __init__(self) -> None:
        super().__init__(CPU, WORKER)
        self.calls: list[WholeCall] = []

    @override
    def __call__(self, one: Operation, wanted: Collection[int]) -> tuple[float, float]:
        return (1e-3, 2e-3) if one.count.moved else (0.0, 0.0)

    @override
    def called(self, call: WholeCall) -> tuple[float, float]:
        self.calls.append(call)
        return 10.0, 30.0


def expected(timed: OperatorClock | None, workers: int = 1, **flags: Any) -> Estimate:
    on = Cluster(nodes=1, devices_per_node=workers, device=WORKER, inside=LINK, outside=LINK)
    return estimate(accounts(gpt(), words(8), timed, workers, **flags), on)


def test_a_plain_step_takes_what_the_model_took() -> None:
    clock = Called()
    found = expected(clock)
    assert found.forward == pytest.approx(10)
    assert found.backward == pytest.approx(30)
    assert {call.samples for call in clock.calls} == {8}


def test_what_is_replayed_takes_its_forward_once_more() -> None:
    blocks: dict[str, Any] = {
        "recompute": True,
        "recompute_configs": {"checkpoints": ["transformer.h.*"]},
    }
    found = expected(Called(), **blocks)
    assert found.forward == pytest.approx(10)
    assert 30 < found.backward < 40, "the head and the embeddings run once"


def test_a_stage_takes_its_part_of_the_whole_model() -> None:
    clock = Called()
    stages: dict[str, Any] = {
        "pipeline": True,
        "pipeline_configs": {"accumulate_steps": 4},
        "hybrid_configs": {"pp_degree": 2},
    }
    found = expected(clock, 2, **stages)
    assert {call.samples for call in clock.calls} == {2}, "those of a micro-batch"
    assert {call.run.forward for call in clock.calls} == {None}, "called as a whole"
    assert 0.4 * 160 < found.forward + found.backward < 0.9 * 160, "the slower stage of two"


def test_formats_are_those_of_the_plan() -> None:
    clock = Called()
    expected(clock, amp=True, amp_configs={"dtype": "bfloat16"})
    seen: list[torch.dtype] = []
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    plan = accounts(model, torch.ones(2, 4), amp=True, amp_configs={"dtype": "bfloat16"})
    forward, backward = Rehearsal()(plan.undivided_call, ROOM)
    assert forward > 0
    assert backward > 0
    assert set(seen) == {torch.bfloat16}


class Noting(nn.Module):
    """Notes the samples of each call with numbers, in whichever copy."""

    seen: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)

    @override
    def forward(self, x: Tensor) -> Tensor:
        if type(x) is Tensor:
            self.seen.append(len(x))
        found: Tensor = self.drop(self.norm(self.layer(x)))
        return found


@contextmanager
def noted() -> Iterator[list[int]]:
    Noting.seen.clear()
    yield Noting.seen
    Noting.seen.clear()


def test_the_users_model_and_random_numbers_are_left_alone() -> None:
    model = Noting()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(5)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    call = accounts(model, torch.randn(6, 4, generator=torch.Generator())).undivided_call
    with noted() as seen:
        forward, _ = Rehearsal()(call, ROOM)
        assert forward > 0
        assert set(seen) == {6}
    assert torch.equal(torch.rand(3), drawn)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_has_no_room_does_not_run() -> None:
    call = accounts(Noting(), torch.randn(6, 4)).undivided_call
    with noted() as seen:
        assert all(map(isnan, Rehearsal()(call, call.needed - 1)))
        assert not seen


class Stops(nn.Linear):
    @override
    def forward(self, x: Tensor) -> Tensor:
        if type(x) is Tensor:
            raise RuntimeError("only where its script called it")
        return super().forward(x)


@pytest.mark.parametrize("model", [Stops(4, 4), nn.Linear(4, 4, device="meta")])
def test_a_model_that_cannot_run_is_reckoned(model: nn.Module) -> None:
    bare, timed = OperatorClock(CPU, WORKER), OperatorClock(CPU, WORKER, calls_models=True)
    one = Cluster(nodes=1, devices_per_node=1, device=WORKER, inside=LINK, outside=LINK)
    timed.known = bare.known
    found = [estimate(accounts(model, torch.ones(2, 4), clock), one) for clock in (bare, timed)]
    assert found[0].seconds == found[1].seconds > 0


class Sleeper(nn.Linear):
    """Its Python takes far longer than its operators."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        if type(x) is Tensor:
            time.sleep(0.02)
        return super().forward(x)


def test_python_between_operators_is_part_of_a_forward() -> None:
    one = Cluster(nodes=1, devices_per_node=1, device=WORKER, inside=LINK, outside=LINK)
    clock = OperatorClock(CPU, WORKER, calls_models=True)
    found = estimate(accounts(Sleeper(4, 4), torch.ones(2, 4), clock), one)
    assert found.forward >= 0.02


def automatic(trials: int) -> list[int]:
    """Sizes with which the model ran while a plan was looked for."""
    strategy = fleet.DistributedStrategy()
    strategy.auto = True
    strategy.auto_configs = {"trials": trials}
    fleet.init(is_collective=True, strategy=strategy)
    with noted() as seen:
        fleet.distributed_model(Noting(), sample=torch.randn(8, 4))
        return list(seen)


@pytest.mark.parametrize("trials", [0, 2])
def test_models_run_only_where_plans_may_be_tried(trials: int) -> None:
    (found,) = world(1).run(automatic, trials)
    assert bool(found) == (trials > 0)


class Meeting(nn.Linear):
    """Exchanges in its forward, as losses over all workers' samples do."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        gathered = found.detach().clone()
        dist.all_reduce(gathered)
        return found - gathered


def exchanging() -> list[float]:
    fleet.init(is_collective=True)
    return [*Rehearsal()(accounts(Meeting(4, 4), torch.ones(2, 4)).undivided_call, ROOM)]


def test_a_model_that_exchanges_does_not_run() -> None:
    """The other workers do something else meanwhile."""
    (found,) = world(1).run(exchanging)
    assert all(map(isnan, found))


def test_each_model_has_its_own_times() -> None:
    clock = OperatorClock(CPU, WORKER, calls_models=True)
    quick, slow = nn.Linear(4, 4), Sleeper(4, 4)
    for model in (quick, slow, quick):
        clock.called(accounts(model, torch.ones(2, 4)).undivided_call)
    (first, second) = (took[0] for key, took in clock.known.items() if key.startswith("model"))
    assert second >= 0.02 > first


class Penalty(nn.Module):
    """A criterion with numbers of its own, which also reads the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.calls = [model], nn.Parameter(torch.zeros(()))
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(()))

    @override
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.seen += random.random() + np.random.rand()
        (model,) = self.model
        return outputs.mean() + self.calls + sum(p.square().sum() for p in model.parameters())


def test_a_criterion_is_left_alone() -> None:
    model = nn.Linear(4, 4)
    criterion = Penalty(model)
    found = accounts(model, torch.ones(2, 4)).undivided_call
    call = replace(found, criterion=criterion, targets=torch.zeros(2))
    random.seed(3)
    np.random.seed(3)
    forward, _ = Rehearsal()(call, ROOM)
    assert forward > 0
    assert criterion.seen == 0
    assert criterion.calls.grad is None
    assert model.weight.grad is None
    assert random.random() == random.Random(3).random()
    assert np.random.rand() == np.random.RandomState(3).rand()
