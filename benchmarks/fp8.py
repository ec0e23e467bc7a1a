"""A GPT on one GPU: fp8 with amp and compile against amp and compile.

Random tokens on the device, bfloat16, AdamW. The side without fp8 comes twice, before and after
the other, which shows the noise. Needs a GPU of the Hopper
generation or a later one.

python benchmarks/fp8.py                     # both jobs of README.md
python benchmarks/fp8.py --job 2048x12       # hidden size and layers
python benchmarks/fp8.py --scales row --graph
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

import fleetx as fleet

VOCABULARY, LENGTH, WIDTH_OF_HEAD = 50_304, 1024, 128


@dataclass(frozen=True)
class Job:
    """A model, its batch, and how much faster it should be."""

    width: int
    layers: int
    batch: int = 16
    goal: float | None = None

    @property
    def name(self) -> str:
        """Hidden size and layers."""
        return f"{self.width}x{self.layers}"


JOBS = (Job(2048, 12, goal=1.2), Job(4096, 8, goal=1.3), Job(256, 4, batch=4))


class Block(nn.Module):
    """Attention and an MLP, each beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // WIDTH_OF_HEAD)
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    @override
    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.ln1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(seen.transpose(1, 2).reshape(batch, length, width))
        bent: Tensor = self.fc2(F.gelu(self.fc1(self.ln2(x)), approximate="tanh"))
        return x + bent


class GPT(nn.Module):
    """Tokens -> a score for each word that may be next."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.head(self.norm(x))
        return found


def criterion(scores: Tensor, tokens: Tensor) -> Tensor:
    """Of the next words."""
    return F.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class Side:
    """One of those that take turns."""

    def __init__(self, job: Job, tokens: Tensor, *, scales: str | None, graph: bool) -> None:
        strategy = fleet.DistributedStrategy()
        strategy.amp = strategy.compile = True
        strategy.amp_configs = {"dtype": "bfloat16"}
        strategy.cuda_graph = graph
        strategy.fp8 = scales is not None
        if scales is not None:
            strategy.fp8_configs = {"scales": scales}  # type: ignore[typeddict-item]
        fleet.init(is_collective=True, strategy=strategy)
        torch.manual_seed(0)
        with torch.device("cuda"):
            made = GPT(job.width, job.layers)
        self.parameters = sum(p.numel() for p in made.parameters())
        self.model: Any = fleet.distributed_model(made, criterion=criterion)
        fleet.distributed_optimizer(torch.optim.AdamW(made.parameters(), lr=1e-4, fused=True))
        self.tokens = tokens
        self.clock: list[float] = []
        """Seconds of a step, for each turn."""

    def train(self) -> Tensor:
        """One step."""
        loss: Tensor = self.model.train_batch((self.tokens, self.tokens))
        return loss

    def turn(self, steps: int) -> None:
        """Some steps, the device drained before and after."""
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(steps):
            self.train()
        torch.cuda.synchronize()
        self.clock.append((time.perf_counter() - begun) / steps)


def measure(job: Job, scales: str, graph: bool, turns: int, length: float) -> dict[str, object]:
    """Tokens per second of both sides."""
    tokens = torch.randint(VOCABULARY, (job.batch, LENGTH), device="cuda")
    told = [
        turned(job, tokens, scales=given, graph=graph, turns=turns, length=length)
        for given in (None, scales, None)
    ]
    usual, ours, again = (side["clock"] for side in told)
    ratio = _faster(usual, ours)
    rates = [round(tokens.numel() / statistics.median(clock)) for clock in (usual, ours)]
    return {
        "job": job.name,
        "parameters": told[0]["parameters"],
        "scales": scales,
        "tokens/s": rates[0],
        "with fp8": rates[1],
        "ratio": ratio,
        "noise": _faster(usual, again),
        "goal": job.goal,
        "reached": job.goal is None or ratio >= job.goal,
        "losses": [side["loss"] for side in told],
        "GiB": round(torch.cuda.max_memory_allocated() / 2**30, 1),
    }


def turned(
    job: Job, tokens: Tensor, *, scales: str | None, graph: bool, turns: int, length: float
) -> dict[str, Any]:
    """All turns of one side: a process trains under one strategy at a time."""
    side = Side(job, tokens, scales=scales, graph=graph)
    for _ in range(8):
        side.train()
    side.turn(3)
    steps = max(3, int(length / side.clock.pop()))
    for _ in range(turns):
        side.turn(steps)
    found = {"clock": side.clock, "parameters": side.parameters}
    found["loss"] = round(float(side.train()), 4)
    del side
    gc.collect()
    torch.cuda.empty_cache()
    return found


def _faster(usual: list[float], other: list[float]) -> float:
    """How many times as fast the other one is; turns are compared with those beside them."""
    return round(statistics.median(a / b for a, b in zip(usual, other, strict=True)), 3)


def main(names: Iterable[str], scales: str, graph: bool, turns: int, length: float) -> None:
    """Print one line of JSON per job."""
    wanted = set(names)
    for job in JOBS:
        if job.name not in wanted if wanted else job.goal is None:
            continue
        torch.cuda.reset_peak_memory_stats()
        print(json.dumps(measure(job, scales, graph, turns, length)), flush=True)
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--job", action="append", default=[], choices=[j.name for j in JOBS])
    parser.add_argument("--scales", default="tensor", choices=["tensor", "row"])
    parser.add_argument("--graph", action="store_true", help="with cuda_graph on both sides")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long a turn is")
    given = parser.parse_args()
    main(given.job, given.scales, given.graph, given.turns, given.seconds)
