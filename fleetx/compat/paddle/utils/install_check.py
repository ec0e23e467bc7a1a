"""``paddle.utils.run_check``."""

import torch


def run_check() -> None:
    """Compute something, and say where."""
    found = torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum()
    found.backward()
    kind = f"{torch.cuda.device_count()} GPUs" if torch.cuda.is_available() else "the CPU"
    print(f"fleetx runs Paddle's scripts on PyTorch {torch.__version__}, on {kind}.")  # noqa: T201
