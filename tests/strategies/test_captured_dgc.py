"""Steps with deep gradient compression are captured when its ramp-up is over.

Without a GPU, with a stand-in for CUDA's recorder.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

import fleetx as fleet
from fleetx.api import session
from fleetx.plan.compose import compose
from fleetx.plan.strategy import Strategy
from fleetx.strategies.cuda_graph import CudaGraph
from fleetx.testing import world
from fleetx.testing.limits import stretched
from tests.ports import free_ports
from tests.strategies import dgc_on_workers as scripted
from tests.strategies.dgc_on_workers import COMPANY, SETTLED, SPECIAL, Training
from tests.strategies.stand_in_recorder import StandInRecorder, StandInRecording

ASKS = {"aten::_local_scalar_dense", "aten::lift_fresh", "aten::nonzero", "aten::equal"}
"""What the host does with numbers of its own or of the device, which no graph holds."""


class Watch(TorchDispatchMode):
    """Notes what a graph could not hold."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[str] = set()

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= ASKS & {func._schema.name}
        return func(*args, **kwargs or {})


class Recorder(StandInRecorder):
    """Leaves alone what dgc keeps, too, and looks at what is recorded."""

    asked: ClassVar[set[str]] = set()
    replays = 0
    """Of the latest job's."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        Recorder.asked, Recorder.replays = set(), 0

    @override
    def _held(self) -> list[Tensor]:
        return [*super()._held(), *kept_in(self)]

    @override
    def record(self, work: Callable[[], Any]) -> StandInRecording:
        # Libraries ask, and leave out what they would else ask of the device.
        told = patch("torch.cuda.is_current_stream_capturing", return_value=True)
        with told, Watch() as watch:
            made = super().record(counted(work))
        Recorder.asked |= watch.seen
        Recorder.replays -= 1  # to record it has run it, too
        return made


def counted(work: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        Recorder.replays += 1
        return work()

    return run


def kept_in(recorder: StandInRecorder) -> list[Tensor]:
    """The tensors that dgc keeps, themselves."""
    (codec,) = (s for s in recorder.engine.plan.strategies if s.name == "dgc")
    ledger: Any = codec._ledger  # type: ignore[attr-defined]
    return [*(part for kept in ledger._kept.values() for part in kept), ledger._replayed]


@contextmanager
def standing_in() -> Iterator[None]:
    where = "fleetx.strategies.cuda_graph.strategy.Recorder"
    with patch.object(CudaGraph, "model", Strategy.model), patch(where, Recorder):
        yield
    recorder_of(session.engines()[-1]).engine = session.engines()[-1]


def recorder_of(engine: Any) -> StandInRecorder:
    recorder: StandInRecorder = engine.step.drive.__self__.recorder
    return recorder


def on_cpu(company: str) -> dict[str, Any]:
    found = scripted.compared(company, dist.get_rank(), standing_in)
    found["replays"], found["asked"] = Recorder.replays, sorted(Recorder.asked)
    return found


def check(company: str, found: dict[str, Any], apart: float) -> None:
    merged = "gradient_merge" in COMPANY[company]
    first = 3 * SETTLED if merged else SETTLED
    assert found["captured"] == ([first, first + 1, first + 2] if merged else [first]), company
    assert found["captured as usual"] == []
    # An update that was skipped is none, whoever noticed it.
    assert found["steps"] == [scripted.BATCHES - scripted.overflows(company)] * 2, company
    assert not found["stray"], company
    assert max(found["apart"]) < apart, (company, found["apart"])
    ours, usual = found["losses"]
    bad = {scripted.BAD} if scripted.overflows(company) else set()
    for at, (loss, expected) in enumerate(zip(ours, usual, strict=True)):
        assert at in bad or loss == pytest.approx(expected, rel=apart), (company, at)


# ResNet18 takes a CPU a minute and a half.
@pytest.mark.parametrize("company", [name for name in COMPANY if name != "resnet18"])
def test_captured_steps_of_two_workers_move_as_usual_ones(company: str) -> None:
    for found in world(2).run(on_cpu, company):
        check(company, found, 1e-5)
        assert found["asked"] == []
        batches = len(scripted.sizes_of(company))
        assert found["replays"] == batches - found["captured"][0]


def checked_restart(found: dict[str, Any], apart: float) -> None:
    for how in ("again", "captured anew", "as usual"):
        assert max(found[how]) < apart, (how, found[how])
    assert found["steps"] == [44] * 4
    assert found["first"] == [SETTLED]
    again, anew, usual = (found["captured"][k] for k in ("again", "captured anew", "as usual"))
    # Two batches as usual in the same job; in a new one DDP looks at the clock for eleven.
    assert again == [SETTLED, 44 + scripted.WARMUP]
    assert anew == [11]
    assert usual == []


def checked_rewind(found: dict[str, Any], apart: float) -> None:
    assert max(found["apart"]) < apart, found["apart"]
    assert found["steps"] == [30, 30]
    # After 30 batches, those from the sixth on came again.
    assert found["captured"] == [SETTLED, 30 + SETTLED - 6]


def test_training_goes_on_from_a_state_of_captured_steps() -> None:
    for found in world(2).run(lambda: scripted.restarted(dist.get_rank(), standing_in)):
        checked_restart(found, 1e-5)


def test_captured_steps_are_let_go_of_when_a_state_of_the_ramp_up_comes() -> None:
    for found in world(2).run(lambda: scripted.back_in_the_ramp_up(dist.get_rank(), standing_in)):
        checked_rewind(found, 1e-5)


def places() -> tuple[set[int], set[int], int]:
    """Where things are kept after the first recording, and at the end; and how many recordings."""
    training = Training("dgc", captured=True, around=standing_in())
    recorder = recorder_of(training.engine)
    sizes = [8] * 18 + [6] + [8] * 3
    found: list[set[int]] = []
    for at, batch in enumerate(scripted.batches("dgc", dist.get_rank(), sizes)):
        training.run([batch])
        if at > SETTLED:
            found.append({tensor.data_ptr() for tensor in kept_in(recorder)})
    return found[0], set.union(*found), len(recorder.made)


def test_what_is_kept_lies_where_it_was_recorded_also_after_a_batch_of_another_shape() -> None:
    for first, ever, recordings in world(2).run(places):
        assert ever == first
        assert recordings == 1


def test_the_pair_composes() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.cuda_graph = strategy.dgc = True
    compose(strategy.request(), 2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_two_workers_on_one_card_capture_their_exchanges(tmp_path: Path) -> None:
    """NCCL joins them, because it is told that they are on different hosts."""
    script, root = Path(scripted.__file__), Path(__file__).parents[2]
    names = [*COMPANY, *SPECIAL]
    (port,) = free_ports(1)
    started = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    command = [*started, "--master_port", str(port), str(script), str(tmp_path), *names]
    paths = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=stretched(300),
        check=False,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    for rank in (0, 1):
        told = json.loads((tmp_path / f"{rank}.json").read_text())
        assert {name: found["error"] for name, found in told.items() if "error" in found} == {}
        for name in COMPANY:
            check(name, told[name], LOOSE.get(name, 2e-2))
        checked_restart(told["restarted"], 2e-2)
        checked_rewind(told["back in the ramp-up"], 2e-2)


# Products of 16 bits, and convolutions that add up in another order each time, pass rounding on.
LOOSE = {"amp": 0.1, "amp, fp16_allreduce": 0.1, "all": 0.1, "resnet18": 0.2, "gpt2": 0.2}
