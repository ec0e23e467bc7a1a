"""Options and hooks of modules belong to the calls that were recorded with them."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fleetx import static
from fleetx.static import ProgramError
from tests.static.training import assert_same_training, words

ROWS = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


def run(*fetches: Any) -> list[np.ndarray]:
    return static.Executor(static.CPUPlace()).run(feed={"x": ROWS}, fetch_list=list(fetches))


def test_an_option_that_changes_between_two_calls_is_recorded_with_each() -> None:
    softmax = nn.Softmax(dim=1)
    x = static.data("x", [None, 4])
    found = [softmax(x)]
    for dim in (0, 1):
        softmax.dim = dim
        found.append(softmax(x))
    softmax.dim = 0  # after the last call, so it is no part of the program
    ours = run(*found)
    for array, dim in zip(ours, (1, 0, 1), strict=True):
        assert np.array_equal(array, ROWS.softmax(dim).numpy())
    assert np.array_equal(run(found[1])[0], ours[1])
    assert softmax.dim == 0


class Schedule(nn.Module):
    """Changes what its layers do from one call to the next, as a script for eager code may."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(50, 8)
        self.drop, self.norm = nn.Dropout(0.1), nn.BatchNorm1d(8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
        self.out = nn.Linear(8, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.word(ids)
        for share, momentum in ((0.1, 0.5), (0.6, 0.1)):
            self.drop.p = self.attention.dropout = share
            self.norm.momentum = momentum
            x = x + self.drop(self.attention(x, x, x)[0])
            x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return self.out(x.mean(1))


def test_a_model_that_changes_its_layers_trains_as_in_eager_code() -> None:
    torch.manual_seed(0)
    assert_same_training(Schedule(), lambda m, x, y: F.cross_entropy(m(x), y), words(3))


def test_a_clone_for_tests_has_the_options_of_its_calls() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool = nn.AvgPool1d(2)

        def forward(self, x: Tensor) -> Tensor:
            self.pool.stride = (1,)
            small = self.pool(x.unsqueeze(1)).squeeze(1)
            self.pool.stride = (2,)
            found = self.pool(x.unsqueeze(1)).squeeze(1).sum(1) + small.sum(1)
            return found + torch.rand_like(found) if self.training else found

    model = Twice()
    out = model(static.data("x", [None, 4]))
    test = static.default_main_program().clone(for_test=True)
    (found,) = static.Executor(static.CPUPlace()).run(test, {"x": ROWS}, [out])
    assert np.array_equal(found, model.eval()(ROWS).numpy())


def test_hooks_around_a_layer_are_recorded_with_its_calls() -> None:
    layer, seen = nn.Linear(4, 4), []

    def before(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        return (args[0] * 2,)

    def after(module: nn.Module, args: tuple[Tensor], made: Tensor) -> Tensor:
        seen.append(made)
        module.last = made
        return made + 1

    x = static.data("x", [None, 4])
    plain = layer(x)
    handles = layer.register_forward_pre_hook(before), layer.register_forward_hook(after)
    hooked = layer(x)
    for handle in handles:
        handle.remove()
    again = layer(x)
    assert isinstance(seen[0], static.Variable)
    assert layer.last is seen[0]
    assert "forward" not in vars(layer)
    del layer.last
    total = seen[0].sum()
    ours = run(plain, hooked, again, seen[0], total)
    with torch.no_grad():
        inside = layer(ROWS * 2)
        theirs = [layer(ROWS), inside + 1, layer(ROWS), inside, inside.sum()]
    assert len(seen) == 1  # not at runs
    for a, b in zip(ours, theirs, strict=True):
        assert np.array_equal(a, b.numpy())


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_hooks_of_torch_itself_run_with_the_layer() -> None:
    layer = nn.utils.weight_norm(nn.Linear(4, 4))
    out = layer(static.data("x", [None, 4]))
    run(out)
    with torch.no_grad():
        layer.get_parameter("weight_g").mul_(3.0)
        expected = layer(ROWS)
    assert np.array_equal(run(out)[0], expected.numpy())


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_a_backward_hook_works_on_a_layer_and_is_refused_on_what_is_traced_through() -> None:
    model, seen = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), []

    def look(module: nn.Module, inputs: Any, outputs: tuple[Tensor]) -> None:
        seen.append(outputs[0])

    model[0].register_full_backward_hook(look)
    loss = model(static.data("x", [None, 4])).sum()
    ((_, gradient), *_) = static.append_backward(loss)
    seen.clear()
    run(gradient)
    assert len(seen) == 1
    assert not isinstance(seen[0], static.Variable)
    model.register_full_backward_hook(look)
    with pytest.raises(
        ProgramError, match=r"test_module_options.py:\d+: Sequential has a backward hook"
    ):
        model(static.data("z", [None, 4]))
