"""A small language model that trains on any layout of workers: the layout is one line of options.

    python train.py                                                # one process
    fleetrun --nproc_per_node 2 train.py --sharding 2              # parameters on two workers
    fleetrun --nproc_per_node 4 train.py --pp 2 --mp 2             # two stages, layers cut in two
    fleetrun --nproc_per_node 8 train.py --pp 2 --sharding 2 --mp 2 --amp --recompute

With --output it leaves a checkpoint every --save_steps updates, and every --checkpoint_seconds of
fleetrun. After a worker or a machine was killed it goes on by itself, on fewer or more machines,
and an update sees the same samples as before; with --resume a new job goes on, on any layout:

    fleetrun --nproc_per_node 2 --max_restart 3 train.py --sharding 2 --output out
    fleetrun --nproc_per_node 4 train.py --pp 2 --mp 2 --output out --resume

The text is generated: each sentence counts upwards from a random word in a random stride, so the
loss of a model that understood it goes to about 0.6 (the first two words cannot be known).
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import fleetx as fleet

WORDS, LENGTH = 64, 16


class Attention(nn.Module):
    """Causal self-attention with one linear layer for each of its four roles."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(width, width) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Mix positions."""
        batch, length, width = x.shape
        q, k, v = (
            layer(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and a multi-layer perceptron, each with a norm before and a shortcut around it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    """Nothing in here knows that it may be spread over workers."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.place = nn.Parameter(torch.randn(LENGTH, width) * 0.02)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next word at each position."""
        x = self.embed(tokens) * 0.1 + self.place[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy over all positions."""
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def sentences(count: int, seed: int = 0) -> TensorDataset:
    """Words that count upwards from a random start in a random stride."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(0, WORDS, (count, 1), generator=generator)
    stride = torch.randint(1, 5, (count, 1), generator=generator)
    words = (start + stride * torch.arange(LENGTH + 1)) % WORDS
    return TensorDataset(words[:, :-1], words[:, 1:])


def strategy(args: argparse.Namespace) -> fleet.DistributedStrategy:
    """The layout and the extras that were asked for."""
    chosen = fleet.DistributedStrategy()
    chosen.hybrid_configs = {"pp_degree": args.pp, "mp_degree": args.mp}
    chosen.pipeline, chosen.tensor_parallel = args.pp > 1, args.mp > 1
    chosen.pipeline_configs = {"accumulate_steps": 4}
    chosen.tensor_parallel_configs = {"plan": "transformer"}
    chosen.sharding = args.sharding > 1
    chosen.sharding_configs = {"sharding_degree": args.sharding, "stage": args.stage}
    chosen.amp = args.amp
    chosen.amp_configs = {"dtype": "bfloat16"}
    chosen.recompute = args.recompute
    chosen.recompute_configs = {"checkpoints": ["layers.*"]}
    return chosen


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pp", type=int, default=1, help="stages of the pipeline")
    parser.add_argument("--mp", type=int, default=1, help="ranks that share each layer")
    parser.add_argument("--sharding", type=int, default=1, help="ranks that share parameters")
    parser.add_argument("--stage", type=int, default=3, help="what is sharded (ZeRO 1, 2 or 3)")
    parser.add_argument("--amp", action="store_true", help="compute in bfloat16")
    parser.add_argument("--recompute", action="store_true", help="keep no activations of layers")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--sentences", type=int, default=4096, help="to learn from")
    parser.add_argument("--batch", type=int, default=32, help="samples per data rank")
    parser.add_argument("--output", help="where to leave checkpoints")
    parser.add_argument("--save_steps", type=int, default=50, help="updates between two of them")
    parser.add_argument("--shares", type=int, help="data ranks that --batch is meant for")
    parser.add_argument("--resume", action="store_true", help="go on from the latest of them")
    parser.add_argument("--losses", type=Path, help="where to write the loss of every update")
    parser.add_argument("--save", help="where to write the weights at the end")
    return parser.parse_args()


class Losses:
    """The mean loss of every update, over its batches and all workers, in a file if one is wanted.

    After a restart, updates that were made before are written again.
    """

    def __init__(self, path: Path | None) -> None:
        self.path, self.seen = path, list[float]()

    def add(self, loss: Tensor, update: int, *, ended: bool) -> None:
        """One more batch, which may be the last of an update."""
        if self.path is None:
            return
        self.seen.append(float(loss))
        if ended:
            mean = fleet.util.all_reduce(sum(self.seen) / len(self.seen)) / fleet.worker_num()
            self.seen.clear()
            if fleet.is_first_worker():
                with self.path.open("a") as file:
                    file.write(f"{update} {float(mean):.7f}\n")


def train(args: argparse.Namespace, model: Any, optimizer: Any, loader: Any, manager: Any) -> None:
    """All epochs, or what is left of them; the loader knows its epoch, and its place in it."""
    if manager and (found := manager.load(model, optimizer, parts={"loader": loader})):
        fleet.util.print_on_rank(f"resumed from update {found['step']}", 0)
    losses, updates = Losses(args.losses), manager.updates if manager else 0
    while loader.epoch < args.epochs:
        steps = tqdm(loader, desc=f"epoch {loader.epoch}", disable=not fleet.is_first_worker())
        for batch in steps:
            found = model.train_batch(batch, optimizer)
            steps.set_postfix(loss=f"{float(found):.3f}")
            ended = not manager or manager.updates > updates
            updates = manager.updates if manager else updates + 1
            losses.add(found, updates, ended=ended)
            if manager:
                manager.step()  # saves if it is time, while training goes on


def main() -> None:
    """Train, evaluate, save."""
    args = parse()
    chosen = strategy(args)
    fleet.init(is_collective=True, strategy=chosen)
    if fleet.is_first_worker():
        print(chosen.explain(LanguageModel(), workers=fleet.worker_num()))
    manager = None
    if args.output:  # before the model: on another number of workers, batches change
        options = {"steps": args.save_steps, "resume": args.resume, "shares": args.shares}
        manager = fleet.CheckpointManager(args.output, **options)
    torch.manual_seed(0)
    data = sentences(args.sentences)
    model: Any = fleet.distributed_model(LanguageModel(), criterion=loss, sample=data[:8][0])
    optimizer = fleet.distributed_optimizer(torch.optim.AdamW(model.parameters(), lr=3e-3))
    loader = fleet.distributed_loader(
        DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True)
    )
    train(args, model, optimizer, loader, manager)
    score = model.eval_batch(sentences(256, seed=1)[:])
    state = fleet.full_state_dict(model)  # every worker takes part, worker 0 gets it
    if fleet.is_first_worker():
        print(f"loss on new sentences: {float(score):.3f}")
        if args.save:
            torch.save(state, args.save)
            print(f"weights of the plain model: {args.save}")


if __name__ == "__main__":
    main()
