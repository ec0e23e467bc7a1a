"""Trains models whose layers are cut over two workers, captured and as usual; says what came of it.

A script for workers that NCCL joins on one card, as in `captured_on_workers.py`. Without a GPU, the
functions run with a stand-in for CUDA's recorder.
"""

import faulthandler
import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import fleetx as fleet
from fleetx.api import session
from tests.libraries import transformers

Settings = dict[str, Any]
WARMUP, BATCHES = 3, 8
AMP: Settings = {"amp": True, "amp_configs": {"init_loss_scaling": 1024.0}}
CLIP: Settings = {"clip": True, "clip_configs": {"limit": 0.3}}
MERGE: Settings = {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 2}}
SEQUENCE: Settings = {"sequence": ["*.layers.*layer_norm", "*.final_layer_norm"]}
RECOMPUTE: Settings = {"recompute": True, "recompute_configs": {"checkpoints": ["model.layers.*"]}}
SHARDING: Settings = {
    "sharding": True,
    "sharding_configs": {"sharding_degree": 2, "stage": 3, "segment_broadcast_MB": 1e-3},
}
COMPANY: dict[str, Settings] = {
    "llama": {},
    "llama, recompute": RECOMPUTE,
    "llama, dropout": {},
    "opt": {},
    "opt, sequence": {"tensor_parallel_configs": SEQUENCE},
    "opt, amp": AMP,
    "opt, clip": CLIP,
    "opt, gradient_merge": MERGE,
    "opt, lamb": {"lamb": True},
    "opt, all": AMP | CLIP | MERGE,
}
"""Begins with the model that it trains."""
OF_FOUR: dict[str, Settings] = {
    "llama, data parallel": {},
    "llama, dropout, sharding": SHARDING,
    "opt, data parallel": {},
    "opt, data parallel, fp16_allreduce, merged": {"fp16_allreduce": True} | MERGE,
    "opt, sharding": SHARDING,
}
"""With two workers for each of two groups that cut the layers."""
COMPILED: dict[str, Settings] = {"llama, compile": {"compile": True}}
EVERY = COMPANY | OF_FOUR | COMPILED


def opt() -> nn.Module:
    """One that drops activations, positions and weights of its attention."""
    config = transformers.OPTConfig(
        vocab_size=64,
        hidden_size=32,
        word_embed_proj_dim=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=64,
        max_position_embeddings=32,
        dropout=0.2,
        attention_dropout=0.2,
        use_cache=False,
        attn_implementation="eager",  # which draws the same, captured or not
    )
    model: nn.Module = transformers.OPTForCausalLM(config)
    return model


def drops(name: str) -> bool:
    """Whether its model drops anything."""
    return not name.startswith("llama") or "dropout" in name


def llama(*, dropout: bool = False) -> nn.Module:
    """One that drops weights of its attention or nothing."""
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        attention_dropout=0.2 if dropout else 0.0,
        use_cache=False,
        attn_implementation="eager" if dropout else None,
    )
    model: nn.Module = transformers.LlamaForCausalLM(config)
    return model


def criterion(outputs: Any, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.logits.flatten(0, 1).float(), targets.flatten())


def batches(place: int, count: int, *, masked: bool) -> list[tuple[dict[str, Tensor], Tensor]]:
    """The same for workers that share layers.

    Args:
        place: among the groups of such workers.
        count: of batches.
        masked: also says what attention sees: some releases of transformers make masks of eager
            attention from numbers of the host, which no graph can hold.
    """
    generator = torch.Generator().manual_seed(place)
    ids = [torch.randint(0, 64, (4, 9), generator=generator) for _ in range(count)]
    ahead = torch.full((8, 8), torch.finfo(torch.float32).min).triu(1).expand(4, 1, 8, 8)
    places = torch.arange(8).expand(4, 8)
    more = {"attention_mask": ahead.clone(), "position_ids": places.clone()} if masked else {}
    return [({"input_ids": i[:, :-1].contiguous(), **more}, i[:, 1:].contiguous()) for i in ids]


def strategy_of(settings: Settings, *, captured: bool) -> Any:
    strategy = fleet.DistributedStrategy()
    cut = {"tensor_parallel_degree": 2, "plan": "transformer"}
    given = {**settings, "tensor_parallel": True}
    given["tensor_parallel_configs"] = cut | settings.get("tensor_parallel_configs", {})
    for name, value in given.items():
        setattr(strategy, name, value)
    strategy.cuda_graph = captured
    if captured:
        strategy.cuda_graph_configs = {"warmup": WARMUP}
    return strategy


def trained(
    name: str,
    *,
    captured: bool,
    rate: float = 3e-3,
    count: int | None = None,
    prepared: Callable[[Any], None] | None = None,
) -> Settings:
    """Losses, weights, and what the strategy would keep, after training.

    Args:
        name: one of ``EVERY``.
        rate: 0 lets the losses of one batch differ by their masks alone.
        count: batches; the same one again and again where the rate is 0.
        prepared: is told of the engine, before it trains.
    """
    settings = EVERY[name]
    fleet.init(is_collective=True, strategy=strategy_of(settings, captured=captured))
    torch.manual_seed(0)
    model = llama(dropout=drops(name)) if name.startswith("llama") else opt()
    # What workers draw by themselves differs, and masks must be the same nevertheless.
    torch.manual_seed(100 + fleet.worker_index())
    ours: Any = fleet.distributed_model(model, criterion=criterion)
    optimizer: Any = fleet.distributed_optimizer(torch.optim.Adam(ours.parameters(), lr=rate))
    engine: Any = session.engines()[-1]
    if prepared is not None:
        prepared(engine)
    count = count or (2 * BATCHES if "gradient_merge" in settings else BATCHES)
    given = batches(fleet.worker_index() // 2, count, masked=drops(name))
    given = given if rate else given[:1] * count
    losses = [float(ours.train_batch(batch)) for batch in given]
    held = [getattr(t, "full_tensor", lambda t=t: t)() for t in ours.parameters()]
    everything = torch.cat([t.detach().double().flatten().cpu() for t in held])
    return {
        "losses": losses,
        "everything": everything.tolist(),
        "forwards": optimizer.state_dict()["strategies"]["tensor_parallel"]["forwards"],
        "graphs": len(graphs(engine)) if captured else 0,
    }


def graphs(engine: Any) -> list[Any]:
    """What was captured."""
    kinds = engine.step.drive.__self__.kinds.values()
    return [kind.captured for kind in kinds if kind.captured is not None]


def both(name: str) -> Settings:
    """Captured and as usual, and captured without a rate: what its masks alone make of a batch."""
    found: Settings = {}
    runs: dict[str, Settings] = {
        "captured": {"captured": True},
        "usual": {"captured": False},
        "still": {"captured": True, "rate": 0.0},
    }
    for kind, options in runs.items():
        try:
            found[kind] = trained(name, **options)
        except Exception:
            found["error"] = traceback.format_exc()
            break
        finally:
            gc.collect()  # of the model, whose strategy the next one does not have
    return found


def main(out: Path, names: list[str]) -> None:
    faulthandler.enable()
    rank = os.environ.get("RANK", "0")
    # Workers on hosts of their own, as far as NCCL knows: it refuses two of one host on one card.
    os.environ["NCCL_HOSTID"] = f"worker{rank}"
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    found: dict[str, Any] = {}
    for name in names:
        found[name] = both(name)
        Path(out, f"{rank}.json").write_text(json.dumps(found))
        print(name, found[name].get("error", "trained"), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
