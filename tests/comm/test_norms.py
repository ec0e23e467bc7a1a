"""Norms of tensors of which some lie on several ranks."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

import fleetx as fleet
from fleetx.comm.local import local
from fleetx.comm.norms import norms
from fleetx.testing import world


class WithoutPlacesOfTheHost(TorchDispatchMode):
    """Refuses places that are brought to the device, for which the host waits on a card."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func._schema.name not in {"aten::index", "aten::index_put_", "aten::lift_fresh"}
        return func(*args, **kwargs or {})


def of_mixed() -> tuple[list[float], list[float]]:
    """Norms of tensors of which every second one is cut, and those of the whole tensors."""
    fleet.init(is_collective=True)
    mesh = init_device_mesh("cpu", (2,))
    generator = torch.Generator().manual_seed(0)
    whole = [torch.randn(4 + 2 * n, 3, generator=generator) for n in range(5)]
    ways = [[Shard(0)] if n % 2 else [Replicate()] for n in range(5)]
    spread = [distribute_tensor(t, mesh, way) for t, way in zip(whole, ways, strict=True)]
    parts: list[Tensor] = [local(one) for one in spread]
    with WithoutPlacesOfTheHost():
        found = norms(parts, spread)
    return found.tolist(), [float(t.norm()) for t in whole]


def test_some_of_the_tensors_are_cut() -> None:
    for found, expected in world(2).run(of_mixed):
        assert found == pytest.approx(expected, rel=1e-6)
