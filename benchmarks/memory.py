"""What each rank keeps under sharding, recompute and offload, against the formulas of ZeRO.

Bytes of live tensors are counted, not estimated: parameters, gradients, state of Adam and what
autograd saves for backward, on the rank that keeps most. With P the size of the parameters in
float32 and n the ranks that share them, the formulas are

    stage                      0     1      2      3
    parameters in use          P     P      P     P/n
    gradients that wait        P     P     P/n    P/n
    state                     2P    3P/n   3P/n   2P/n

Stages 1 and 2 move a share of the parameters that lies beside the gathered, working copy: the
master copy of the paper, which is state. It is there from the first forward on; the working copy
from a forward to the end of its backward, and in stage 3 one unit of it at a time. Gradients are
those that wait between the two batches of gradient_merge. One rank spreads nothing.

python benchmarks/memory.py                          # ranks are CPU processes: degrees 1 to 8
python benchmarks/memory.py --degrees 2,4 --width 128
python benchmarks/memory.py --device cuda            # one GPU: peaks, and state on the host
fleetrun --gpus 0,1,2,3 benchmarks/memory.py --device cuda

Ends with status 1 if a measured number is more than 5 % away from its formula.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

import fleetx as fleet
from fleetx.api import session
from fleetx.comm.local import local
from fleetx.engine.engine import Engine
from fleetx.strategies.recompute import Recompute
from fleetx.testing import world

FLOAT = 4
TOLERANCE = 0.05


class Block(nn.Module):
    """Normalise, widen, narrow, add: ten tensors of the width of the input are saved."""

    SAVED = 10

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        return x + self.narrow(nn.functional.gelu(self.wide(self.norm(x))))


class Stack(nn.Module):
    """Blocks, one after the other."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """Run all blocks."""
        for layer in self.layers:
            x = layer(x)
        return x


@dataclass(frozen=True)
class Size:
    """The model and the batch of one rank."""

    width: int
    layers: int
    rows: int

    @property
    def parameters(self) -> int:
        """P, in bytes."""
        block = 2 * 4 * self.width**2 + (4 + 1 + 2) * self.width
        return FLOAT * self.layers * block

    @property
    def activation(self) -> int:
        """Bytes of what enters or leaves a block."""
        return FLOAT * self.rows * self.width


@dataclass(frozen=True)
class Case:
    """One way to train."""

    size: Size
    stage: int = 0
    degree: int = 1
    recompute: bool = False
    offload: bool = False
    state_offload: bool = False

    @property
    def label(self) -> str:
        """The options besides stage and degree."""
        names = ("recompute", "offload", "state_offload")
        return ", ".join(name.replace("_", " ") for name in names if getattr(self, name)) or "-"

    def strategy(self) -> fleet.DistributedStrategy:
        """What a script would set."""
        strategy = fleet.DistributedStrategy()
        strategy.gradient_merge = True
        strategy.gradient_merge_configs = {"k_steps": 2}
        if self.stage:
            strategy.sharding = True
            # Every block is a unit.
            strategy.sharding_configs = {
                "stage": self.stage,
                "segment_anchors": ["layers.?"],
                "optimize_offload": self.state_offload,
            }
        if self.recompute:
            strategy.recompute = True
            strategy.recompute_configs = {
                "checkpoints": ["layers.?"],
                "enable_offload": self.offload,
            }
        return strategy


def formulas(case: Case) -> dict[str, float]:
    """What is measured -> the bytes that one rank should keep."""
    size, n = case.size, case.degree
    whole, layers = size.parameters, size.layers
    spread = case.stage if n > 1 else 0
    master = whole / n if spread in {1, 2} else 0
    saved = layers * (Block.SAVED * size.activation + 2 * FLOAT * size.rows)
    if case.recompute:
        saved = 0 if case.offload else layers * size.activation
    found = {
        "parameters in use": whole / n if spread == 3 else whole,
        "gradients that wait": whole / n if spread >= 2 else whole,
        "state": (2 * whole / n if spread else 2 * whole) + master,
        # The loss saves what leaves the last block.
        "saved for backward": saved + size.activation,
    }
    if case.offload:
        # The input of the last block is needed first and stays.
        found["saved on the host"] = (layers - 1) * size.activation
    if case.state_offload:
        found |= {"state": master, "state on the host": 2 * whole / n}
    return found


@dataclass
class Count:
    """Bytes of memory, each once, however many tensors lie in it."""

    seen: dict[int, int] = field(default_factory=dict)

    def add(self, tensors: Iterable[Tensor | None]) -> "Count":
        """Count the memory of this rank's parts."""
        for tensor in tensors:
            if tensor is not None:
                storage = local(tensor).untyped_storage()
                self.seen[storage.data_ptr()] = storage.nbytes()
        return self

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.seen.values())


class Saved(saved_tensors_hooks):
    """Counts what autograd saves, without parameters."""

    def __init__(self, model: nn.Module) -> None:
        self.count = Count()

        def pack(tensor: Tensor) -> Tensor:
            # As of now: a sharded parameter lies elsewhere in every forward.
            own = {local(p).untyped_storage().data_ptr() for p in model.parameters()}
            if tensor.untyped_storage().data_ptr() not in own:
                self.count.add([tensor])
            return tensor

        super().__init__(pack, lambda tensor: tensor)


@dataclass
class Job:
    """A model under a strategy."""

    case: Case
    model: nn.Module
    optimizer: Any
    engine: Engine

    @classmethod
    def started(cls, case: Case) -> "Job":
        """Begin one; in a process there may be several, one after the other."""
        engines: list[Engine] = []
        session.watches[:] = [session.Watch(attached=engines.append)]
        fleet.init(is_collective=True, strategy=case.strategy())
        model: nn.Module = Stack(case.size.width, case.size.layers)
        model = fleet.distributed_model(model)
        optimizer = fleet.distributed_optimizer(torch.optim.Adam(model.parameters()))
        session.watches.clear()
        return cls(case, model, optimizer, engines[0])

    def batch(self) -> dict[str, int]:
        """Train on a batch; what was in use between forward and backward."""
        device = self.engine.job.device
        x = torch.ones(self.case.size.rows, self.case.size.width, device=device)
        saved = Saved(self.model)
        with saved:
            loss = self.model(x).square().mean()
        found = {
            "parameters in use": Count().add(self.model.parameters()).total,
            "saved for backward": saved.count.total,
        }
        if self.case.offload:
            (recompute,) = (s for s in self.engine.plan.strategies if isinstance(s, Recompute))
            assert recompute.host is not None
            found["saved on the host"] = Count().add(recompute.host.on_host()).total
        found["state"] = self._state() + self._master()
        self.optimizer.minimize(loss)
        return found

    def waiting(self) -> int:
        """Gradients between the batches of a group; those of stage 1 are held inside of torch."""
        inside = self.optimizer.state_dict().get("strategies", {}).get("sharding", {})
        parts = Count().add(p.grad for p in self.model.parameters())
        return parts.add(inside.get("gradients", {}).values()).total

    def _state(self) -> int:
        return Count().add(self._state_tensors()).total

    def _state_tensors(self) -> Iterator[Tensor]:
        """Without the count of steps of each parameter, which Adam keeps on the host."""
        for state in self.optimizer.state.values():
            yield from (v for v in state.values() if isinstance(v, Tensor) and v.numel() > 1)

    def _master(self) -> int:
        """Parameters that the optimizer moves where the model uses others."""
        used = Count().add(self.model.parameters())
        moved = Count().add(p for group in self.optimizer.param_groups for p in group["params"])
        return sum(size for place, size in moved.seen.items() if place not in used.seen)

    def state_on_host(self) -> int:
        """State whose memory on the device was given back."""
        values = list(self._state_tensors())
        full = sum(local(v).numel() * v.element_size() for v in values)
        return full - self._state()


def measure(case: Case) -> dict[str, int]:
    """Bytes on this rank, by their kind."""
    # The models of earlier cases are still known to fleetx and keep their memory.
    others = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    job = Job.started(case)
    for _ in range(2):
        job.batch()
    reset_peak(job.engine.job.device)
    # State exists since the first update; gradients of the third batch wait for the fourth.
    found = job.batch()
    if case.state_offload:
        found["state on the host"] = job.state_on_host()
    found["gradients that wait"] = job.waiting()
    job.batch()
    if job.engine.job.device.type == "cuda":
        found["peak of an update"] = torch.cuda.max_memory_allocated() - others
    return found


def reset_peak(device: torch.device) -> None:
    """Begin to look for the peak."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()


def on_processes(size: Size, degrees: list[int]) -> Iterator[tuple[Case, dict[str, int]]]:
    """Ranks are processes of this machine."""
    cases = [Case(size, stage, degree) for degree in degrees for stage in range(4)]
    for stage in (0, 3):
        cases += [Case(size, stage, max(degrees), recompute=True)]
        cases += [Case(size, stage, max(degrees), recompute=True, offload=True)]
    for case in cases:
        ranks = world(case.degree, timeout=300.0).run(measure, case)
        yield case, {what: max(rank[what] for rank in ranks) for what in ranks[0]}


def on_devices(size: Size) -> Iterator[tuple[Case, dict[str, int]]]:
    """This process is one of the ranks, and all of them have a GPU."""
    fleet.init(is_collective=True)
    degree = fleet.worker_num()
    for stage in (0, 1, 2, 3) if degree > 1 else (0, 3):
        yield from _measured(Case(size, stage, degree))
    yield from _measured(Case(size, 3, degree, state_offload=True))
    for offload in (False, True):
        yield from _measured(Case(size, 3, degree, recompute=True, offload=offload))
    yield from _measured(Case(size, 3, degree, recompute=True, offload=True, state_offload=True))


def _measured(case: Case) -> Iterator[tuple[Case, dict[str, int]]]:
    yield case, measure(case)
    torch.cuda.empty_cache()


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    case: Case
    what: str
    measured: int
    formula: float | None

    @property
    def ratio(self) -> float | None:
        """Measured against formula; 1 where there is nothing and nothing should be."""
        if self.formula is None:
            return None
        if not self.formula:
            return 1.0 if not self.measured else float("inf")
        return self.measured / self.formula

    @property
    def fits(self) -> bool:
        """Whether it is as it should be."""
        return self.ratio is None or abs(self.ratio - 1) <= TOLERANCE

    def __str__(self) -> str:
        known = self.formula is not None and self.ratio is not None
        expected = f"{kib(self.formula or 0):>12} {self.ratio:>6.3f}" if known else " " * 19
        mark = "" if self.fits else "  <--"
        what = f"{self.case.stage:>5} {self.case.degree:>6}  {self.case.label:<35}{self.what:<20}"
        return f"{what} {kib(self.measured):>12} {expected}{mark}"


HEAD = f"{'stage':>5} {'ranks':>6}  {'with':<35}{'what':<20} {'KiB':>12} {'formula':>12}  ratio"


def kib(count: float) -> str:
    """Bytes as KiB."""
    return f"{count / 1024:,.1f}"


def rows(case: Case, found: dict[str, int]) -> list[Row]:
    """What was measured beside what should be."""
    expected = formulas(case)
    return [Row(case, what, measured, expected.get(what)) for what, measured in found.items()]


def main() -> int:
    """Print the table; the status is 1 if a formula does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default: cpu")
    parser.add_argument("--degrees", default="1,2,4,8", help="CPU processes (default: 1,2,4,8)")
    parser.add_argument("--width", type=int, help="of the model (default: 64; cuda: 2048)")
    parser.add_argument("--layers", type=int, default=4, help="blocks, at most 10 (default: 4)")
    parser.add_argument("--rows", type=int, help="of a batch (default: 64; cuda: 8192)")
    given = parser.parse_args()
    on_gpu = given.device == "cuda"
    size = Size(
        width=given.width or (2048 if on_gpu else 64),
        layers=given.layers,
        rows=given.rows or (8192 if on_gpu else 64),
    )
    degrees = [int(degree) for degree in given.degrees.split(",")]
    lines: list[Row] = []
    print(f"P = {kib(size.parameters)} KiB; {size.layers} blocks of width {size.width}")
    print(HEAD)
    for case, found in on_devices(size) if on_gpu else on_processes(size, degrees):
        lines += (new := rows(case, found))
        print(*new, sep="\n", flush=True)
    wrong = [line for line in lines if not line.fits]
    known = [line for line in lines if line.ratio is not None]
    print(f"{len(known) - len(wrong)} of {len(known)} within {TOLERANCE:.0%}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
