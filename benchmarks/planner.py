"""What `fleetx.auto` expects of plans against what they take, on one device.

    python -m benchmarks.planner                       # all cases that the device can run
    python -m benchmarks.planner --only gpt --json out.json

Steps follow each other without waiting for the device, as in training; of some rounds the fastest
counts, because others use cores and card, too. The file has what the machine and each operator were
measured to do as well. Models are those of torchvision and transformers where they are installed.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import fleetx as fleet
from fleetx import roles
from fleetx.auto.clock import OperatorClock
from fleetx.auto.cluster import Cluster
from fleetx.auto.estimate import estimate
from fleetx.auto.probe import probe
from fleetx.plan.accounts import Accounts
from fleetx.plan.compose import compose
from fleetx.plan.subject import Subject

WARM, STEPS, ROUNDS = 6, 6, 4
CLOCKS: dict[torch.device, OperatorClock] = {}
"""What was measured for one case need not be measured again for another."""


@dataclass(frozen=True)
class Case:
    """One model with one batch."""

    name: str
    model: Callable[[], nn.Module]
    sample: Callable[[], Any]
    targets: Callable[[], torch.Tensor]
    criterion: Callable[[Any, Any], torch.Tensor]
    blocks: tuple[str, ...]


def resnet(batch: int) -> Case:
    """ResNet50 of torchvision on images of 224 x 224."""
    from torchvision.models import resnet50

    return Case(
        f"resnet50 x {batch}",
        resnet50,
        lambda: torch.randn(batch, 3, 224, 224),
        lambda: torch.randint(1000, (batch,)),
        functional.cross_entropy,
        tuple(f"layer{n}" for n in (1, 2, 3, 4)),
    )


def gpt(batch: int, *, width: int, layers: int, length: int = 512) -> Case:
    """GPT-2 of transformers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=width,
        n_layer=layers,
        n_head=width // 64,
        n_positions=length,
        use_cache=False,
        loss_type="ForCausalLM",
    )

    def loss(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs.logits.flatten(0, 1).float(), targets.flatten())

    return Case(
        f"gpt {width} x {layers}, {batch} x {length}",
        lambda: GPT2LMHeadModel(config),
        lambda: {"input_ids": torch.randint(config.vocab_size, (batch, length))},
        lambda: torch.randint(config.vocab_size, (batch, length)),
        loss,
        tuple(f"transformer.h.{n}" for n in range(layers)),
    )


def strategies(case: Case, device: torch.device) -> Iterator[tuple[str, fleet.DistributedStrategy]]:
    """The sets of flags that one worker can have."""
    flags = [(), ("amp",), ("recompute",), ("amp", "recompute")]
    if device.type == "cuda":
        flags += [("amp", "compile"), ("amp", "cuda_graph"), ("amp", "compile", "cuda_graph")]
    for names in flags:
        strategy = fleet.DistributedStrategy()
        for name in names:
            setattr(strategy, name, True)
        if "amp" in names:
            strategy.amp_configs = {"dtype": "bfloat16"}
        if "recompute" in names:
            strategy.recompute_configs = {"checkpoints": list(case.blocks)}
        yield " + ".join(names) or "plain", strategy


def measured(
    case: Case, strategy: fleet.DistributedStrategy, device: torch.device
) -> tuple[float, int]:
    """Seconds of a step, and the most bytes that were taken at once (0 on a CPU)."""
    fleet.init(is_collective=True, strategy=strategy)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    model: Any = fleet.distributed_model(case.model(), criterion=case.criterion)
    optimizer = fleet.distributed_optimizer(torch.optim.AdamW(model.parameters(), lr=1e-4))
    inputs, targets = (_to(make(), device) for make in (case.sample, case.targets))
    for _ in range(WARM):
        model.train_batch([inputs, targets], optimizer)
    times = []
    for _ in range(ROUNDS):
        _wait(device)
        began = time.perf_counter()
        for _ in range(STEPS):
            model.train_batch([inputs, targets], optimizer)
        _wait(device)
        times.append((time.perf_counter() - began) / STEPS)
    peak = torch.cuda.max_memory_allocated() - before if device.type == "cuda" else 0
    del model, optimizer
    roles.stop()
    gc.collect()
    return min(times), peak


def expected(
    case: Case, strategy: fleet.DistributedStrategy, device: torch.device, cluster: Cluster
) -> tuple[float, float]:
    """Seconds of a step, and bytes, before anything runs."""
    model = case.model()
    subject = Subject(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        sample=case.sample(),
        targets=case.targets(),
        criterion=case.criterion,
        device=device,
        clock=CLOCKS.setdefault(device, OperatorClock(device, cluster.device)),
    )
    found = estimate(Accounts(compose(strategy.request(), 1), subject), cluster)
    return found.seconds, found.memory


def _to(tree: Any, device: torch.device) -> Any:
    if isinstance(tree, dict):
        return {name: value.to(device) for name, value in tree.items()}
    return tree.to(device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def cases(device: torch.device) -> list[Case]:
    """Sizes that the device can run in a while."""
    if device.type == "cuda":
        return [
            *(resnet(batch) for batch in (32, 128, 256)),
            *(gpt(batch, width=768, layers=12) for batch in (2, 16)),
            gpt(8, width=2048, layers=8, length=1024),
        ]
    return [resnet(2), gpt(1, width=256, layers=4, length=128)]


def main() -> None:
    """Measure all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--flags", default="", help="sets of flags that have this one")
    parser.add_argument("--json", type=Path, help="where the figures are written")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cluster = probe(device)
    print(cluster, flush=True)
    clock = CLOCKS.setdefault(device, OperatorClock(device, cluster.device))
    if "compile" in options.flags:
        print(clock.fused(), flush=True)
    rows = []
    for case in (one for one in cases(device) if one.name.startswith(options.only)):
        for flags, strategy in strategies(case, device):
            if options.flags not in flags:
                continue
            said, room = expected(case, strategy, device, cluster)
            took, peak = measured(case, strategy, device)
            rows.append(
                {"case": case.name, "flags": flags, "said": said, "took": took}
                | {"room": room, "peak": peak}
            )
            memory = f"{room / 1e9:8.2f} {peak / 1e9:8.2f} {room / peak:5.2f}" if peak else ""
            print(
                f"{case.name:28} {flags:28} {said * 1e3:8.1f} {took * 1e3:8.1f} "
                f"{said / took:5.2f} {memory}",
                flush=True,
            )
            if options.json:
                found: dict[str, Any] = {
                    "machine": asdict(cluster),
                    "kernels": asdict(clock.fused()),
                }
                found |= {"operators": clock.known, "rows": rows}
                options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
