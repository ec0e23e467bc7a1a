"""Models of transformers and torchvision on one GPU: fleetx against the loop that users write.

bfloat16 by autocast, fused AdamW, random data on the device, only ``amp`` is on. The sides take
turns, and the loop by hand comes twice, which shows the noise. ``train_batch`` is one call of
fleetx for a step, ``loop`` is the user's own loop over what fleetx made of model and optimizer.
Both give the criterion float32 scores, as the loop by hand does here. ``16 bits`` is a loop whose
criterion is inside of autocast: ``cross_entropy`` rounds what it computes to the format of the
scores there, which "off" shows, the mean error of a sample's loss.

python -m benchmarks.models_gpu                    # GPT-2 and ViT
python -m benchmarks.models_gpu --model vit --turns 20
"""

import argparse
import gc
import json
import statistics
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torchvision
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

import fleetx as fleet
from benchmarks.resnet_gpu import Side, Train, faster

Data = tuple[Tensor, Tensor]


class Gpt(nn.Module):
    """GPT-2 with 124 million parameters; only its scores are given back."""

    def __init__(self) -> None:
        super().__init__()
        self.net = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """A score for each word that may be next."""
        found: Tensor = self.net(tokens, use_cache=False).logits
        return found

    @staticmethod
    def data() -> Data:
        """24 texts of 512 words, so that the card is the limit and not the host."""
        tokens = torch.randint(50_257, (24, 512), device="cuda")
        return tokens, tokens.roll(-1, 1)


class Vit(nn.Module):
    """ViT-B/16."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torchvision.models.vit_b_16()

    def forward(self, images: Tensor) -> Tensor:
        """A score for each class."""
        found: Tensor = self.net(images)
        return found

    @staticmethod
    def data() -> Data:
        """192 images."""
        labels = torch.randint(1000, (192,), device="cuda")
        return torch.randn(192, 3, 224, 224, device="cuda"), labels


MODELS: dict[str, Any] = {"gpt": Gpt, "vit": Vit}


def criterion(scores: Tensor, wanted: Tensor) -> Tensor:
    """Of words or of classes."""
    return F.cross_entropy(scores.flatten(0, -2), wanted.flatten())


def fresh(kind: Callable[[], nn.Module]) -> nn.Module:
    """The same weights for all sides."""
    torch.manual_seed(0)
    return kind().to("cuda")


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """The fastest one of torch."""
    return torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)


def by_hand(kind: Any, data: Data, *, rounded: bool = False) -> Train:
    """What a user writes without fleetx."""
    model = fresh(kind)
    optimizer = adamw(model)

    def step() -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            scores = model(data[0])
            loss = criterion(scores, data[1]) if rounded else None
        loss = criterion(scores.float(), data[1]) if loss is None else loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def prepared(kind: Any) -> tuple[Any, Any]:
    """What fleetx makes of a model and its optimizer."""
    strategy = fleet.DistributedStrategy()
    strategy.amp, strategy.amp_configs = True, {"dtype": "bfloat16"}
    fleet.init(is_collective=True, strategy=strategy)
    model = fleet.distributed_model(fresh(kind), criterion=criterion)
    return model, fleet.distributed_optimizer(adamw(model))


def batches(kind: Any, data: Data) -> Train:
    """One call for a step."""
    model, _ = prepared(kind)
    return lambda: model.train_batch(data)


def loop(kind: Any, data: Data) -> Train:
    """The user's own loop."""
    model, optimizer = prepared(kind)

    def step() -> Tensor:
        loss = criterion(model(data[0]), data[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


SIDES: dict[str, Callable[[Any, Data], Train]] = {
    "by hand": by_hand,
    "train_batch": batches,
    "loop": loop,
    "16 bits": partial(by_hand, rounded=True),
    "by hand again": by_hand,
}


def off(kind: Any, data: Data) -> dict[str, float]:
    """By how much a sample's loss is wrong, of the same scores inside and outside of autocast."""
    each = partial(F.cross_entropy, reduction="none")
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        scores, wanted = fresh(kind)(data[0]).flatten(0, -2)[:512], data[1].flatten()[:512]
        inside = each(scores, wanted)
    outside, true = each(scores.float(), wanted), each(scores.double(), wanted)
    losses = {"16 bits": inside, "float32": outside}
    return {k: float((loss - true).abs().mean()) for k, loss in losses.items()}


def measure(name: str, turns: int, length: float) -> dict[str, object]:
    """Milliseconds of a step of all sides, and their share of the step by hand."""
    kind = MODELS[name]
    data = kind.data()
    sides = {what: Side(make(kind, data)) for what, make in SIDES.items()}
    for side in sides.values():
        side.turn(10)
        side.turn(10)
    steps = max(3, int(length / max(side.clock[-1] for side in sides.values())))
    for side in sides.values():
        side.clock.clear()
        side.host.clear()
    for _ in range(turns):
        for side in sides.values():
            side.turn(steps)
    hand = sides["by hand"]
    return {
        "model": name,
        "ms": {k: round(1e3 * statistics.median(s.clock), 2) for k, s in sides.items()},
        "ratio": {k: round(1 / faster(hand.clock, s.clock), 3) for k, s in sides.items()},
        "host ms": {k: round(1e3 * statistics.median(s.host), 2) for k, s in sides.items()},
        "losses": [round(float(side.train()), 3) for side in sides.values()],
        "off": off(kind, data),
        "on the card": {k: on_card(side.train) for k, side in sides.items()},
    }


def on_card(train: Train, steps: int = 3) -> dict[str, float]:
    """Milliseconds of a step in which the card computes, and those from its first kernel on."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            train()
        torch.cuda.synchronize()
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type.name == "CUDA"
    ]
    whole = max(end for _, end in spans) - min(start for start, _ in spans)
    busy = sum(end - start for start, end in spans)
    per = 1e3 * steps
    return {
        "kernels": len(spans) / steps,
        "busy": round(busy / per, 2),
        "ms": round(whole / per, 2),
    }


def main(names: Iterable[str], turns: int, length: float) -> None:
    """Print one line of JSON per model."""
    for name in names or MODELS:
        print(json.dumps(measure(name, turns, length)), flush=True)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", default=[], choices=list(MODELS))
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5, help="how long a turn is")
    given = parser.parse_args()
    main(given.model, given.turns, given.seconds)
