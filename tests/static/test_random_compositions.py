"""Random compositions of torch functions: a program computes bitwise what eager code computes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from fleetx import static

Op = Callable[[Tensor], Tensor]

WIDTH = 6


def _written(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = y[:, 1] * 2
    y[:, 2:4] += 1
    return y


def _held(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().max()
    return x / (scale + 1)


def _low(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ torch.ones(WIDTH, WIDTH)
    return y.float() + x


# Each takes and gives [batch, WIDTH].
SHAPE_KEEPING: dict[str, Op] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "method": lambda x: x.tanh().mul(2),
    "operators": lambda x: (x * 2 - 1) / 3 + x**2,
    "reflected": lambda x: 1 - x + 2 * x,
    "softmax": lambda x: F.softmax(x, dim=-1),
    "sort": lambda x: x.sort(dim=1).values,
    "max": lambda x: x - x.max(dim=1, keepdim=True).values,
    "cat": lambda x: torch.cat([x[:, :2], x[:, 2:]], dim=1),
    "chunk": lambda x: torch.stack(x.chunk(2, dim=1), 1).flatten(1),
    "split": lambda x: torch.cat(list(reversed(x.split([1, 5], 1))), 1),
    "view": lambda x: x.view(x.shape[0], 2, 3).transpose(1, 2).reshape(x.size(0), -1),
    "transposed": lambda x: (x.T @ x / x.shape[0]).sum(0) + x,
    "size": lambda x: x / x.shape[0] + x.numel() * 1e-3,
    "where": lambda x: torch.where(x > 0, x, x.exp()),
    "einsum": lambda x: torch.einsum("bi,bj->bij", x, x).mean(2),
    "pad": lambda x: F.pad(x, (1, 1))[:, 1:-1],
    "index": lambda x: x[:, [5, 4, 3, 2, 1, 0]],
    "mask": lambda x: x.masked_fill(x < 0, 0.5),
    "in place": lambda x: (x * 1).add_(1).mul_(0.5),
    "written": _written,
    "no_grad": _held,
    "autocast": _low,
    "cumsum": lambda x: x.cumsum(1),
    "roll": lambda x: x.roll(1, 0),
    "dropout": lambda x: F.dropout(x, 0.3),
    "random": lambda x: x + torch.rand_like(x),
    "norm": lambda x: x / (x.norm(dim=1, keepdim=True) + 1),
    "unbound": lambda x: torch.stack([c * 2 for c in x.unbind(1)], 1),
    "expanded": lambda x: x + x.mean(0).expand(x.shape[0], -1),
    "detached": lambda x: x + x.detach(),
}
MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "sequence": lambda: nn.Sequential(nn.Linear(WIDTH, 4), nn.ReLU(), nn.Linear(4, WIDTH)),
    "dropout module": lambda: nn.Dropout(0.2),
    "inplace module": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
}


class Composition(nn.Module):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names
        self.parts = nn.ModuleDict(
            {str(at): MODULES[name]() for at, name in enumerate(names) if name in MODULES}
        )
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        for at, name in enumerate(self.names):
            x = self.parts[str(at)](x) if name in MODULES else SHAPE_KEEPING[name](x)
        return x.square().mean()


def eager(model: nn.Module, batches: list[np.ndarray]) -> tuple[list[Any], dict[str, Any]]:
    losses = []
    torch.manual_seed(1)
    for batch in batches:
        loss = model(torch.from_numpy(batch))
        model.zero_grad()
        loss.backward()
        losses.append(loss.detach().numpy())
    return losses, {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}


def recorded(model: nn.Module, batches: list[np.ndarray]) -> tuple[list[Any], dict[str, Any]]:
    main = static.Program()
    with static.program_guard(main, static.Program()):
        loss = model(static.data("x", [None, WIDTH]))
        static.Optimizer(torch.optim.SGD, lr=0.0).minimize(loss)
    assert main.objective is not None
    names = list(main.objective.trained)
    exe = static.Executor()
    losses = []
    torch.manual_seed(1)
    for batch in batches:
        loss_value, *found = exe.run(
            main, {"x": batch}, [loss, *(f"{name}@GRAD" for name in names)]
        )
        losses.append(loss_value)
    return losses, {n.partition(".")[2]: g for n, g in zip(names, found, strict=True)}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([*SHAPE_KEEPING, *MODULES]), min_size=1, max_size=6))
def test_programs_compute_what_eager_code_computes(names: list[str]) -> None:
    compare(names)


def compare(names: list[str]) -> None:
    rng = np.random.default_rng(0)
    batches = [rng.standard_normal((size, WIDTH), dtype=np.float32) for size in (5, 3)]
    torch.manual_seed(0)
    model = Composition(names)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    losses, gradients = eager(model, batches)
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    model.load_state_dict(start)
    model.zero_grad()
    ours, our_gradients = recorded(model, batches)
    assert [x.tobytes() for x in ours] == [x.tobytes() for x in losses]
    assert our_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert np.array_equal(our_gradients[name], gradient), name
    for name, value in model.named_buffers():
        assert torch.equal(value, buffers[name]), name


def test_every_operation_by_itself() -> None:
    for name in [*SHAPE_KEEPING, *MODULES]:
        try:
            compare([name])
        except Exception as error:
            raise AssertionError(name) from error
