"""What scripts do with parameters that are spread over workers is what it is with whole ones."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import fleetx as fleet
from fleetx.spread.gathered_calls import everywhere
from fleetx.testing import world

CUTS: dict[str, dict[str, Any]] = {
    "sharding": {"sharding_degree": 2},
    "tensor_parallel": {"tensor_parallel_degree": 2, "column": ["0"], "row": ["2"]},
}
ROWS, COLUMNS = 32, 16
PLACES = torch.tensor([3, 20])
WIDE_PLACES = torch.tensor([[3] * COLUMNS, [20] * COLUMNS])
MASK = (torch.arange(ROWS * COLUMNS) % 3 == 0).reshape(ROWS, COLUMNS)
TWO_ROWS = torch.ones(2, COLUMNS)

READ: dict[str, Callable[[Tensor], Any]] = {
    "format": lambda p: f"{p.norm():.4f} {p.mean():.3e}",
    "numpy": lambda p: p.numpy(),
    "asarray": lambda p: np.asarray(p.cpu()),
    "tolist": lambda p: p.tolist(),
    "rows": lambda p: [row.norm().item() for row in p],
    "largest": lambda p: max(float(value) for value in p.flatten()[:40]),
    "contains": lambda p: 0.0 in p,
    "mask": lambda p: p[p > 0],
    "list": lambda p: p[[0, 20]],
    "places": lambda p: p[PLACES],
    "running sum": lambda p: p.cumsum(-2),
    "running product": lambda p: (1 + p).cumprod(-2),
    "largest yet": lambda p: p.cummax(-2)[0],
    "which is largest": lambda p: p.argmax(-2),
    "quantile": lambda p: p.quantile(0.5, dim=-2),
    "nonzero": lambda p: (p > 0).nonzero(),
    "unbind": lambda p: p.unbind(0)[20],
    "windows": lambda p: p.unfold(0, 2, 2),
    "gather": lambda p: p.gather(0, WIDE_PLACES),
    "index_select": lambda p: p.index_select(0, PLACES),
    "plus a plain one": lambda p: p + torch.ones(ROWS, COLUMNS),
    "a plain one plus it": lambda p: torch.ones(ROWS, COLUMNS) + p,
    "times a plain one": lambda p: p @ torch.ones(COLUMNS, 2),
    "close": lambda p: p.allclose(p + 1e-9),
    "any": lambda p: (p > 0.2).any(-2),
    "squared norm": lambda p: p.norm().pow_(2),
}
WRITE: dict[str, Callable[[Tensor], Any]] = {
    "pruned": lambda p: p.mul_(MASK),
    "noise": lambda p: p.add_(torch.linspace(0, 1, ROWS * COLUMNS).reshape(ROWS, COLUMNS)),
    "copied": lambda p: p.copy_(torch.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS)),
    "averaged": lambda p: p.lerp_(torch.ones(ROWS, COLUMNS), 0.3),
    "filled": lambda p: p.masked_fill_(MASK, 2.0),
    "rows copied": lambda p: p.index_copy_(0, PLACES, TWO_ROWS),
    "rows added": lambda p: p.index_add_(0, PLACES, TWO_ROWS),
    "scattered": lambda p: p.scatter_(0, WIDE_PLACES, TWO_ROWS),
    "scattered sums": lambda p: p.scatter_add_(0, WIDE_PLACES, TWO_ROWS),
    "renormed": lambda p: p.renorm_(2, 1, 0.1),
    "triangle": lambda p: p.tril_(),
    "diagonal": lambda p: p.fill_diagonal_(3.0),
    "unit columns": lambda p: p.div_(p.norm(dim=0, keepdim=True)),
}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(COLUMNS, ROWS), nn.Tanh(), nn.Linear(ROWS, 8))


def weight() -> Tensor:
    return next(iter(net().parameters())).data


def spread(flag: str) -> Any:
    strategy = fleet.DistributedStrategy()
    setattr(strategy, flag, True)
    setattr(strategy, f"{flag}_configs", CUTS[flag])
    fleet.init(is_collective=True, strategy=strategy)
    model = fleet.distributed_model(net())
    fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    return next(iter(model.parameters()))


def whole(found: Any) -> Any:
    found = found.full_tensor() if hasattr(found, "full_tensor") else found
    return found.tolist() if isinstance(found, Tensor | np.ndarray) else found


def answers(flag: str) -> dict[str, Any]:
    parameter = spread(flag)
    return {name: whole(call(parameter.data)) for name, call in READ.items()}


def changes(flag: str) -> dict[str, Any]:
    data, found = spread(flag).data, {}
    for name, call in WRITE.items():
        copied = data.clone()
        call(copied)
        found[name] = whole(copied)
    return found


@pytest.mark.parametrize("flag", CUTS)
def test_what_is_read_is_what_one_process_reads(flag: str) -> None:
    """torch has no answer for most, and another one for a sum along a cut dimension."""
    plain = weight()
    for found in world(2).run(answers, flag):
        for name, call in READ.items():
            wanted = whole(call(plain))
            if isinstance(wanted, str | bool):
                assert found[name] == wanted, name
            else:
                np.testing.assert_allclose(found[name], wanted, 1e-4, 1e-6, err_msg=name)


@pytest.mark.parametrize("flag", CUTS)
def test_what_is_written_is_what_one_process_writes(flag: str) -> None:
    plain = weight()
    for found in world(2).run(changes, flag):
        for name, call in WRITE.items():
            wanted = plain.clone()
            call(wanted)
            np.testing.assert_allclose(found[name], wanted, 1e-4, 1e-6, err_msg=name)


@world(2)
def test_what_was_brought_to_the_host_stays_there() -> None:
    """As of ``p.cpu()`` on a card, where torch would take it to the device of the mesh."""
    mesh, numbers = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), torch.arange(6.0)
    with patch.object(DeviceMesh, "device_type", "meta"):
        found = everywhere(numbers.reshape(2, 3).T, mesh)
    assert found.device.type == "cpu"
    torch.testing.assert_close(found.full_tensor(), numbers.reshape(2, 3).T)
    more: Any = found + 1
    torch.testing.assert_close(more.full_tensor(), numbers.reshape(2, 3).T + 1)
