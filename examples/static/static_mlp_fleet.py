"""static_mlp.py for any number of workers: fleetrun --nproc_per_node 2 static_mlp_fleet.py."""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import fleetx as fleet
from fleetx import static


def gen_data(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Points, and on which side of a plane they lie."""
    x = rng.random((128, 32), dtype=np.float32)
    return {"x": x, "y": (x.sum(1, keepdims=True) > 16).astype("int64")}


def mlp(input_x: Tensor, input_y: Tensor, hid_dim: int = 128, label_dim: int = 2) -> Tensor:
    """Two hidden layers and the loss."""
    fc_1 = static.nn.fc(input_x, hid_dim, activation="tanh")
    fc_1.name = "hidden"  # recompute cuts here
    fc_2 = static.nn.fc(fc_1, hid_dim, activation="tanh")
    prediction = static.nn.fc([fc_2], label_dim, activation="softmax")
    return static.nn.cross_entropy(prediction, input_y).mean()


def main() -> None:
    """Train for a hundred runs, then save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=None, help="where to save the weights")
    args = parser.parse_args()
    torch.manual_seed(0)
    input_x = static.data(name="x", shape=[None, 32], dtype="float32")
    input_y = static.data(name="y", shape=[None, 1], dtype="int64")
    cost = mlp(input_x, input_y)
    optimizer = static.Optimizer(torch.optim.Adam, lr=0.01)

    fleet.init(is_collective=True)
    strategy = fleet.DistributedStrategy()
    strategy.recompute = True
    strategy.recompute_configs = {"checkpoints": ["hidden"]}
    optimizer = fleet.distributed_optimizer(optimizer, strategy)
    optimizer.minimize(cost)

    exe = static.Executor()
    exe.run(fleet.startup_program)
    rng = np.random.default_rng(fleet.worker_index())
    for step in range(100):
        cost_val = exe.run(fleet.main_program, gen_data(rng), [cost])
        if step % 20 == 19:
            fleet.util.print_on_rank(f"step {step + 1}: cost {cost_val[0]:.3f}", 0)
    if args.output is not None and fleet.is_first_worker():
        fleet.save_persistables(exe, args.output)


if __name__ == "__main__":
    main()
