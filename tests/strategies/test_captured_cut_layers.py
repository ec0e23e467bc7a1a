"""Captured steps of layers that are cut over workers; without a GPU, with a stand-in recorder."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from fleetx import PlanError
from fleetx.plan.accounts import Accounts
from fleetx.plan.compose import compose
from fleetx.plan.strategy import Strategy
from fleetx.plan.subject import Subject
from fleetx.strategies.cuda_graph import CudaGraph
from fleetx.testing import world
from fleetx.testing.limits import stretched
from tests.ports import free_ports
from tests.strategies.captured_cut_layers import (
    BATCHES,
    COMPANY,
    COMPILED,
    EVERY,
    OF_FOUR,
    Settings,
    drops,
    llama,
    strategy_of,
    trained,
)
from tests.strategies.stand_in_recorder import StandInRecorder, StandInRecording

ON_CPU = ("llama, recompute", "llama, dropout", "opt, sequence", "opt, lamb", "opt, all")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@contextmanager
def told_of_it() -> Iterator[None]:
    with patch.object(torch.cuda, "is_current_stream_capturing", lambda: True):
        yield


SEEDING = "fleetx.strategies.tensor_parallel.shared_randomness._begin_anew"


class ToldRecorder(StandInRecorder):
    """Lets libraries hear that they are recorded, and nobody seed meanwhile, as CUDA's does."""

    rehearsal = staticmethod(told_of_it)

    def record(self, work: Callable[[], Any]) -> StandInRecording:
        def told() -> Any:
            with told_of_it(), patch(SEEDING, side_effect=RuntimeError("seeded while recorded")):
                return work()

        return super().record(told)


def stand_in(name: str, **options: Any) -> Settings:
    """Train without a GPU."""

    def prepared(engine: Any) -> None:
        if options["captured"]:
            engine.step.drive.__self__.recorder.engine = engine

    with ExitStack() as stack:
        stack.enter_context(patch.object(CudaGraph, "model", Strategy.model))
        where = "fleetx.strategies.cuda_graph.strategy.Recorder"
        stack.enter_context(patch(where, ToldRecorder))
        return trained(name, prepared=prepared, **options)


def both(name: str) -> Settings:
    runs = {"captured": True}, {"captured": False}, {"captured": True, "rate": 0.0}
    found = [stand_in(name, **options) for options in runs]
    return dict(zip(("captured", "usual", "still"), found, strict=True))


def check(told: list[Settings], name: str, loose: float) -> None:
    """Workers moved as without graphs, and drew new numbers in each step, but the same ones."""
    settings = EVERY[name]
    merged = "gradient_merge" in settings
    forwards = BATCHES * (2 if merged else 1)
    for found in told:
        assert "error" not in found, found["error"]
        ours, usual, still = found["captured"], found["usual"], found["still"]
        assert ours["losses"] == pytest.approx(usual["losses"], rel=loose), name
        mine, expected = (torch.tensor(each["everything"]) for each in (ours, usual))
        assert float((mine - expected).norm() / expected.norm()) < loose, name
        assert (ours["graphs"], usual["graphs"]) == (2 if merged else 1, 0), name
        assert ours["forwards"] == usual["forwards"] == still["forwards"] == forwards, name
        if drops(name):
            assert len(set(still["losses"])) == forwards, name
        else:
            assert still["losses"] == pytest.approx([still["losses"][0]] * forwards, rel=loose)
    # Of each group that cuts the layers.
    for one, other in zip(told[::2], told[1::2], strict=True):
        assert one["still"]["losses"] == other["still"]["losses"], name


def looseness(name: str, *, strict: float) -> float:
    """Fused rules round in another order, and products of 16 bits pass that on."""
    return 100 * strict if {"amp", "lamb"} & {*EVERY[name]} else strict


@pytest.mark.parametrize("name", ON_CPU)
def test_captured_steps_of_cut_layers_move_as_usual_ones(name: str) -> None:
    check(world(2).run(both, name), name, looseness(name, strict=1e-4))


@pytest.mark.parametrize("name", OF_FOUR)
def test_captured_steps_of_cut_layers_move_as_usual_ones_in_groups(name: str) -> None:
    check(world(4).run(both, name), name, looseness(name, strict=1e-4))


@pytest.mark.parametrize(("rule", "is_legal"), [(torch.optim.SGD, False), (torch.optim.Adam, True)])
def test_plans_whose_update_cannot_be_captured_are_refused(rule: Any, is_legal: bool) -> None:
    model = llama()
    subject = Subject(model=model, optimizer=rule(model.parameters(), lr=0.1))
    accounts = Accounts(compose(strategy_of({}, captured=True).request(), 2), subject)
    with nullcontext() if is_legal else pytest.raises(PlanError, match="the fused form of SGD"):
        accounts.share(0)


@needs_gpu
@pytest.mark.parametrize(
    ("workers", "names"),
    [(2, [*COMPANY]), (4, [*OF_FOUR]), (2, [*COMPILED])],
    ids=["pairs", "groups", "compiled"],
)
def test_workers_on_one_card_capture_cut_layers(
    workers: int, names: list[str], tmp_path: Path
) -> None:
    """NCCL joins them, because it is told that they are on different hosts."""
    (port,) = free_ports(1)
    started = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(workers)]
    module = ["--master_port", str(port), "--module", "tests.strategies.captured_cut_layers"]
    ended = subprocess.run(
        [*started, *module, str(tmp_path), *names],
        capture_output=True,
        text=True,
        timeout=stretched(240),
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(workers)]
    faults: dict[str, AssertionError] = {}
    for name in names:
        try:
            check([found[name] for found in told], name, looseness(name, strict=1e-3))
        except AssertionError as fault:
            faults[name] = fault
    assert not faults, "\n\n".join(f"{name}: {fault}" for name, fault in faults.items())
