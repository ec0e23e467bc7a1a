"""Compiled, models that nobody here wrote train in every layout as they do without it.

What is repeated is compiled once, which is counted: in the first step, and not for each block.
"""

from typing import Any

import pytest

from fleetx.testing import world
from tests.rotation import rotating
from tests.strategies.compiled import COUNTING, trained

Settings = dict[str, Any]


def pipeline(**configs: Any) -> Settings:
    return {
        "pipeline": True,
        "pipeline_configs": {"accumulate_steps": 4, **configs},
        "hybrid_configs": {"pp_degree": 2},
    }


LAYERS = ["model.layers.1", "model.layers.2", "model.layers.3"]
CUT: Settings = {
    "tensor_parallel": True,
    "tensor_parallel_configs": {"plan": "transformer", "tensor_parallel_degree": 2},
}
# Units that are smaller than a block, which stays in one nevertheless.
SMALL = {"segment_broadcast_MB": 0.01}
HALVES: Settings = {"sharding": True, "sharding_configs": {"sharding_degree": 2, **SMALL}}
BRAIN: Settings = {"amp": True, "amp_configs": {"dtype": "bfloat16"}}
REPLAYED: Settings = {"recompute": True, "recompute_configs": {"checkpoints": ["model.layers.*"]}}

CASES: dict[str, tuple[str, int, Settings, int]] = {
    # Model, workers, strategy, graphs of the model that are compiled in the first step.
    "replicas": ("gpt2", 2, {}, 1),
    "replicas of a resnet": ("resnet", 2, {}, 11),  # torch splits large ones at buckets of DDP
    "sharded": ("gpt2", 2, {"sharding": True, "sharding_configs": SMALL}, 1),
    "gradients sharded": ("llama", 2, {"sharding": True, "sharding_configs": {"stage": 2}}, 1),
    "state sharded": ("bert", 2, {"sharding": True, "sharding_configs": {"stage": 1}}, 3),
    "a sharded resnet": ("resnet", 2, {"sharding": True, "sharding_configs": {"stage": 3}}, 7),
    "stages": ("gpt2", 2, pipeline(), 1),
    "stages inside a block": ("gpt2", 2, pipeline(split=["transformer.h.1.mlp"]), 2),
    "stages, forwards first": ("llama", 2, pipeline(schedule_mode="F-then-B"), 1),
    "stages in turns": ("llama", 2, pipeline(schedule_mode="interleaved", split=LAYERS), 1),
    "cut layers": ("llama", 2, CUT, 1),
    "cut layers of bert": ("bert", 2, CUT, 3),
    "cut layers by position": (
        "llama",
        2,
        {
            **CUT,
            "tensor_parallel_configs": {
                **CUT["tensor_parallel_configs"],
                "sequence": ["*layernorm", "model.norm"],
            },
        },
        2,  # what enters the first block is whole
    ),
    "cut layers in 16 bits": ("llama", 2, CUT | BRAIN, 1),
    "replayed": ("llama", 2, HALVES | REPLAYED, 1),
    "cut and sharded": ("llama", 4, CUT | HALVES, 1),
    "cut and staged": ("llama", 4, CUT | pipeline(), 1),
    "sharded and staged": ("gpt2", 4, HALVES | pipeline(), 1),
}


@pytest.mark.parametrize("case", rotating([*CASES], 6))
def test_strangers(case: str) -> None:
    name, workers, settings, graphs = CASES[case]
    ranks = world(workers, timeout=280)
    usual = ranks.run(trained, name, settings)
    ours = ranks.run(trained, name, settings, COUNTING)
    rtol = 1e-2 if "amp" in settings else 1e-5
    for compiled, plain in zip(ours, usual, strict=True):
        assert compiled.losses == pytest.approx(plain.losses, rel=rtol)
        assert plain.losses[-1] < plain.losses[0]
    most = max(sum(compiled.made[:1]) for compiled in ours)
    assert most == graphs
    assert all(not any(compiled.made[1:]) for compiled in ours)
    whole = "tensor_parallel" not in settings  # cut outputs are given to the criterion as it is
    assert max(compiled.of_criterion for compiled in ours) == int(whole)


@pytest.mark.rare
def test_the_default_backend_follows_cut_layers() -> None:
    ranks = world(2, timeout=280)
    (usual, _), (ours, _) = (ranks.run(trained, "llama", CUT, by) for by in ("", "inductor"))
    assert ours.losses == pytest.approx(usual.losses, rel=1e-4)
