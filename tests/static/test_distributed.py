"""Programs under every strategy: the weights are those of the same model written eagerly."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx import static
from fleetx.testing import world
from tests.rotation import rotating

STEPS = 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 128), nn.Tanh())
        self.second = nn.Sequential(nn.Linear(128, 128), nn.BatchNorm1d(128), nn.GELU())
        self.head = nn.Linear(128, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x)))


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7 * step + dist.get_rank())
    x = torch.randn(6, 8, generator=generator)
    return x, torch.randint(0, 4, (6,), generator=generator)


def sgd(**options: Any) -> dict[str, Any]:
    return {"lr": 0.2, "momentum": 0.9, **options}


def strategy(flags: dict[str, Any], prefix: str = "") -> fleet.DistributedStrategy:
    made = fleet.DistributedStrategy()
    for name, options in flags.items():
        setattr(made, name, True)
        if options:
            names = {k: [prefix + n for n in v] for k, v in options.items() if k == "checkpoints"}
            setattr(made, f"{name}_configs", {**options, **names})
    return made


def eager(flags: dict[str, Any], cls: type[torch.optim.Optimizer], **options: Any) -> Tensor:
    torch.manual_seed(3)
    fleet.init(is_collective=True, strategy=strategy(flags))
    model = fleet.distributed_model(Net())
    optimizer = fleet.distributed_optimizer(cls(model.parameters(), **options))
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.minimize(F.cross_entropy(model(x), y))
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def program(flags: dict[str, Any], cls: type[torch.optim.Optimizer], **options: Any) -> Tensor:
    static.reset()
    torch.manual_seed(3)
    model = Net()
    x, y = static.data("x", [None, 8]), static.data("y", [None], "int64")
    loss = F.cross_entropy(model(x), y)
    fleet.init(is_collective=True)
    optimizer = fleet.distributed_optimizer(
        static.Optimizer(cls, **options), strategy(flags, "net_0.")
    )
    optimizer.minimize(loss)
    exe = static.Executor()
    exe.run(fleet.startup_program)
    for step in range(STEPS):
        feed = {k: v.numpy() for k, v in zip("xy", batch(step), strict=True)}
        exe.run(fleet.main_program, feed, [loss])
    static.reset()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def moved() -> Tensor:
    torch.manual_seed(3)
    return torch.cat([p.detach().flatten() for p in Net().parameters()])


ONE_CUT = {"checkpoints": ["first"]}
TWO_CUTS = {"checkpoints": ["first", "second"]}
NO_BIAS = {"exclude_from_weight_decay": ["bias"]}
BRAIN = {"dtype": "bfloat16"}
ADAM = {"lr": 0.01}

Combination = tuple[dict[str, Any], type[torch.optim.Optimizer], dict[str, Any]]
COMBINATIONS: list[Combination] = [
    ({}, torch.optim.SGD, sgd()),
    ({}, torch.optim.AdamW, ADAM),
    ({"recompute": TWO_CUTS}, torch.optim.SGD, sgd()),
    ({"gradient_merge": {"k_steps": 2, "avg": True}}, torch.optim.SGD, sgd()),
    ({"lars": NO_BIAS}, torch.optim.SGD, sgd()),
    ({"lamb": NO_BIAS}, torch.optim.Adam, ADAM),
    ({"localsgd": {"k_steps": 2}}, torch.optim.SGD, sgd()),
    ({"adaptive_localsgd": {"init_k_steps": 2}}, torch.optim.SGD, {"lr": 0.2}),
    ({"dgc": {"sparsity": [0.75]}}, torch.optim.SGD, sgd()),
    ({"fp16_allreduce": {}}, torch.optim.SGD, sgd()),
    ({"clip": {"limit": 0.1}}, torch.optim.SGD, sgd()),
    ({"sync_batch_norm": {}}, torch.optim.SGD, sgd()),
    ({"sync_batch_norm": {}, "recompute": TWO_CUTS}, torch.optim.SGD, sgd()),
    ({"amp": {"init_loss_scaling": 128.0}}, torch.optim.SGD, sgd()),
    # Pairs that the manual of Paddle's Fleet lists.
    ({"amp": BRAIN, "recompute": ONE_CUT}, torch.optim.SGD, sgd()),
    ({"dgc": {"sparsity": [0.75]}, "recompute": ONE_CUT}, torch.optim.SGD, sgd()),
    ({"lars": NO_BIAS, "recompute": ONE_CUT}, torch.optim.SGD, sgd()),
    ({"lamb": NO_BIAS, "recompute": ONE_CUT}, torch.optim.Adam, ADAM),
    ({"amp": BRAIN, "localsgd": {"k_steps": 2}}, torch.optim.SGD, sgd()),
    ({"amp": BRAIN, "adaptive_localsgd": {"init_k_steps": 2}}, torch.optim.SGD, {"lr": 0.2}),
    ({"amp": BRAIN, "lars": NO_BIAS}, torch.optim.SGD, sgd()),
    ({"amp": BRAIN, "lamb": NO_BIAS}, torch.optim.Adam, ADAM),
    ({"amp": BRAIN, "recompute": ONE_CUT, "lars": NO_BIAS}, torch.optim.SGD, sgd()),
    ({"amp": BRAIN, "recompute": ONE_CUT, "lamb": NO_BIAS}, torch.optim.Adam, ADAM),
]


def name(value: object) -> str:
    if isinstance(value, dict):
        return "+".join(value) or "plain"
    return str(value) if isinstance(value, int) else ""


# One worker has nobody to compress gradients for, or to meet.
ALONE = [
    c for c in COMBINATIONS[-10:] if not {"dgc", "localsgd", "adaptive_localsgd"} & c[0].keys()
]
CASES = [(2, *combination) for combination in COMBINATIONS] + [(1, *c) for c in ALONE]


@pytest.mark.parametrize(
    ("workers", "flags", "cls", "options"), rotating(CASES, 2, rows=True), ids=name
)
def test_every_strategy_trains_a_program_as_it_trains_a_model(
    workers: int, flags: dict[str, Any], cls: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    theirs = world(workers).run(eager, flags, cls, **options)
    ours = world(workers).run(program, flags, cls, **options)
    start = moved()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-6)
        assert (a - start).norm() > 1e-3


def torch_optimizer(grad_clip: bool) -> Tensor:
    static.reset()
    torch.manual_seed(3)
    model = Net()
    fleet.init(is_collective=True)
    loss = F.cross_entropy(model(static.data("x", [None, 8])), static.data("y", [None], "int64"))
    clip = fleet.ClipGradByGlobalNorm(0.1) if grad_clip else None
    optimizer = fleet.distributed_optimizer(
        torch.optim.SGD(model.parameters(), **sgd()), grad_clip=clip
    )
    optimizer.minimize(loss)
    exe = static.Executor()
    exe.run(fleet.startup_program)
    for step in range(STEPS):
        exe.run(fleet.main_program, dict(zip("xy", batch(step), strict=True)), [loss])
    assert optimizer.state_dict()["state"]
    static.reset()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_torch_optimizer_with_clipping() -> None:
    ours = world(2).run(torch_optimizer, False)
    theirs = world(2).run(eager, {}, torch.optim.SGD, **sgd())
    assert torch.allclose(ours[0], theirs[0], rtol=0, atol=1e-6)
    ours = world(2).run(torch_optimizer, True)
    theirs = world(2).run(eager, {"clip": {"limit": 0.1}}, torch.optim.SGD, **sgd())
    assert torch.allclose(ours[1], theirs[1], rtol=0, atol=1e-6)


def test_the_comparison_can_fail() -> None:
    theirs = world(2).run(eager, {}, torch.optim.SGD, **sgd())
    other = world(2).run(program, {"gradient_merge": {"k_steps": 2}}, torch.optim.SGD, **sgd())
    assert not torch.allclose(theirs[0], other[0], rtol=0, atol=1e-3)
