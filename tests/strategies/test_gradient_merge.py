"""Gradient merge: Paddle's trajectories, one exchange per group, and a group cut in two."""

import copy
import logging
from typing import Any

import pytest
import torch
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional as F
from typing_extensions import override

import fleetx as fleet
from fleetx.testing import world
from tests.engine.training import data, net, plain, spread, weights
from tests.strategies.paddle import check_given, check_two_workers, start

FOUR: dict[str, Any] = {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 4}}


def test_two_workers_walk_paddles_trajectory() -> None:
    check_two_workers("dist_gradient_merge_avg", **FOUR)


@pytest.mark.parametrize("avg", [True, False])
def test_sums_and_means_are_those_of_paddle(avg: bool) -> None:
    settings = {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 4, "avg": avg}}
    name = "gradient_merge_sgd_avg" if avg else "gradient_merge_sgd_sum"
    check_given(name, lambda parameters: torch.optim.SGD(parameters, lr=0.1), **settings)


def test_momentum_moves_once_per_group() -> None:
    check_given(
        "gradient_merge_momentum_avg",
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        **FOUR,
    )


@world(2)
def test_a_group_of_batches_is_one_large_batch_and_one_exchange() -> None:
    start(**FOUR)
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, targets = data(64)
    counts = []
    for batch in range(8):
        at = torch.arange(batch * 8, batch * 8 + 8)[fleet.worker_index() :: 2]
        with CommDebugMode() as counted:
            optimizer.minimize(F.cross_entropy(model(inputs[at]), targets[at]))
        counts.append({str(k): v for k, v in counted.get_comm_counts().items()})
    reduced = [count.get("c10d.allreduce_", 0) for count in counts]
    assert reduced == [0, 0, 0, 1, 0, 0, 0, 1]
    whole, alone = net(), data(64)
    plain_optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    for half in (slice(0, 32), slice(32, 64)):
        F.cross_entropy(whole(alone[0][half]), alone[1][half]).backward()
        plain_optimizer.step()
        plain_optimizer.zero_grad()
    torch.testing.assert_close(weights(model), weights(whole), rtol=1e-6, atol=1e-6)


@world(2)
def test_one_batch_per_update_is_plain_training() -> None:
    start(gradient_merge=True)
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, targets = data()
    for step in range(12):
        at = (torch.arange(step * 16, step * 16 + 16) % len(inputs))[fleet.worker_index() :: 2]
        optimizer.minimize(F.cross_entropy(model(inputs[at]), targets[at]))
    torch.testing.assert_close(weights(model), plain("sgd", 16), rtol=1e-6, atol=1e-6)


def run_batches(
    batches: range, state: dict[str, Any] | None
) -> tuple[dict[str, Any], torch.Tensor]:
    start(**FOUR)
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    inputs, targets = data()
    for batch in batches:
        at = torch.arange(batch * 8, batch * 8 + 8)[fleet.worker_index() :: 2] % len(inputs)
        optimizer.zero_grad()  # the classic loop, which must not lose what waits
        optimizer.backward(F.cross_entropy(model(inputs[at]), targets[at]))
        optimizer.step()
    assert batches.stop % 4 or spread(weights(model)) == 0
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    return copy.deepcopy(saved), weights(model)


@world(1)
def test_a_checkpoint_of_another_rhythm_is_refused_inside_a_group() -> None:
    saved, _ = run_batches(range(6), None)
    fresh = copy.deepcopy(saved)
    fresh["optimizer"]["strategies"]["gradient_merge"]["k_steps"] = 3
    with pytest.raises(ValueError, match="after 2 of a group of 3 batches"):
        run_batches(range(0), fresh)


def resume(state: list[dict[str, Any]], batches: range) -> torch.Tensor:
    return run_batches(batches, state[torch.distributed.get_rank()])[1]


def test_a_restart_inside_a_group_loses_nothing() -> None:
    whole = world(2).run(run_batches, range(8), None)
    half = world(2).run(run_batches, range(6), None)
    rest = world(2).run(resume, [state for state, _ in half], range(6, 8))
    for (_, expected), found in zip(whole, rest, strict=True):
        assert torch.equal(found, expected)


class Said(logging.Handler):
    """Keeps what was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@world(2)
@pytest.mark.parametrize("when", ["always", "at the end of a group", "never"])
def test_a_limit_for_what_is_not_whole_yet_is_told_of_once(when: str) -> None:
    start(gradient_merge=True, gradient_merge_configs={"k_steps": 2})
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, targets = data(64)
    said, logger = Said(), logging.getLogger("fleetx.engine.waiting")
    logger.addHandler(said)
    try:
        for batch in range(6):
            optimizer.backward(F.cross_entropy(model(inputs), targets))
            if when == "always" or (when.startswith("at") and batch % 2):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    finally:
        logger.removeHandler(said)
    assert [text for text in said.messages if "ends in no update" in text] == said.messages
    assert len(said.messages) == (when == "always")
