"""Trains with each company of flags, captured and as usual, and says what came of it.

A script for `fleetrun`, on workers that NCCL joins: several on one card if ``NCCL_HOSTID`` tells
it that they are on different hosts, as `main` does.
"""

import faulthandler
import gc
import json
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import fleetx as fleet

Settings = dict[str, Any]
BATCHES, WARMUP = 24, 3
AMP: Settings = {"amp": True, "amp_configs": {"init_loss_scaling": 1024.0}}
RECOMPUTE: Settings = {"recompute": True, "recompute_configs": {"checkpoints": ["1", "2"]}}
MERGE: Settings = {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 3}}
CLIP: Settings = {"clip": True, "clip_configs": {"limit": 0.3}}
LARS: Settings = {"lars": True, "lars_configs": {"lars_coeff": 0.1}}
COMPANY: dict[str, Settings] = {
    "plain": {},
    "adam": {"adam": True},
    "amp": AMP,
    "clip": CLIP,
    "fp16_allreduce": {"fp16_allreduce": True},
    "gradient_merge": MERGE,
    "lamb": {"lamb": True},
    "lars": LARS,
    "localsgd": {"localsgd": True, "localsgd_configs": {"k_steps": 4}},
    "adaptive_localsgd": {"adaptive_localsgd": True},
    "nccl_comm_num": {"nccl_comm_num": 2, "fuse_grad_size_in_MB": 1},
    "recompute": RECOMPUTE,
    "sync_batch_norm": {"sync_batch_norm": True},
    "all": AMP | RECOMPUTE | LARS | MERGE | CLIP | {"sync_batch_norm": True},
    **{
        f"sharding {stage}": {"sharding": True, "sharding_configs": {"stage": stage}, "adam": True}
        for stage in (1, 2, 3)
    },
    "sharding, lars": LARS | {"sharding": True, "sharding_configs": {"stage": 2}},
    "sharding, amp, merged": AMP
    | MERGE
    | {"sharding": True, "sharding_configs": {"stage": 3}, "adam": True},
    "compile": {"compile": True},
}
TWO_LEVELS: Settings = {
    "use_hierarchical_allreduce": True,
    "hierarchical_allreduce_inter_nranks": 2,
}
OF_FOUR: dict[str, Settings] = {
    "two levels": TWO_LEVELS,
    "two levels, fp16_allreduce": TWO_LEVELS | {"fp16_allreduce": True},
    "sharding over two": {
        "sharding": True,
        "sharding_configs": {"stage": 3, "sharding_degree": 2},
        "adam": True,
    },
}
"""What takes four workers."""
OF_RULES: dict[str, Settings] = {
    f"sharding, {rule}": {"sharding": True, "sharding_configs": {"stage": 2}, "rule": rule}
    for rule in ("adadelta", "rmsprop", "rprop", "running")
}
"""Rules of torch that take spread tensors one by one, and one that torch does not know."""
EVERY = COMPANY | OF_FOUR | OF_RULES


class Running(torch.optim.Optimizer):
    """A rule as of another library: its step computes what torch can of whole tensors alone."""

    def __init__(self, parameters: Any, lr: float = 0.01, *, capturable: bool = False) -> None:
        super().__init__(parameters, {"lr": lr, "capturable": capturable})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Follow the running sum of gradients along rows."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad.cumsum(0) * group["lr"])


RULES: dict[str, Any] = {
    "adadelta": lambda parameters: torch.optim.Adadelta(parameters, lr=1.0),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3),
    "rprop": lambda parameters: torch.optim.Rprop(parameters, lr=1e-3),
    "running": lambda parameters: Running(parameters, lr=1e-3),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
}


class Seen(logging.Handler):
    """Counts what was captured."""

    def __init__(self) -> None:
        super().__init__()
        self.captured = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.captured += record.getMessage().startswith("cuda_graph: captured")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    block = nn.Sequential(nn.ReLU(), nn.Linear(32, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU())
    return nn.Sequential(nn.Linear(8, 32), block, nn.Linear(32, 32), nn.Linear(32, 4))


def batches(rank: int, sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(rank)
    return [
        (
            torch.randn(size, 8, generator=generator),
            torch.randint(0, 4, (size,), generator=generator),
        )
        for size in sizes
    ]


def trained(settings: Settings, *, captured: bool, sizes: list[int]) -> Settings:
    """Losses, weights and buffers after training, and how much was captured."""
    given = dict(settings)
    adam = given.pop("adam", False) or "lamb" in given
    rule = RULES[given.pop("rule", "adam" if adam else "sgd")]
    strategy = fleet.DistributedStrategy()
    for name, value in given.items():
        setattr(strategy, name, value)
    strategy.cuda_graph = captured
    if captured:
        strategy.cuda_graph_configs = {"warmup": WARMUP}
    seen = Seen()
    logger = logging.getLogger("fleetx.strategies.cuda_graph.run")
    logger.addHandler(seen)
    logger.setLevel(logging.INFO)
    fleet.init(is_collective=True, strategy=strategy)
    try:
        model: Any = fleet.distributed_model(net(), criterion=functional.cross_entropy)
        fleet.distributed_optimizer(rule(model.parameters()))
        losses = [model.train_batch(batch) for batch in batches(fleet.worker_index(), sizes)]
        held = [getattr(t, "full_tensor", lambda t=t: t)() for t in model.parameters()]
        everything = [t.detach().double().flatten().cpu() for t in (*held, *model.buffers())]
        return {
            "losses": [float(loss) for loss in losses],
            "everything": torch.cat(everything).tolist(),
            "captured": seen.captured,
        }
    finally:
        logger.removeHandler(seen)


def main(out: Path, names: list[str]) -> None:
    faulthandler.enable()
    rank = os.environ.get("PADDLE_TRAINER_ID") or os.environ.get("RANK", "0")
    # Workers on hosts of their own, as far as NCCL knows: it refuses two of one host on one card.
    os.environ["NCCL_HOSTID"] = f"worker{rank}"
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    merged = {name for name, settings in EVERY.items() if "gradient_merge" in settings}
    sizes = {name: [16] * (2 * BATCHES if name in merged else BATCHES) for name in EVERY}
    # The second worker's batches are smaller now and then.
    odd = [12 if int(rank) == 1 and at in {20, 22} else 16 for at in range(BATCHES)]
    found: dict[str, Any] = {}
    for name in names or list(COMPANY):
        company, given = name.removesuffix(", uneven"), sizes.get(name, odd)
        both: dict[str, Any] = {}
        for captured in (True, False):
            try:
                both["captured" if captured else "usual"] = trained(
                    EVERY[company], captured=captured, sizes=given
                )
            except Exception:
                both["error"] = traceback.format_exc()
                break
        found[name] = both
        Path(out, f"{rank}.json").write_text(json.dumps(found))
        print(name, both.get("error", "trained"), flush=True)
        gc.collect()  # of the model, whose strategy the next one does not have


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
