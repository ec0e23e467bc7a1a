"""What each rank holds once a model is laid out: its share, and nothing of the whole model."""

import gc
import os
import re
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import fleetx as fleet
from fleetx import roles
from fleetx.testing import world
from fleetx.testing.limits import stretched
from tests.strategies.paddle import start

WIDTH = 128
SQUARE = WIDTH * WIDTH * 4
"""Bytes of one layer."""


def cut(**configs: Any) -> dict[str, Any]:
    return {"tensor_parallel": True, "tensor_parallel_configs": configs}


def shard(stage: int) -> dict[str, Any]:
    return {"sharding": True, "sharding_configs": {"stage": stage, "segment_broadcast_MB": 0.01}}


PP = {
    "pipeline": True,
    "pipeline_configs": {"split": ["2"], "accumulate_steps": 2},
    "hybrid_configs": {"pp_degree": 2},
}
TP = cut(tensor_parallel_degree=2, column=["0"], row=["1"])
MERGE = {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 2}}
REPLAY = {"recompute": True, "recompute_configs": {"checkpoints": ["1"]}}
CLIP = {"clip": True}
LAYOUTS: dict[str, tuple[dict[str, Any], float]] = {
    "dp": ({}, 4),
    "dp, lars, amp": ({"lars": True, "amp": True, **CLIP}, 4),
    "dp, pure amp": ({"amp": True, "amp_configs": {"use_pure_fp16": True}}, 4),
    "dp, communicators": ({"nccl_comm_num": 2}, 4),
    "localsgd": ({"localsgd": True}, 4),
    "stage 1": (shard(1), 2),
    "stage 2": (shard(2), 2),
    "stage 3": (shard(3), 2),
    "stage 3, lars, amp, recompute": ({**shard(3), "lars": True, "amp": True, **REPLAY}, 2),
    "stage 1, merge, clip": ({**shard(1), **MERGE, **CLIP}, 2),
    "tp": (TP, 3),
    "tp, lamb, amp, recompute": ({**TP, "lamb": True, "amp": True, **REPLAY}, 3),
    "pp": (PP, 2),
    "pp, amp, clip": ({**PP, "amp": True, **CLIP}, 2),
}
"""Settings -> how many layers' weights a rank of two holds, of four."""
STATES = {"lars": 1, "lamb": 2}
"""How often a rule keeps numbers like the parameters."""


def stack() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False, device=roles.device()) for _ in range(4)]
    return nn.Sequential(*layers)


def made(model: nn.Module, settings: dict[str, Any]) -> Optimizer:
    if "lamb" in settings:
        return torch.optim.Adam(model.parameters(), lr=0.01)
    return torch.optim.SGD(model.parameters(), lr=0.1)


def step(model: Any) -> None:
    inputs = torch.ones(4, WIDTH, device=roles.device())
    model.train_batch((inputs, inputs))


PLAIN = (Tensor, nn.Parameter)
"""What holds numbers itself; a spread tensor holds one of these."""


def live_layers() -> float:
    """The size of all tensors that Python can reach and that are no older than this test."""
    gc.collect()
    found = [x for x in gc.get_objects() if type(x) in PLAIN and not x.is_meta]
    storages = {x.untyped_storage()._cdata: x.untyped_storage() for x in found}
    return sum(storage.nbytes() for storage in storages.values()) / SQUARE


def _in_the_end(measure: Callable[[], float]) -> float:
    """What is left when the threads of gloo have let go of what they exchanged last."""
    deadline = time.monotonic() + stretched(10)
    while (left := measure()) > 0.1 and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@dataclass
class Held:
    """What a rank holds of a model, in layers."""

    originals: int
    laid_out: float
    trained: float
    afterwards: float


def held(layout: str) -> Held:
    """Lay the model out and train it, as a script that makes its optimizer first."""
    settings, _ = LAYOUTS[layout]
    roles.stop()
    start(**settings)
    model = stack()
    originals = [weakref.ref(parameter) for parameter in model.parameters()]
    given = made(model, settings)
    model = fleet.distributed_model(model, criterion=F.mse_loss)
    fleet.distributed_optimizer(given)
    laid_out = live_layers()
    alive = sum(reference() is not None for reference in originals)
    for _ in range(2):
        step(model)
    trained = live_layers()
    del model, given
    return Held(alive, laid_out, trained, _in_the_end(live_layers))


def all_held(layouts: Sequence[str] = tuple(LAYOUTS)) -> dict[str, Held]:
    gc.collect()
    gc.freeze()  # what is older is neither looked at nor searched for garbage
    try:
        return {layout: held(layout) for layout in layouts}
    finally:
        gc.unfreeze()


def test_a_rank_holds_its_share_alone() -> None:
    for found in world(2, timeout=600).run(all_held):
        for layout, (settings, layers) in LAYOUTS.items():
            rank = found[layout]
            kept = {"dp": 4, "localsgd": 4, "pp": 2}.get(layout.partition(",")[0], 0)
            assert rank.originals == kept, layout
            assert rank.laid_out < layers + 0.1, layout
            moments = sum(STATES.get(name, 0) for name in settings)
            # Parameters, their moments, and where DDP keeps room for gradients.
            assert rank.trained < layers * (2 + moments) + 0.1, layout
            assert rank.afterwards < 0.1, layout


@world(2)
@pytest.mark.parametrize("settings", [{"dgc": True}, {"fp16_allreduce": True}], ids=str)
def test_a_model_whose_gradients_are_encoded_is_freed(settings: dict[str, Any]) -> None:
    """DDP holds what encodes them where Python finds no cycles."""
    start(**settings)
    model = fleet.distributed_model(stack(), criterion=F.mse_loss)
    rule = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    fleet.distributed_optimizer(rule)
    step(model)
    gone = weakref.ref(model)
    del model, rule
    gc.collect()
    assert gone() is None


FREES: dict[str, dict[str, Any]] = {
    "dp": {},
    "amp": {"amp": True, "amp_configs": {"dtype": "bfloat16"}},
    "compile": {"compile": True, "compile_configs": {"backend": "aot_eager"}},
    "pp of one": {"pipeline": True, "pipeline_configs": {"accumulate_steps": 2}},
}


@world(1)
@pytest.mark.parametrize("name", FREES)
def test_outputs_are_gone_when_the_model_has_its_backward(name: str) -> None:
    """Scores of many words are most of a step's memory."""
    start(**FREES[name])
    model, made = stack(), list[Any]()
    alive: list[bool] = []
    ours: Any = fleet.distributed_model(model, criterion=lambda out, _: (out * 2).mean())
    fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    ours.register_forward_hook(lambda *given: made.append(weakref.ref(given[-1])))
    first: Any = next(iter(model.parameters()))
    first.register_post_accumulate_grad_hook(lambda _: alive.append(made[-1]() is not None))
    for _ in range(2):
        ours.train_batch((torch.ones(4, WIDTH), torch.zeros(4)))
    assert len(made) == len(alive) > 1
    assert not any(alive)


MEMORY = """
import gc
import sys
import time
import torch
from torch.nn import functional as F
import fleetx as fleet
from tests.engine.test_freed import LAYOUTS, SQUARE, WIDTH, made, stack, step
from tests.strategies.paddle import start

start(**LAYOUTS[sys.argv[1]][0])
# Room that libraries keep for products, one for each thread: this one and that of backward.
factor = torch.ones(WIDTH, WIDTH, device="cuda", requires_grad=True)
(torch.ones(4, WIDTH, device="cuda") @ factor).sum().backward()
del factor
before = torch.cuda.memory_allocated()
model = stack()
given = made(model, LAYOUTS[sys.argv[1]][0])
model = fleet.distributed_model(model, criterion=F.mse_loss)
fleet.distributed_optimizer(given)
gc.collect()
print("LAYERS", fleet.worker_index(), (torch.cuda.memory_allocated() - before) / SQUARE)
step(model)
del model, given
gc.collect()
print("LEFT", (torch.cuda.memory_allocated() - before) / SQUARE)
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("layout", ["dp", "stage 3", "stage 3, lars, amp, recompute", "tp", "pp"])
def test_a_card_holds_its_share_alone(layout: str, tmp_path: Path) -> None:
    workers = min(2, torch.cuda.device_count())
    if workers == 1 and layout in {"tp", "pp"}:
        pytest.skip("needs two GPUs")
    script = tmp_path / "memory.py"
    script.write_text(MEMORY)
    launcher = [sys.executable, "-m", "fleetx.launch", "--nproc_per_node", str(workers)]
    command = [*launcher, str(script), layout]
    paths = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        command, env=os.environ | paths, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    share = LAYOUTS[layout][1] if workers == 2 else 4
    found = re.findall(r"(LAYERS \d|LEFT) (-?[\d.]+)", done.stdout)
    assert len(found) >= 2
    for what, layers in found:
        assert float(layers) < (share if what != "LEFT" else 0) + 0.3, done.stdout
