"""Workers that would drift apart are told who differs in what; a strategy is replaced aloud."""

import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from typing_extensions import override

import fleetx as fleet
from fleetx import roles
from fleetx.testing import world
from tests.engine.training import data, net
from tests.libraries import transformers
from tests.strategies.paddle import start


def differing(kind: str) -> str:
    """What a worker hears whose job differs from the other's."""
    roles.stop()
    fleet.init(is_collective=True)
    other = fleet.worker_index() == 1
    strategy = fleet.DistributedStrategy()
    if kind == "strategy" and other:
        strategy.localsgd = True
    strategy.gradient_merge = kind == "option"
    strategy.gradient_merge_configs = {"k_steps": 4 if kind == "option" and other else 2}
    fleet.init(strategy=strategy, is_collective=True)
    torch.manual_seed(0)
    with pytest.raises(fleet.PlanError, match="workers differ where they must agree") as caught:
        train(kind, other)
    return str(caught.value)


def train(kind: str, other: bool) -> None:
    model = fleet.distributed_model(net())
    named = dict(model.named_parameters())
    first = [p for name, p in named.items() if name.endswith("weight")]
    rest = [p for name, p in named.items() if name.endswith("bias")]
    if kind == "groups" and other:
        first, rest = rest, first
    groups: list[dict[str, Any]] = [{"params": first}, {"params": rest, "weight_decay": 0.0}]
    rule = torch.optim.AdamW if kind == "rule" and other else torch.optim.Adam
    clip = fleet.ClipGradByGlobalNorm(2.0 if kind == "clip" and other else 1.0)
    optimizer = fleet.distributed_optimizer(
        rule(groups, lr=0.1, weight_decay=0.01), grad_clip=clip if kind == "clip" else None
    )
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5 if kind == "lr" and other else 1)
    inputs, targets = data()
    optimizer.minimize(F.cross_entropy(model(inputs), targets))
    scheduler.step()


EXPECTED = {
    "strategy": "strategy.localsgd is not set on worker 0 and True on worker 1",
    "option": "gradient_merge_configs['k_steps'] is 2 on worker 0 and 4 on worker 1",
    "lr": "lr of group 0 is 0.1 on worker 0 and 0.05 on worker 1; lr of group 1 is 0.1",
    "rule": "the optimizer is Adam on worker 0 and AdamW on worker 1",
    "groups": "the parameters of group 0 is",
    "clip": "clip_configs['limit'] is 1.0 on worker 0 and 2.0 on worker 1",
}


def all_differing() -> dict[str, str]:
    return {kind: differing(kind) for kind in EXPECTED}


def test_workers_that_differ_are_all_told_who_differs_in_what() -> None:
    first, second = world(2, timeout=240).run(all_differing)
    assert first == second
    for kind, words in EXPECTED.items():
        assert words in first[kind]


def steered(kind: str, updates: int) -> str:
    """What a worker hears whose learning rate goes its own way after the first update."""
    start()
    torch.manual_seed(0)
    model = fleet.distributed_model(net())
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = fleet.distributed_optimizer(base)
    step = SCHEDULES[kind](optimizer)
    inputs, targets = data()
    try:
        for _ in range(updates):
            optimizer.minimize(F.cross_entropy(model(inputs), targets))
            step()
    except fleet.PlanError as error:
        return str(error)
    return ""


def plateau(optimizer: Any) -> Callable[[], None]:
    """As scripts have it: each worker reads the loss of its own batch."""
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    losses = itertools.count(1, 0 if fleet.worker_index() else -1)
    return lambda: scheduler.step(float(next(losses)))


def first_worker_alone(optimizer: Any) -> Callable[[], None]:
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    return scheduler.step if fleet.is_first_worker() else lambda: None


def for_a_moment(optimizer: Any) -> Callable[[], None]:
    """One worker's rate differs in one update, between two comparisons."""
    done = itertools.count(1)

    def step() -> None:
        other = fleet.worker_index() == 1 and next(done) == 4
        optimizer.param_groups[0]["lr"] = 0.2 if other else 0.1

    return step


def together(optimizer: Any) -> Callable[[], None]:
    """A cycle of the rate and of momentum, and a schedule of another library."""
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=200)
    linear = transformers.get_linear_schedule_with_warmup(optimizer, 10, 200)

    def step() -> None:
        cycle.step()
        linear.step()

    return step


def in_another_order(optimizer: Any) -> Callable[[], None]:
    """The options of a group come from sets of words, whose order is another in each process."""
    (group,) = optimizer.param_groups
    options = list(group.items())
    group.clear()
    group.update(reversed(options) if fleet.worker_index() else options)
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9).step


SCHEDULES = {
    "plateau": plateau,
    "first worker alone": first_worker_alone,
    "for a moment": for_a_moment,
    "together": together,
    "in another order": in_another_order,
}


def test_a_rate_that_goes_its_own_way_later_is_noticed() -> None:
    pair = world(2, timeout=240)
    expected = {
        "plateau": "have drifted apart: at update 4 lr of group 0 is 0.",
        "first worker alone": "have drifted apart: at update 2 lr of group 0 is 0.",
        "for a moment": "at update 8 their numbers are the same, but were not at an earlier one",
    }
    for kind, words in expected.items():
        for heard in pair.run(steered, kind, 12):
            assert words in heard, "every worker must hear it"


def test_schedules_that_agree_are_left_alone_however_long() -> None:
    assert world(2, timeout=240).run(steered, "together", 150) == ["", ""]
    assert world(2, timeout=240).run(steered, "in another order", 5) == ["", ""]


@world(2)
def test_stages_of_a_pipeline_differ_in_what_they_hold_alone() -> None:
    start(
        pipeline=True,
        pipeline_configs={"split": ["2"], "accumulate_steps": 2},
        hybrid_configs={"pp_degree": 2},
        lars=True,
        lars_configs={"exclude_from_weight_decay": ["bias"]},
    )
    model: Any = fleet.distributed_model(net(), criterion=F.cross_entropy)
    fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    model.train_batch(data())


class Ears(logging.Handler):
    """Keeps what the calls of a script warn of; fixtures stay with the parent."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []
        logging.getLogger("fleetx.api").addHandler(self)

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def again(**switches: bool) -> None:
    """Begin without an end of what was begun before."""
    strategy = fleet.DistributedStrategy()
    for name, value in switches.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)


@world(1)
def test_a_second_strategy_is_refused_once_a_model_is_laid_out() -> None:
    again(clip=True)
    heard = Ears()
    again(clip=True)
    assert not heard.messages
    again(lars=True)
    assert heard.messages == [
        "the strategy given to fleet.init() replaces the one that was given before"
    ]
    model = fleet.distributed_model(nn.Linear(4, 1))
    again(lars=True)
    with pytest.raises(fleet.PlanError, match=r"fleet\.init\(\) got a strategy that differs"):
        again(clip=True)
    fleet.init(is_collective=True)
    given = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert "Lars" in repr(fleet.distributed_optimizer(given)), "the first strategy is in force"
    del model, given
    again(clip=True)


@world(1)
def test_a_stranger_s_parameters_are_named() -> None:
    start()
    fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(net().parameters(), lr=0.1))
    with pytest.raises(RuntimeError, match="not from those of a copy or of another model"):
        optimizer.step()


def written(how: str, flags: dict[str, Any]) -> str:
    """What a worker hears whose script has written into parameters."""
    roles.stop()
    start(**flags)
    torch.manual_seed(0)
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, targets = data()
    other = fleet.worker_index() == 1
    own = inputs[int(other) :: 2], targets[int(other) :: 2]
    try:
        for update in range(4):
            if update == WHEN.get(how, 0):
                WRITES[how](model, own, other)
            optimizer.minimize(F.cross_entropy(model(own[0]), own[1]))
    except fleet.PlanError as error:
        return str(error)
    return ""


def loaded_by_one(model: nn.Module, own: Any, other: bool) -> None:
    if other:
        model.load_state_dict({name: 0.9 * value for name, value in model.state_dict().items()})


def drawn(model: nn.Module, own: Any, other: bool) -> None:
    torch.manual_seed(int(other))
    nn.init.xavier_uniform_(model.get_submodule("2").weight)  # type: ignore[arg-type]


def drawn_alike(model: nn.Module, own: Any, other: bool) -> None:
    torch.manual_seed(5)
    nn.init.xavier_uniform_(model.get_submodule("2").weight)  # type: ignore[arg-type]


def clipped(model: nn.Module, own: Any, other: bool) -> None:
    for parameter in model.parameters():
        parameter.data.clamp_(-0.1, 0.1)


def moved_by_hand(model: nn.Module, own: Any, other: bool) -> None:
    parameters = [*model.parameters()]
    loss = F.cross_entropy(model(own[0]), own[1])
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.data -= 0.5 * gradient


WRITES: dict[str, Callable[[nn.Module, Any, bool], None]] = {
    "loaded_by_one": loaded_by_one,
    "drawn": drawn,
    "moved_by_hand": moved_by_hand,
    "late": moved_by_hand,
    "clipped": clipped,
    "drawn_alike": drawn_alike,
}
WHEN = {"late": 2}
APART = {"loaded_by_one": "'0.weight'", "drawn": "'2.weight'", "moved_by_hand": "'0.weight'"}


def all_written(flags: dict[str, Any]) -> dict[str, str]:
    return {how: written(how, flags) for how in WRITES}


@pytest.mark.parametrize("flags", [{}, {"amp": True, "amp_configs": {"dtype": "bfloat16"}}])
def test_replicas_that_part_are_stopped(flags: dict[str, Any]) -> None:
    first, second = world(2, timeout=240).run(all_written, flags)
    for how, name in APART.items():
        for heard in (first[how], second[how]):  # one of them by the other
            assert f"different numbers in the parameter {name} before update 1" in heard
    assert "before update 4" in first["late"]
    assert not first["clipped"] + first["drawn_alike"] + second["clipped"] + second["drawn_alike"]


def test_replicas_that_meet_seldom_may_differ_in_between() -> None:
    flags = {"localsgd": True, "localsgd_configs": {"k_steps": 3}}
    found = world(2, timeout=240).run(written, "clipped", flags)
    assert found == ["", ""]
