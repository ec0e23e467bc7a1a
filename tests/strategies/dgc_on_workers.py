"""Trains with dgc, captured and as usual, and says what came of it.

A script for `fleetrun`, on workers that NCCL joins: several on one card if ``NCCL_HOSTID`` tells
it that they are on different hosts, as `main` does. Without a card, tests import it.
"""

import copy
import faulthandler
import gc
import io
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import fleetx as fleet
from fleetx.api import session

Settings = dict[str, Any]
Batch = tuple[Tensor, Tensor]
Around = Callable[[], AbstractContextManager[Any]]
BATCHES, SAVED_AT, WARMUP = 30, 20, 2
BAD = 22
"""A batch, captured by then, whose gradients are not finite on the second worker."""
RAMP: Settings = {"rampup_begin_step": 4, "rampup_step": 10, "sparsity": [0.5, 0.9, 0.97]}
SETTLED = 4 + 7 + 1
"""Updates after which the last level is in force and its first update is over."""
AMP: Settings = {
    "amp": True,
    "amp_configs": {"init_loss_scaling": 1024.0, "decr_every_n_nan_or_inf": 1},
}
MERGE: Settings = {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 3}}
HALF: Settings = {"fp16_allreduce": True}
COMPANY: dict[str, Settings] = {
    "dgc": {},
    "fp16_allreduce": HALF,
    "one tensor per bucket": {"fuse_all_reduce_ops": False},
    "local_grad_clip_norm": {"local_grad_clip_norm": 0.05},
    "amp": AMP,
    "amp, fp16_allreduce": AMP | HALF,
    "gradient_merge": MERGE,
    "all": AMP | HALF | MERGE | {"clip": True, "clip_configs": {"limit": 0.3}},
    "large layers alone": {},
    "resnet18": {},
    "gpt2": AMP | HALF,
}


class Seen(logging.Handler):
    """Notes at which batches a step was captured."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.batch, self.captured = 0, list[int]()

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("cuda_graph: captured"):
            self.captured.append(self.batch)


def wide() -> nn.Sequential:
    """Three layers that are compressed, in one bucket, between others that are not."""
    layers: list[nn.Module] = [nn.Linear(16, 192), nn.ReLU()]
    layers += [nn.Linear(192, 128), nn.LayerNorm(128), nn.ReLU(), nn.Linear(128, 160), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(160, 128), nn.ReLU(), nn.Linear(128, 4))


def large() -> nn.Sequential:
    """Nothing but what is compressed, so that the optimizer itself keeps nothing."""
    first, second = (nn.Linear(128, 128, bias=False) for _ in range(2))
    return nn.Sequential(first, nn.ReLU(), second)


def resnet18() -> nn.Module:
    from tests.libraries import torchvision

    model: nn.Module = torchvision.models.resnet18(num_classes=10)
    return model


def gpt2() -> nn.Module:
    from tests.libraries import transformers

    config = transformers.GPT2Config(
        vocab_size=256, n_positions=32, n_embd=128, n_layer=2, n_head=4, use_cache=False
    )
    config.bos_token_id = config.eos_token_id = 0
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def next_tokens(outputs: Any, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.logits.flatten(0, 1).float(), targets.flatten())


def vectors(size: int, generator: torch.Generator) -> Batch:
    x = torch.randn(size, 16, generator=generator)
    return x, x[:, :4].argmax(1)


def wide_vectors(size: int, generator: torch.Generator) -> Batch:
    x = torch.randn(size, 128, generator=generator)
    return x, x.argmax(1)


def images(size: int, generator: torch.Generator) -> Batch:
    x = torch.randn(size, 3, 32, 32, generator=generator)
    return x, torch.randint(10, (size,), generator=generator)


def tokens(size: int, generator: torch.Generator) -> Batch:
    x = torch.randint(256, (size, 16), generator=generator)
    return x, x.roll(-1, 1)


Draw = Callable[[int, torch.Generator], Batch]
MODELS: dict[str, tuple[Callable[[], nn.Module], Draw, Any]] = {
    "large layers alone": (large, wide_vectors, functional.cross_entropy),
    "resnet18": (resnet18, images, functional.cross_entropy),
    "gpt2": (gpt2, tokens, next_tokens),
}


def batches(company: str, rank: int, sizes: Sequence[int]) -> list[Batch]:
    """Batches of one worker; with dynamic loss scaling, one of them is not finite on the second."""
    _, draw, _ = MODELS.get(company, (wide, vectors, None))
    generator = torch.Generator().manual_seed(rank)
    found = [draw(size, generator) for size in sizes]
    if overflows(company) and rank == 1 and len(found) > BAD:
        found[BAD] = found[BAD][0] * float("inf"), found[BAD][1]
    return found


def overflows(company: str) -> bool:
    """Whether a batch of it is not finite."""
    return company in {"amp", "amp, fp16_allreduce"}


def sizes_of(company: str) -> list[int]:
    return [8] * (3 * BATCHES if "gradient_merge" in COMPANY[company] else BATCHES)


def numbers(model: nn.Module) -> Tensor:
    """Parameters and statistics, without counts of batches, which would outweigh them."""
    parts = [part for part in (*model.parameters(), *model.buffers()) if part.is_floating_point()]
    return torch.cat([part.detach().double().flatten().cpu() for part in parts])


class Training:
    """One worker's job.

    Args:
        company: Of `COMPANY`.
        captured: Whether steps are captured.
        around: What it is built under.
    """

    def __init__(
        self,
        company: str,
        *,
        captured: bool,
        around: AbstractContextManager[Any] | None = None,
    ) -> None:
        strategy = fleet.DistributedStrategy()
        given = dict(COMPANY[company])
        strategy.dgc = True
        limit = given.pop("local_grad_clip_norm", 0.0)
        setattr(strategy, "dgc_configs", RAMP | {"local_grad_clip_norm": limit})  # noqa: B010
        for name, value in given.items():
            setattr(strategy, name, value)
        strategy.cuda_graph = captured
        if captured:
            strategy.cuda_graph_configs = {"warmup": WARMUP}
        self.seen = Seen()
        fleet.init(is_collective=True, strategy=strategy)
        make, _, criterion = MODELS.get(company, (wide, vectors, functional.cross_entropy))
        torch.manual_seed(0)
        with around or nullcontext():
            self.model: Any = fleet.distributed_model(make(), criterion=criterion)
            # The same kernels move the parameters, captured or not.
            rule = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, fused=True)
            self.optimizer: Any = fleet.distributed_optimizer(rule)
        self.engine: Any = session.engines()[-1]
        self.losses: list[float] = []

    def run(self, given: Sequence[Batch]) -> None:
        logger = logging.getLogger("fleetx.strategies.cuda_graph.run")
        logger.addHandler(self.seen)
        logger.setLevel(logging.INFO)
        try:
            for batch in given:
                self.losses.append(float(self.model.train_batch(batch)))
                self.seen.batch += 1
        finally:
            logger.removeHandler(self.seen)

    def saved(self) -> bytes:
        file = io.BytesIO()
        both = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(both, file)
        return file.getvalue()

    def load(self, saved: bytes) -> None:
        state = torch.load(io.BytesIO(saved), map_location="cpu", weights_only=False)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def kept(self) -> Settings:
        """What dgc keeps, as it says itself."""
        state: Settings = copy.deepcopy(self.optimizer.state_dict()["strategies"]["dgc"])
        return state

    def weights(self) -> Tensor:
        return numbers(self.model)


def flat(kept: Settings, key: str) -> Tensor:
    """Velocities ``u`` or waiting sums ``v`` of all parameters."""
    return torch.cat([kept[key][n].detach().double().flatten().cpu() for n in sorted(kept[key])])


def differ(found: Tensor, usual: Tensor, start: Tensor | None = None) -> float:
    """The distance of two ends, as a part of the way that the second one went."""
    way = usual if start is None else usual - start
    return float((found - usual).norm() / way.norm())


@dataclass(frozen=True)
class End:
    """Where a job ended; nothing of it lives on."""

    weights: Tensor
    kept: Settings
    losses: list[float]
    captured: list[int]
    stray: bool = False
    """Whether the batch that was not finite left a trace."""

    def apart(self, other: "End", start: Tensor | None = None) -> list[float]:
        """How far weights, velocities and waiting sums are from those of another end."""
        kept = [differ(flat(self.kept, key), flat(other.kept, key)) for key in "uv"]
        return [differ(self.weights, other.weights, start), *kept]


def ended(training: Training, *, stray: bool = False) -> End:
    return End(
        training.weights(), training.kept(), training.losses, training.seen.captured[:], stray
    )


def start_of(company: str) -> Tensor:
    torch.manual_seed(0)
    return numbers(MODELS.get(company, (wide, vectors, None))[0]())


def compared(company: str, rank: int, around: Around = nullcontext) -> Settings:
    """How far captured training ends from the usual one, and what it captured."""
    given = batches(company, rank, sizes_of(company))
    ours = trained(company, given, captured=True, around=around)
    gc.collect()
    usual = trained(company, given, captured=False, around=nullcontext)
    return {
        "captured": ours.captured,
        "captured as usual": usual.captured,
        "apart": ours.apart(usual, start_of(company)),
        "steps": [ours.kept["step"], usual.kept["step"]],
        "losses": [ours.losses, usual.losses],
        "stray": ours.stray,
    }


def trained(company: str, given: list[Batch], *, captured: bool, around: Around) -> End:
    training = Training(company, captured=captured, around=around())
    training.run(given[:BAD])
    weights, kept = training.weights(), training.kept()
    training.run(given[BAD : BAD + 1])
    stray = False
    if overflows(company):
        after = training.kept()
        same = [torch.equal(weights, training.weights()), kept["step"] == after["step"]]
        same += [torch.equal(flat(kept, key), flat(after, key)) for key in "uv"]
        stray = not all(same)
    training.run(given[BAD + 1 :])
    return ended(training, stray=stray)


def restarted(rank: int, around: Around = nullcontext) -> Settings:
    """Training that goes on from a state in the middle: in the same job, and in new ones."""
    given = batches("fp16_allreduce", rank, [8] * 44)
    first, again, state = twice("fp16_allreduce", given, SAVED_AT, captured=True, around=around)
    found: Settings = {"first": first.captured}
    ends = {"again": again}
    for captured in (True, False):
        gc.collect()
        inside = around if captured else nullcontext
        end = resumed("fp16_allreduce", given[SAVED_AT:], state, captured=captured, around=inside)
        ends["captured anew" if captured else "as usual"] = end
    found |= {name: end.apart(first) for name, end in ends.items()}
    found["captured"] = {name: end.captured for name, end in ends.items()}
    found["steps"] = [first.kept["step"], *(end.kept["step"] for end in ends.values())]
    return found


def twice(
    company: str, given: list[Batch], at: int, *, captured: bool, around: Around
) -> tuple[End, End, bytes]:
    """A job's end; the one after its batches from some on were given again; its state then."""
    training = Training(company, captured=captured, around=around())
    training.run(given[:at])
    state = training.saved()
    training.run(given[at:])
    first = ended(training)
    training.load(state)
    training.run(given[at:])
    return first, ended(training), state


def resumed(
    company: str, given: list[Batch], state: bytes, *, captured: bool, around: Around
) -> End:
    training = Training(company, captured=captured, around=around())
    training.load(state)
    training.run(given)
    return ended(training)


def back_in_the_ramp_up(rank: int, around: Around = nullcontext) -> Settings:
    """A state of the ramp-up, loaded into a job that has captured steps already."""
    # No state of the optimizer, which would be looked at, too, lies elsewhere afterwards.
    company = "large layers alone"
    given = batches(company, rank, [8] * 30)
    _, ours, _ = twice(company, given, 6, captured=True, around=around)
    gc.collect()
    _, usual, _ = twice(company, given, 6, captured=False, around=nullcontext)
    return {
        "apart": ours.apart(usual, start_of(company)),
        "steps": [ours.kept["step"], usual.kept["step"]],
        "captured": ours.captured,
    }


SPECIAL: dict[str, Callable[[int], Settings]] = {
    "restarted": restarted,
    "back in the ramp-up": back_in_the_ramp_up,
}


def main(out: Path, names: list[str]) -> None:
    faulthandler.enable()
    rank = int(os.environ.get("PADDLE_TRAINER_ID") or os.environ.get("RANK", "0"))
    # Workers on hosts of their own, as far as NCCL knows: it refuses two of one host on one card.
    os.environ["NCCL_HOSTID"] = f"worker{rank}"
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    torch.backends.cudnn.deterministic = True  # two runs are to be told apart by more than rounding
    found: dict[str, Settings] = {}
    for name in names or [*COMPANY, *SPECIAL]:
        try:
            found[name] = SPECIAL[name](rank) if name in SPECIAL else compared(name, rank)
        except Exception:
            found[name] = {"error": traceback.format_exc()}
        Path(out, f"{rank}.json").write_text(json.dumps(found))
        print(name, found[name].get("error", "trained"), flush=True)
        gc.collect()  # of the model, whose strategy the next one does not have


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
