"""Fine-tunes a model of the library transformers, from a folder, on any number of workers.

    python train.py                                                # one process
    fleetrun --nproc_per_node 2 --gpus none train.py               # two CPU workers
    fleetrun --gpus 0,1,2,3 train.py --model my-bert --amp         # your own model, four cards

The loop is one that you can read and change, and five lines of it are about many workers. If
--model is no folder yet, worker 0 makes a small BERT there, so that nothing is downloaded. The
task: does a sentence contain the word 7? What is learnt is left in --output, which
``AutoModelForSequenceClassification.from_pretrained`` reads.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
)

import fleetx as fleet

WORDS, LENGTH, WANTED = 64, 16, 7


def make(folder: Path) -> None:
    """A small model with random weights, as ``save_pretrained`` leaves them."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
    )
    BertForSequenceClassification(config).save_pretrained(folder)


def sentences(count: int, seed: int) -> TensorDataset:
    """Words, and whether the wanted one is among them: in every second sentence it is."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(WANTED + 1, WORDS, (count, LENGTH), generator=generator)
    labels = torch.arange(count) % 2
    places = torch.randint(0, LENGTH, (count,), generator=generator)
    words[torch.arange(count), places] = torch.where(labels == 1, WANTED, words[:, 0])
    return TensorDataset(words, labels)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("small-bert"), help="a folder")
    parser.add_argument("--output", type=Path, default=Path("fine-tuned"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16, help="samples per worker")
    parser.add_argument("--amp", action="store_true", help="compute in bfloat16")
    return parser.parse_args()


def accuracy(model: Any, loader: Any) -> float:
    """The share of right answers; all workers count, each sample once."""
    model.eval()
    right = total = 0
    with torch.no_grad():
        for words, labels in loader:
            found = model(input_ids=words).logits.argmax(dim=1)
            found, expected = fleet.gather_for_metrics(found, labels)
            right, total = right + int((found == expected).sum()), total + len(expected)
    return right / total


def main() -> None:
    """Train, evaluate, save."""
    args = parse()
    strategy = fleet.DistributedStrategy()
    strategy.amp = args.amp
    strategy.amp_configs = {"dtype": "bfloat16"}
    fleet.init(is_collective=True, strategy=strategy)
    with fleet.first_worker_first():
        if not args.model.exists():
            make(args.model)
    fleet.seed(1)
    model = AutoModelForSequenceClassification.from_pretrained(args.model)
    model = fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(torch.optim.AdamW(model.parameters(), lr=2e-3))
    training = DataLoader(sentences(1024, seed=0), batch_size=args.batch, shuffle=True)
    loader = fleet.distributed_loader(training)
    held_out = fleet.distributed_loader(DataLoader(sentences(256, seed=1), batch_size=args.batch))
    for epoch in range(args.epochs):
        model.train()
        for words, labels in loader:
            loss = model(input_ids=words, labels=labels).loss
            optimizer.minimize(loss)
        score = accuracy(model, held_out)
        fleet.util.print_on_rank(f"epoch {epoch}: loss {loss:.3f}, accuracy {score:.3f}", 0)
    fleet.save_weights(model, args.output)


if __name__ == "__main__":
    main()
