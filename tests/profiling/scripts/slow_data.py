"""A model that waits for its data: each batch takes far longer than the rest of the step.

``slow_data.py transformers`` trains a GPT-2 of that library, else a few layers of torch.
"""

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import fleetx as fleet

SLOW = 4
"""So many batches are waited for; those that only are traced need not be."""


class Slow(IterableDataset[Tensor]):
    """Sentences, for each of which one waits ten times as long as for all the rest of a step."""

    def __iter__(self) -> Iterator[Tensor]:
        never, given = threading.Event(), time.perf_counter()
        for number in range(100):
            rest = time.perf_counter() - given
            if number < SLOW:
                never.wait(max(1.0, 10 * rest))
            given = time.perf_counter()
            yield torch.arange(number, number + 8)


def gpt2() -> Any:
    """Nobody here wrote it."""
    from tests.libraries import transformers

    config = transformers.GPT2Config(
        n_layer=1, n_embd=16, n_head=2, vocab_size=128, n_positions=8, use_cache=False
    )
    return transformers.GPT2LMHeadModel(config)


fleet.init(is_collective=True)
is_gpt2 = sys.argv[1:] == ["transformers"]
model: Any = gpt2() if is_gpt2 else nn.Sequential(nn.Embedding(128, 16), nn.Linear(16, 1))
model = fleet.distributed_model(model)
optimizer = fleet.distributed_optimizer(torch.optim.AdamW(model.parameters()))
for tokens in DataLoader(Slow(), batch_size=1):
    loss = model(input_ids=tokens, labels=tokens).loss if is_gpt2 else model(tokens).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("the script came to its end")
