"""Workers capture their steps together, exchanges included; without a GPU, with a stand-in."""

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

import fleetx as fleet
from fleetx import DistributedStrategy, PlanError
from fleetx.api import session
from fleetx.plan.accounts import Accounts
from fleetx.plan.compose import compose
from fleetx.plan.strategy import Strategy
from fleetx.plan.subject import Subject
from fleetx.strategies.cuda_graph import CudaGraph
from fleetx.testing import world
from fleetx.testing.limits import stretched
from tests.ports import free_ports
from tests.strategies.captured_on_workers import (
    AMP,
    CLIP,
    COMPANY,
    EVERY,
    LARS,
    MERGE,
    OF_FOUR,
    OF_RULES,
    RULES,
    batches,
    net,
)
from tests.strategies.stand_in_recorder import StandInRecorder, StandInRecording

Settings = dict[str, Any]
ON_CPU: dict[str, Settings] = {
    "plain": {},
    "fp16_allreduce": {"fp16_allreduce": True},
    "localsgd": {"localsgd": True, "localsgd_configs": {"k_steps": 3}},
    "sharding": {"sharding": True, "sharding_configs": {"stage": 2}} | LARS,
    "sharding, running": OF_RULES["sharding, running"],
    "many": AMP | MERGE | CLIP | LARS | {"sync_batch_norm": True},
}

EXPECTED = {
    # DDP looks at the clock in the first eleven of 16 exchanges, others need no more than 2 runs.
    **dict.fromkeys(("plain", "fp16_allreduce"), (1, 5)),
    **dict.fromkeys(("localsgd", "sharding", "sharding, running"), (1, 14)),
    "many": (3, 13 + 13 + 4),  # of the first, middle and last batches of 15 groups
}
"""How often a step is recorded, and replayed."""


def trained(settings: Settings, sizes: list[int], *, captured: bool) -> tuple[Tensor, int, int]:
    """Everything that was trained, how often a step was recorded, and how often replayed."""
    strategy, given = DistributedStrategy(), dict(settings)
    rule = RULES[given.pop("rule", "sgd")]
    for name, value in given.items():
        setattr(strategy, name, value)
    strategy.cuda_graph = captured
    if captured:
        strategy.cuda_graph_configs = {"warmup": 2}
    fleet.init(is_collective=True, strategy=strategy)
    with ExitStack() as stack:
        stack.enter_context(patch.object(CudaGraph, "model", Strategy.model))
        where = "fleetx.strategies.cuda_graph.strategy.Recorder"
        stack.enter_context(patch(where, StandInRecorder))
        model: Any = fleet.distributed_model(net(), criterion=functional.cross_entropy)
        optimizer: Any = fleet.distributed_optimizer(rule(model.parameters()))
    engine: Any = session.engines()[-1]
    recorder: Any = engine.step.drive.__self__.recorder if captured else None
    if captured:
        recorder.engine = engine
    for batch in batches(fleet.worker_index(), sizes):
        model.train_batch(batch)
    held = [getattr(t, "full_tensor", lambda t=t: t)() for t in model.parameters()]
    everything = torch.cat([t.detach().double().flatten() for t in (*held, *model.buffers())])
    made = recorder.made if captured else []
    del optimizer
    return everything, len(made), sum(recording.replays for recording in made)


def both(settings: Settings, odd: bool) -> list[tuple[Tensor, int, int]]:
    # Two of the second worker's last batches are smaller.
    sizes = [8] * 12 + [6 if odd and dist.get_rank() == 1 else 8] * 2 + [8] * 2
    sizes += [8] * (29 if "gradient_merge" in settings else 0)
    found = []
    for captured in (True, False):
        found.append(trained(settings, sizes, captured=captured))
        gc.collect()
    return found


def differ(found: Tensor, usual: Tensor) -> float:
    return float((found - usual).norm() / usual.norm())


@pytest.mark.parametrize("company", [*ON_CPU])
def test_captured_steps_of_two_workers_move_as_usual_ones(company: str) -> None:
    for (ours, made, replays), (usual, *_) in world(2).run(both, ON_CPU[company], False):
        assert differ(ours, usual) < 1e-6
        assert (made, replays) == EXPECTED[company]


def test_a_batch_of_another_shape_on_one_worker_runs_as_usual_on_both() -> None:
    for (ours, made, replays), (usual, *_) in world(2).run(both, {}, True):
        assert differ(ours, usual) < 1e-6
        assert (made, replays) == (1, 3)


def refused_capture() -> str:
    """What a worker says when the second one cannot record its step."""

    def record(recorder: StandInRecorder, work: Callable[[], Any]) -> StandInRecording:
        if dist.get_rank() == 1:
            raise RuntimeError("operation not permitted when stream is capturing")
        return StandInRecording(recorder, work)

    # No exchange inside of the step: each worker alone learns nothing of the other.
    with patch.object(StandInRecorder, "record", record), pytest.raises(PlanError) as refusal:
        trained(ON_CPU["localsgd"], [8] * 4, captured=True)
    return str(refusal.value)


def test_a_capture_that_fails_on_one_worker_stops_the_other_with_its_sentence() -> None:
    other, own = world(2).run(refused_capture)
    assert own.startswith("strategy.cuda_graph = True could not capture the step")
    assert "operation not permitted when stream is capturing" in own
    assert other == f"all workers stop, because one cannot go on. worker 1: PlanError: {own}"


def composed(**settings: Any) -> None:
    strategy = DistributedStrategy()
    for name, value in ({"cuda_graph": True} | settings).items():
        setattr(strategy, name, value)
    compose(strategy.request(), 2)


def sharded(**options: Any) -> Settings:
    return {"sharding": True, "sharding_configs": options}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"find_unused_parameters": True}, "which parameters it reached"),
        (sharded(stage=2, optimize_offload=True), "move the optimizer's state in each update"),
        (sharded(stage=1) | MERGE, "where a captured step does not find them"),
    ],
)
def test_what_cannot_be_captured_says_why(settings: Settings, reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        composed(**settings)


def test_what_can_be_captured_composes() -> None:
    for settings in COMPANY.values():
        composed(**{name: value for name, value in settings.items() if name != "adam"})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    ("workers", "names"),
    [(2, [*COMPANY, "plain, uneven"]), (4, [*OF_FOUR]), (2, [*OF_RULES])],
    ids=["two", "four", "rules"],
)
def test_workers_on_one_card_capture_their_exchanges(
    workers: int, names: list[str], tmp_path: Path
) -> None:
    """NCCL joins them, because it is told that they are on different hosts."""
    script, (port,) = Path(__file__).with_name("captured_on_workers.py"), free_ports(1)
    started = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(workers)]
    command = [*started, "--master_port", str(port), str(script), str(tmp_path), *names]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=stretched(240), check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    for rank in range(workers):
        told = json.loads((tmp_path / f"{rank}.json").read_text())
        assert {name: found["error"] for name, found in told.items() if "error" in found} == {}
        for name in names:
            ours, usual = told[name]["captured"], told[name]["usual"]
            # Rprop goes by signs of products, which rounding turns where they are nearly nothing.
            rounded = "amp" in EVERY.get(name, {}) or "lamb" in name or "rprop" in name
            loose = 5e-2 if rounded else 1e-3
            moved = torch.tensor(ours["everything"]), torch.tensor(usual["everything"])
            assert differ(*moved) < loose, name
            assert ours["losses"] == pytest.approx(usual["losses"], rel=loose), name
            merged = "gradient_merge" in EVERY.get(name, {})
            assert ours["captured"] == (3 if merged else 1), name
            assert usual["captured"] == 0


@pytest.mark.parametrize(("rule", "is_legal"), [(torch.optim.SGD, False), (torch.optim.Adam, True)])
def test_plans_whose_update_cannot_be_captured_are_refused(rule: Any, is_legal: bool) -> None:
    model, strategy = net(), DistributedStrategy()
    strategy.cuda_graph = strategy.sharding = True
    subject = Subject(model=model, optimizer=rule(model.parameters(), lr=0.1))
    accounts = Accounts(compose(strategy.request(), 2), subject)
    with nullcontext() if is_legal else pytest.raises(PlanError, match="the fused form of SGD"):
        accounts.share(0)
