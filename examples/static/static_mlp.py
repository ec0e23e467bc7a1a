"""The single-card script of a static program: build it once, then run it with numpy arrays."""

import numpy as np
import torch
from torch import Tensor

from fleetx import static


def gen_data(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Points, and on which side of a plane they lie."""
    x = rng.random((128, 32), dtype=np.float32)
    return {"x": x, "y": (x.sum(1, keepdims=True) > 16).astype("int64")}


def mlp(input_x: Tensor, input_y: Tensor, hid_dim: int = 128, label_dim: int = 2) -> Tensor:
    """Two hidden layers and the loss."""
    fc_1 = static.nn.fc(input_x, hid_dim, activation="tanh")
    fc_2 = static.nn.fc(fc_1, hid_dim, activation="tanh")
    prediction = static.nn.fc([fc_2], label_dim, activation="softmax")
    return static.nn.cross_entropy(prediction, input_y).mean()


def main() -> None:
    """Train for a hundred runs."""
    torch.manual_seed(0)
    input_x = static.data(name="x", shape=[None, 32], dtype="float32")
    input_y = static.data(name="y", shape=[None, 1], dtype="int64")
    cost = mlp(input_x, input_y)
    optimizer = static.Optimizer(torch.optim.Adam, lr=0.01)
    optimizer.minimize(cost)

    exe = static.Executor(static.CPUPlace())
    exe.run(static.default_startup_program())
    rng = np.random.default_rng(0)
    for step in range(100):
        cost_val = exe.run(static.default_main_program(), gen_data(rng), [cost])
        if step % 20 == 19:
            print(f"step {step + 1}: cost {cost_val[0]:.3f}")


if __name__ == "__main__":
    main()
