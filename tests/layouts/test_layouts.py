"""Every layout of four or eight workers trains as one process does and saves the same names."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import fleetx as fleet
from fleetx.plan.mesh import AXES, data_place
from fleetx.testing import world
from tests.layouts import transformer
from tests.rotation import rotating

STEPS = 2
TENSOR_PARALLEL = {
    "column": [f"layers.*.{name}" for name in ("attention.query", "attention.key", "mlp.0")]
    + ["layers.*.attention.value"],
    "row": ["layers.*.attention.out", "layers.*.mlp.2"],
    "vocabulary": ["embed", "head"],
}
SPLITS = {
    (2, 2): ["layers.1"],
    (2, 4): ["layers.2"],
    (4, 4): ["layers.1", "layers.2", "layers.3"],
    # There are four layers, so that stages begin in the middle of them.
    (8, 4): ["layers.0.norm2"]
    + [f"layers.{n}{part}" for n in (1, 2, 3) for part in ("", ".norm2")],
}
"""By the number of stages and the depth of the model."""
EXTRAS: dict[str, dict[str, Any]] = {
    "amp": {"amp": True, "amp_configs": {"dtype": "bfloat16"}},
    "recompute": {"recompute": True, "recompute_configs": {"checkpoints": ["layers.*"]}},
    "gradient_merge": {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 2}},
}
VARIANTS = [
    names for size in range(len(EXTRAS) + 1) for names in itertools.combinations(EXTRAS, size)
]
Layout = dict[str, int]


def layouts(workers: int) -> list[Layout]:
    """All meshes of that many workers."""
    sizes = [size for size in range(1, workers + 1) if workers % size == 0]
    return [
        dict(zip(AXES, found, strict=True))
        for found in itertools.product(sizes, repeat=len(AXES))
        if math.prod(found) == workers
    ]


def depth(layout: Layout) -> int:
    """Layers of the model: eight workers share two cores, so they take two where that will do."""
    workers = math.prod(layout.values())
    return 2 if workers == 8 and layout["pp"] <= 2 else transformer.LAYERS


def strategy(layout: Layout, extras: tuple[str, ...]) -> fleet.DistributedStrategy:
    chosen: Any = fleet.DistributedStrategy()
    chosen.hybrid_configs = {
        "pp_degree": layout["pp"],
        "dp_degree": layout["dp"],
        "sharding_degree": layout["sharding"],
        "mp_degree": layout["tp"],
    }
    if layout["pp"] > 1:
        chosen.pipeline = True
        chosen.pipeline_configs = {
            "split": SPLITS[layout["pp"], depth(layout)],
            "accumulate_steps": 2,
            "schedule_mode": "F-then-B" if layout["pp"] > 2 else "1F1B",
        }
    if layout["sharding"] > 1:
        chosen.sharding = True
        chosen.sharding_configs = {"segment_broadcast_MB": 0.01}
    if layout["tp"] > 1:
        chosen.tensor_parallel = True
        chosen.tensor_parallel_configs = TENSOR_PARALLEL
    for name in extras:
        for key, value in EXTRAS[name].items():
            setattr(chosen, key, value)
    return chosen


def trained(
    layout: Layout, variants: list[tuple[str, ...]]
) -> list[tuple[list[float], dict[str, Tensor]]]:
    return [_trained(layout, extras) for extras in variants]


def _trained(layout: Layout, extras: tuple[str, ...]) -> tuple[list[float], dict[str, Tensor]]:
    fleet.init(is_collective=True, strategy=strategy(layout, extras))
    plain = transformer.build(True, fleet.worker_index(), depth(layout))
    rows = transformer.batch(0)[0][:2]
    model: Any = fleet.distributed_model(plain, criterion=transformer.loss, sample=rows)
    optimizer = fleet.distributed_optimizer(transformer.OPTIMIZERS["sgd"](model.parameters()))
    place, shares = data_place(layout, fleet.worker_index())
    losses = []
    for number in range(STEPS):
        tokens, targets = transformer.batch(number)
        loss = model.train_batch((tokens.chunk(shares)[place], targets.chunk(shares)[place]))
        losses.append(float(fleet.util.all_reduce(loss.numpy())) / fleet.worker_num())
    assert optimizer.param_groups
    state = fleet.full_state_dict(model)
    # What was saved can be loaded again, here and under the names of the plain model.
    fleet.load_full_state_dict(model, fleet.full_state_dict(model, everywhere=True))
    again = fleet.full_state_dict(model)
    assert all(torch.equal(state[name], again[name]) for name in state)
    return losses, state


def reference(extras: tuple[str, ...], layers: int) -> tuple[list[float], dict[str, Tensor]]:
    merged = 2 if "gradient_merge" in extras else 1
    low = torch.bfloat16 if "amp" in extras else None
    return transformer.plain(STEPS, "sgd", tied=True, merged=merged, low=low, layers=layers)


def compare(workers: int, layout: Layout, variants: list[tuple[str, ...]]) -> None:
    results = world(workers, timeout=280).run(trained, layout, variants)[0]
    for extras, (losses, state) in zip(variants, results, strict=True):
        expected, weights = reference(extras, depth(layout))
        tolerance = 2e-2 if "amp" in extras else 1e-5
        assert losses == pytest.approx(expected, abs=tolerance), (layout, extras)
        assert list(state) == list(weights)
        apart = max(float((state[name] - weights[name]).abs().max()) for name in weights)
        assert apart < (5e-2 if "amp" in extras else 1e-5), (layout, extras)


def turns(layout: Layout) -> list[tuple[str, ...]]:
    """All extras, and one of the other variants, which take turns over the layouts."""
    _, *others, every = VARIANTS
    return [every, others[layouts(4).index(layout) % len(others)]]


@pytest.mark.parametrize("layout", rotating(layouts(4), 2), ids=str)
def test_four_workers(layout: Layout) -> None:
    compare(4, layout, VARIANTS[:1])


@pytest.mark.parametrize("layout", rotating(layouts(4), 3), ids=str)
def test_four_workers_and_other_strategies(layout: Layout) -> None:
    compare(4, layout, turns(layout))


@pytest.mark.parametrize("layout", rotating(layouts(8), 5), ids=str)
def test_eight_workers(layout: Layout) -> None:
    compare(8, layout, VARIANTS[:1])


@pytest.mark.rare
@pytest.mark.parametrize("layout", layouts(8), ids=str)
def test_eight_workers_and_other_strategies(layout: Layout) -> None:
    compare(8, layout, VARIANTS[-1:])
