"""Word2vec with negative sampling, both tables on parameter servers.

fleetrun --server_num 1 --worker_num 2 examples/word2vec/train.py

The text is made up: words belong to topics, and sentences stay within one. So we know what the
vectors should say: words of one topic are neighbours.
"""

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, normalize

import fleetx as fleet
from fleetx.nn import SparseEmbedding, Uniform

TOPICS, WORDS = 10, 30
"""Topics, and words of each."""


class SkipGram(nn.Module):
    """A vector for each word as a centre, and one as a neighbour."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.centre = SparseEmbedding(dim, name="centre", initializer=Uniform(-0.1, 0.1))
        self.around = SparseEmbedding(dim, name="around", initializer=Uniform(-0.1, 0.1), seed=1)

    def forward(self, centre: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """The loss: near words shall score high and others low."""
        middle = self.centre(centre)[:, None]
        near_scores = (middle * self.around(near)[:, None]).sum(-1)
        far_scores = (middle * self.around(far)).sum(-1)
        return -(logsigmoid(near_scores).mean() + logsigmoid(-far_scores).mean())


def word(topic: Tensor, number: Tensor) -> Tensor:
    """The id of a word: a number far away from zero, as hashes of words are."""
    return (topic * WORDS + number) * 1_000_003 - 2**40


def batches(seed: int, count: int, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Centres, neighbours, and words from anywhere."""
    chance = torch.Generator().manual_seed(seed)

    def draw(high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=chance)

    for _ in range(count):
        topic = draw(TOPICS, size)
        far = word(draw(TOPICS, size, 5), draw(WORDS, size, 5))
        yield word(topic, draw(WORDS, size)), word(topic, draw(WORDS, size)), far


@torch.no_grad()
def neighbours(model: SkipGram) -> float:
    """How often the nearest word is of the same topic."""
    model.eval()
    everything = torch.arange(TOPICS * WORDS)
    vectors = normalize(model.centre(word(everything // WORDS, everything % WORDS)), dim=1)
    nearest = (vectors @ vectors.T).fill_diagonal_(-1).argmax(1).cpu()
    model.train()
    return (nearest // WORDS == everything // WORDS).float().mean().item()


def main() -> None:
    """Train, and look at the neighbours."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--batch_size", type=int, default=256)
    given = parser.parse_args()
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    strategy.a_sync_configs = {"k_steps": 0}
    fleet.init(strategy=strategy)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    model = fleet.distributed_model(SkipGram())
    optimizer = fleet.distributed_optimizer(torch.optim.Adagrad(model.parameters(), lr=0.2))
    fleet.init_worker()
    for number, batch in enumerate(batches(fleet.worker_index(), given.batches, given.batch_size)):
        loss = model(*batch)
        optimizer.minimize(loss)
        if fleet.is_first_worker() and (number + 1) % 100 == 0:
            print(f"batch {number + 1}: loss {loss:.3f}", flush=True)
    fleet.settle_workers()
    if fleet.is_first_worker():
        print(f"same topic: {neighbours(model):.1%}", flush=True)
    fleet.stop_worker()


if __name__ == "__main__":
    main()
