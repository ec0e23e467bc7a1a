"""ResNet50 on one GPU: fleetx against a step written by hand with the same flags.

Synthetic images on the device, float16 with dynamic loss scaling, channels-last, LARS. The two
sides take turns, so that noise hits both alike, and the step by hand comes twice, which shows the
noise. Images per second are medians over the turns; the host's time is that of its processors.

python benchmarks/resnet_gpu.py                      # the jobs of the table in README.md
python benchmarks/resnet_gpu.py --job 32r+graph      # batch 32, recompute, captured
python benchmarks/resnet_gpu.py --job 32r+graph+exchange  # … as one of several workers
python benchmarks/resnet_gpu.py --job 32r+compile+graph --compile_configs '{"combo_kernels": true}'
python benchmarks/resnet_gpu.py --job 32 --turns 20 --seconds 0.5
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import fleetx as fleet
from fleetx.optim.lars import Lars
from fleetx.plan.job import Job as LaidOutJob

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Width and number of the blocks of ResNet50."""
LR, MOMENTUM, COEFF, DECAY = 0.1, 0.9, 0.001, 0.0005
NO_DECAY = ("bn", "bias")
Train = Callable[[], Tensor]


class Block(nn.Module):
    """Three convolutions beside a shortcut."""

    def __init__(self, into: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.down = nn.Sequential()
        if stride != 1 or into != 4 * width:
            self.down.append(nn.Conv2d(into, 4 * width, 1, stride, bias=False))
            self.down.append(nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + self.down(x))


class ResNet50(nn.Module):
    """25.6 million parameters; ``recompute`` replays each block, for the step written by hand."""

    recompute = False
    draws = True
    """Whether a replay must draw the same random numbers, as torch assumes unless it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        into, blocks = 64, list[Block]()
        for stage, (width, count) in enumerate(STAGES):
            for at in range(count):
                blocks.append(Block(into, width, 2 if stage > 0 and at == 0 else 1))
                into = 4 * width
        self.blocks = nn.ModuleList(blocks)
        self.fc = nn.Linear(into, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """One score per class."""
        x = functional.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for block in self.blocks:
            if self.recompute:
                x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=self.draws)
            else:
                x = block(x)
        return self.fc(x.mean((2, 3)))


@dataclass(frozen=True)
class Job:
    """What is measured."""

    batch: int
    recompute: bool = False
    compiled: bool = False
    captured: bool = False
    exchanged: bool = False
    """Through the data-parallel path: gradients and statistics go through NCCL, to nobody else."""
    configs: tuple[tuple[str, Any], ...] = ()
    """``compile_configs`` of fleetx."""

    @property
    def name(self) -> str:
        """Batch, and a letter or word for each flag."""
        words = ["compile"] * self.compiled + ["graph"] * self.captured
        words += ["exchange"] * self.exchanged
        return "+".join([f"{self.batch}{'r' * self.recompute}", *words])


JOBS = [
    Job(batch, recompute, compiled, captured, exchanged)
    for exchanged in (False, True)
    for batch, recompute in ((32, True), (32, False), (256, False))
    for compiled in (False, True)
    for captured in (False, True)
]


def model() -> ResNet50:
    """The same weights for both sides."""
    torch.manual_seed(0)
    made = ResNet50().to("cuda")
    return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return, unused-ignore]


def data(batch: int) -> tuple[Tensor, Tensor]:
    """Images and labels that stay on the device."""
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    return images.contiguous(memory_format=torch.channels_last), labels


def with_fleetx(job: Job, batch: tuple[Tensor, Tensor]) -> Train:
    """The step of a user's script."""
    strategy = fleet.DistributedStrategy()
    strategy.amp = strategy.lars = True
    strategy.lars_configs = {
        "lars_coeff": COEFF,
        "lars_weight_decay": DECAY,
        "exclude_from_weight_decay": list(NO_DECAY),
    }
    strategy.recompute, strategy.compile = job.recompute, job.compiled
    strategy.cuda_graph = job.captured
    if job.compiled:
        strategy.compile_configs = dict(job.configs)  # type: ignore[assignment]
    if job.recompute:
        strategy.recompute_configs = {"checkpoints": ["blocks.*"]}
    fleet.init(is_collective=True, strategy=strategy)
    with one_of_several() if job.exchanged else nullcontext():
        trained: Any = fleet.distributed_model(model(), criterion=functional.cross_entropy)
        sgd = torch.optim.SGD(trained.parameters(), lr=LR, momentum=MOMENTUM)
        fleet.distributed_optimizer(sgd)
    return lambda: trained.train_batch(batch)


def one_of_several() -> AbstractContextManager[Any]:
    """A lone worker lays models out as one of two data-parallel ones, over its group of one."""
    return patch.object(LaidOutJob, "size", lambda _, axis: 2 if axis == "dp" else 1)


def by_hand(job: Job, batch: tuple[Tensor, Tensor]) -> Train:
    """The same in plain torch, with the fastest update there is."""
    net = model()
    net.recompute = job.recompute
    forward: Any = torch.compile(net) if job.compiled else net
    names, parameters = zip(*net.named_parameters(), strict=True)
    excluded = tuple(i for i, name in enumerate(names) if any(word in name for word in NO_DECAY))
    groups = [{"params": list(parameters), "excluded": excluded}]
    rule = Lars(groups, lr=LR, momentum=MOMENTUM, lars_coeff=COEFF, lars_weight_decay=DECAY)
    scaler = torch.amp.GradScaler("cuda", init_scale=32768.0, growth_interval=1000)
    images, labels = batch

    def step() -> Tensor:
        with torch.autocast("cuda", dtype=torch.float16):
            scores = forward(images)
        loss = functional.cross_entropy(scores.float(), labels)
        scaler.scale(loss).backward()
        scaler.step(rule)
        scaler.update()
        rule.zero_grad()
        return loss.detach()

    return captured_by_hand(net, rule, forward, batch) if job.captured else step


def captured_by_hand(
    net: ResNet50, rule: Lars, forward: Any, batch: tuple[Tensor, Tensor]
) -> Train:
    """The usual recipe, with the loss scale on the device, which torch's scaler would ask for.

    A batch is copied to where the graph reads it, without which it could train on one batch only.
    """
    images, labels = (part.clone() for part in batch)
    scale = torch.full((), 32768.0, device="cuda")
    good, flag = torch.zeros((), dtype=torch.int32, device="cuda"), torch.zeros((), device="cuda")
    net.draws = False  # torch cannot restore random numbers inside of a graph

    def work() -> Tensor:
        with torch.autocast("cuda", dtype=torch.float16):
            scores = forward(images)
        loss = functional.cross_entropy(scores.float(), labels)
        (loss * scale).backward()
        flag.zero_()
        gradients = [p.grad for p in net.parameters() if p.grad is not None]
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, flag, scale.reciprocal())
        torch._amp_update_scale_(scale, good, flag, 2.0, 0.5, 1000)
        rule.found_inf = flag
        rule.step()
        return loss.detach()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(4):
            work()
            rule.zero_grad()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        loss = work()

    held = net, rule, work

    def replay() -> Tensor:
        assert held, "the graph knows addresses only"
        images.copy_(batch[0], non_blocking=True)
        labels.copy_(batch[1], non_blocking=True)
        graph.replay()
        return loss

    return replay


class Side:
    """One of those that take turns."""

    def __init__(self, train: Train) -> None:
        self.train = train
        self.clock: list[float] = []
        """Seconds of a step, for each turn."""
        self.host: list[float] = []
        """Processor time of a step."""

    def turn(self, steps: int) -> None:
        """Some steps, the device drained before and after."""
        torch.cuda.synchronize()
        begun, used = time.perf_counter(), time.process_time()
        for _ in range(steps):
            self.train()
        torch.cuda.synchronize()
        self.clock.append((time.perf_counter() - begun) / steps)
        self.host.append((time.process_time() - used) / steps)


def measure(job: Job, turns: int, length: float) -> dict[str, object]:
    """Images per second of both sides, in turns; the hand-written one comes twice."""
    batch = data(job.batch)
    hand, ours, again = (Side(make(job, batch)) for make in (by_hand, with_fleetx, by_hand))
    sides = hand, ours, again
    for side in sides:
        for _ in range(20):
            side.train()
        side.turn(10)
    steps = max(5, int(length / max(side.clock[0] for side in sides)))
    for side in sides:
        side.clock.clear()
        side.host.clear()
    for _ in range(turns):
        for side in sides:
            side.turn(steps)
    rates = [round(job.batch / statistics.median(side.clock)) for side in sides]
    return {
        "job": job.name,
        "by hand": rates[0],
        "fleetx": rates[1],
        "ratio": faster(hand.clock, ours.clock),
        "noise": faster(hand.clock, again.clock),
        "host ms": [round(1e3 * statistics.median(side.host), 2) for side in sides],
        "host ratio": faster(hand.host, ours.host),
        "host noise": faster(hand.host, again.host),
        "losses": [round(float(side.train()), 3) for side in sides],
        "GiB": round(torch.cuda.max_memory_allocated() / 2**30, 1),
    }


def faster(usual: list[float], other: list[float]) -> float:
    """How many times as fast the other one is; turns are compared with those beside them."""
    return round(statistics.median(a / b for a, b in zip(usual, other, strict=True)), 3)


def main(names: Iterable[str], turns: int, length: float, configs: dict[str, Any]) -> None:
    """Print one line of JSON per job."""
    torch.backends.cudnn.benchmark = True
    wanted = set(names)
    for job in JOBS:
        if wanted and job.name not in wanted:
            continue
        torch.cuda.reset_peak_memory_stats()
        chosen = replace(job, configs=tuple(configs.items()))
        print(json.dumps(measure(chosen, turns, length)), flush=True)
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--job", action="append", default=[], choices=[j.name for j in JOBS])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long a turn is")
    parser.add_argument("--compile_configs", type=json.loads, default={}, help="of fleetx, as JSON")
    given = parser.parse_args()
    main(given.job, given.turns, given.seconds, given.compile_configs)
