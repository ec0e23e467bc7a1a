"""``torch.func`` with variables: other weights than a module's own, or a sentence."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call  # as scripts do: the name is bound before anything records

from fleetx import static
from fleetx.static import ProgramError

ROWS = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


def run(*fetches: Any) -> list[np.ndarray]:
    exe = static.Executor(static.CPUPlace())
    exe.run(static.default_startup_program())
    return exe.run(feed={"x": ROWS}, fetch_list=list(fetches))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        first = nn.Linear(4, 4)
        self.body = nn.Sequential(first, nn.BatchNorm1d(4), nn.Dropout(0.0))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 4)
        self.head.weight = first.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x).unsqueeze(1)
        return self.head(self.attention(x, x, x)[0].squeeze(1))


@pytest.mark.parametrize("called_before", [False, True])
def test_the_weights_that_were_given_are_used(called_before: bool) -> None:
    torch.manual_seed(0)
    model = Net()
    average = {name: value.detach() + 1.0 for name, value in model.named_parameters()}
    average |= {name: value.clone() for name, value in model.named_buffers()}
    x = static.data("x", [None, 4])
    own = model(x) if called_before else None
    given = functional_call(model, average, (x,))
    own = model(x) if own is None else own
    test = static.default_main_program().clone(for_test=True)
    ours, theirs = run(given, own), [functional_call(model, average, (ROWS,)), model(ROWS)]
    assert not torch.equal(*theirs)
    for array, tensor in zip(ours, theirs, strict=True):
        assert np.array_equal(array, tensor.detach().numpy())
    tested = static.Executor(static.CPUPlace()).run(test, {"x": ROWS}, [given])[0]
    assert np.array_equal(tested, functional_call(model.eval(), average, (ROWS,)).detach().numpy())


def test_weights_that_are_computed_are_trained_through() -> None:
    torch.manual_seed(0)
    layer, maker = nn.Linear(4, 2, bias=False), nn.Linear(4, 8)

    def loss(x: Tensor) -> Tensor:
        weight = maker(x).mean(0).reshape(2, 4)
        return functional_call(layer, {"weight": weight}, (x,)).square().mean()

    cost = loss(static.data("x", [None, 4]))
    pairs = static.append_backward(cost)
    assert [parameter.name for parameter, _ in pairs] == ["linear_0.weight", "linear_0.bias"]
    ours = run(cost, *(gradient for _, gradient in pairs))
    eager = loss(ROWS)
    theirs = [eager, *torch.autograd.grad(eager, [maker.weight, maker.bias])]
    for a, b in zip(ours, theirs, strict=True):
        assert np.array_equal(a, b.detach().numpy())


@pytest.mark.parametrize(
    "transformed",
    [
        torch.func.vmap(lambda row: row.sum()),
        torch.func.grad(lambda x: x.square().sum()),
        torch.func.jacrev(lambda x: x.square().sum(1)),
        lambda x: torch.func.jvp(torch.square, (x,), (x,)),
    ],
)
def test_what_goes_past_the_functions_of_torch_says_so(
    transformed: Callable[[Tensor], Any],
) -> None:
    x = static.data("x", [None, 4])
    with pytest.raises(ProgramError, match=r"test_functional_calls.py:\d+: .*torch\.func"):
        transformed(x)
