"""A user's script: a causal language model of transformers on batches that are dicts."""

import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import fleetx as fleet
from tests.libraries import transformers

LOST = "--lost" in sys.argv
"""Whether fleet never gets the optimizer, as when the line is forgotten."""


class Sentences(Dataset[dict[str, Any]]):
    """Numbers that follow each other."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": [(index + at) % 32 for at in range(8 - index % 3)]}


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    longest = max(len(sample["input_ids"]) for sample in samples)
    ids = torch.zeros(len(samples), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sample in enumerate(samples):
        ids[row, : len(sample["input_ids"])] = torch.tensor(sample["input_ids"])
        mask[row, : len(sample["input_ids"])] = 1
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": ids.masked_fill(mask == 0, -100),
    }


def build() -> Any:
    transformers.set_seed(42)
    config = transformers.GPT2Config(
        vocab_size=30, n_positions=8, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    model.config.use_cache = False
    model.resize_token_embeddings(32, mean_resizing=False)
    model.gradient_checkpointing_enable()
    return model


def groups(model: Any) -> list[dict[str, Any]]:
    spared = ("bias", "ln_1.weight", "ln_2.weight", "ln_f.weight")
    named = list(model.named_parameters())
    return [
        {"params": [p for n, p in named if not n.endswith(spared)], "weight_decay": 0.1},
        {"params": [p for n, p in named if n.endswith(spared)], "weight_decay": 0.0},
    ]


def main() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.gradient_merge = True
    strategy.gradient_merge_configs = {"k_steps": 2}
    fleet.init(is_collective=True, strategy=strategy)
    model = build()
    optimizer: Any = torch.optim.AdamW(groups(model), lr=5e-3, betas=(0.9, 0.95))
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, 2, 32)
    if not LOST:
        optimizer = fleet.distributed_optimizer(optimizer)
    model = fleet.distributed_model(model)
    model.train()
    order = torch.Generator().manual_seed(1)
    loader = DataLoader(Sentences(), 4, shuffle=True, generator=order, collate_fn=collate)
    for epoch in range(2):
        for at, batch in enumerate(fleet.distributed_loader(loader)):
            outputs = model(**batch)
            if LOST:
                outputs.loss.backward()
            else:
                optimizer.backward(outputs.loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if fleet.is_first_worker():
                print(f"epoch {epoch}, batch {at}: {outputs.loss.item():.3f}")


if __name__ == "__main__":
    main()
