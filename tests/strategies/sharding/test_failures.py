"""Which weights a forward was reading when it failed."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fleetx.strategies.sharding.failures import weights_read


class Tied(nn.Module):
    """Reads the weights of a submodule that it does not call there."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.p = nn.Embedding(6, 4), nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.pow(2), self.table.weight)


def failure(model: nn.Module, *inputs: object) -> str:
    with pytest.raises((RuntimeError, TypeError)) as raised:
        model(*inputs)
    return weights_read(model, raised.value)


def test_the_line_that_failed_names_the_weights() -> None:
    line = "Tied.forward: return F.linear(x.pow(2), self.table.weight)"
    assert failure(Tied(), torch.ones(3)) == f"'table.weight' in {line}"
    nested = nn.Sequential(nn.Identity(), Tied())
    assert failure(nested, torch.ones(3)) == f"'1.table.weight' in {line}"


def test_what_no_line_names_stays_open() -> None:
    found = failure(nn.Sequential(nn.Linear(2, 2)), torch.ones(3))
    assert found.startswith("of a submodule in Linear.forward: ")
    assert weights_read(nn.Linear(2, 2), ValueError()) == "of a submodule"
