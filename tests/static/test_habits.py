"""Habits of people who write for eager torch: recorded as they are, or stopped at their line."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from fleetx import static
from fleetx.static import ProgramError
from tests.static.training import assert_same_training, classify, rows

Use = Callable[[nn.Module, Tensor], Tensor]


class Net(nn.Module):
    """A layer, and what a test does with it and the input."""

    def __init__(self, layer: nn.Module, use: Use) -> None:
        super().__init__()
        self.first, self.layer, self.use = nn.Linear(4, 4), layer, use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self.layer, self.first(x))


def check(use: Use, layer: nn.Module | None = None) -> None:
    torch.manual_seed(0)
    assert_same_training(Net(layer or nn.Linear(4, 4), use), classify, rows())


WITH_NUMPY: dict[str, Use] = {
    "a scalar": lambda layer, x: layer(x) / np.sqrt(64),
    "of 32 bits": lambda layer, x: np.float32(2.5) * layer(x),
    "sizes": lambda layer, x: layer(x).reshape(-1, np.prod([2, 2])) + np.int64(x.shape[1]),
    "an option": lambda layer, x: torch.clamp(layer(x), min=np.float64(-0.1)),
    "an array of places": lambda layer, x: layer(x)[:, np.array([0, 2])],
    "a mask": lambda layer, x: layer(x)[:, np.array([True, False, True, True])],
    "a tensor of an array": lambda layer, x: layer(x) + torch.tensor(np.arange(4.0)).float(),
    "a format": lambda layer, x: (layer(x).double() * torch.tensor(np.float64(2))).float(),
}


@pytest.mark.parametrize("name", WITH_NUMPY)
def test_numbers_of_numpy_are_numbers(name: str) -> None:
    check(WITH_NUMPY[name])


def test_an_array_is_what_it_was_when_it_was_used() -> None:
    places = np.array([0, 1])
    chosen = static.data("x", [3])[places]
    places[:] = 2
    assert static.Executor().run(None, {"x": [5.0, 6, 7]}, [chosen])[0].tolist() == [5.0, 6.0]


def test_constants_go_into_every_part_that_needs_them() -> None:
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [None, 4])
        middle = nn.Linear(4, 4)(x) * np.float64(3)
        middle.name = "middle"
        loss = (middle[:, np.array([0, 1])] / np.sqrt(4)).sum()
        static.Optimizer(torch.optim.SGD, lr=0.1).minimize(loss)
    from fleetx.static.lower.lowered import Lowered

    lowered = Lowered(main, cuts=["middle"])
    lowered.choose(main, [main.find(loss)], device=torch.device("cpu"))
    batch = torch.ones(2, 4)
    alone = static.Executor().run(main.clone(for_test=True), {"x": batch.numpy()}, [loss])[0]
    assert float(lowered((batch,))[0]) == float(alone)


PARAMETRIZATIONS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
}


@pytest.mark.parametrize("name", PARAMETRIZATIONS)
def test_parametrized_layers(name: str) -> None:
    torch.manual_seed(0)
    check(lambda layer, x: layer(x), PARAMETRIZATIONS[name](nn.Linear(4, 4)))
    check(lambda layer, x: x @ layer.weight, PARAMETRIZATIONS[name](nn.Linear(4, 4)))  # type: ignore[operator]


def test_a_parametrized_layer_in_both_modes() -> None:
    layer = parametrizations.spectral_norm(nn.Linear(4, 4))
    x = static.data("x", [None, 4])
    trained, tested = layer(x), layer.eval()(x)
    feed = {"x": np.ones((1, 4), np.float32)}
    found = static.Executor().run(None, feed, [trained, tested])
    assert parametrize.is_parametrized(layer)
    assert np.allclose(found[1], layer(torch.ones(1, 4)).detach().numpy())


class Applied(torch.autograd.Function):
    """Keeps its input alone, as reversible layers do."""

    @staticmethod
    def forward(ctx: Any, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            made = ctx.function(x)
        return None, torch.autograd.grad(made, x, gradients[0])[0]


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "of torch": torch.tanh,
    "of the script": lambda x: x * x,
    "with an option": partial(torch.clamp, min=-0.1),
    "a module": nn.Tanh(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_autograd_function_takes_functions(name: str) -> None:
    function = FUNCTIONS[name]
    check(lambda layer, x: Applied.apply(function, layer(x)))  # type: ignore[no-untyped-call]


def test_what_a_function_holds_is_not_lost() -> None:
    layer = nn.Linear(4, 4)
    x = static.data("x", [None, 4])
    for function in (
        layer,
        lambda y: layer(y) + y,
        partial(F.linear, weight=layer.weight),
        layer.bias.add,
    ):
        with pytest.raises(ProgramError, match=r"test_habits\.py:\d+: .*pass the tensors themse"):
            Applied.apply(function, x)  # type: ignore[no-untyped-call]


def test_a_gradient_inside_of_a_model() -> None:
    def force(layer: nn.Module, x: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(torch.tanh(layer(x)).sum(), x, create_graph=True)
        return found

    check(force)


def test_a_lazy_layer_learns_its_size_from_a_variable() -> None:
    torch.manual_seed(0)
    layer = nn.LazyLinear(3)
    out = layer(static.data("x", [None, 4]))
    torch.manual_seed(0)
    eager = nn.LazyLinear(3)
    expected = eager(torch.ones(2, 4)).detach().numpy()
    feed = {"x": np.ones((2, 4), np.float32)}
    assert np.array_equal(static.Executor().run(None, feed, [out])[0], expected)
    assert type(layer) is nn.Linear
    with pytest.raises(ProgramError, match=r"test_habits\.py:\d+: a LazyLinear learns its size"):
        nn.LazyLinear(3)(static.data("free", [None, None]))


def test_a_batch_norm_that_averages_over_all_batches() -> None:
    check(lambda layer, x: layer(x), nn.BatchNorm1d(4, momentum=None))


def test_a_transposed_weight_is_read_in_every_run() -> None:
    check(lambda layer, x: x @ layer.weight.T)  # type: ignore[operator]


def test_an_input_that_shall_have_gradients() -> None:
    class Marked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = x * 2
            x.requires_grad = True
            return self.layer(x)

    torch.manual_seed(0)
    assert_same_training(Marked(), classify, rows())
    with pytest.raises(ProgramError, match=r"test_habits\.py:\d+: the attribute 'data' of a var"):
        static.data("x", [2]).data = torch.ones(2)


class Layerdrop(nn.Module):
    """As in BART: a layer is left out by chance."""

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.layer, self.chance = nn.Linear(4, 4), chance

    def forward(self, x: Tensor) -> Tensor:
        drawn = torch.rand([])
        if drawn < self.chance:
            return F.dropout(x, 0.5)
        return F.dropout(self.layer(x), 0.5)


def test_numbers_that_nobody_needs_are_drawn_all_the_same() -> None:
    def use(layer: nn.Module, x: Tensor) -> Tensor:
        torch.rand(3)
        return F.dropout(layer(x), 0.5)

    check(use)


def test_a_layer_that_is_never_left_out() -> None:
    torch.manual_seed(0)
    assert_same_training(Layerdrop(0.0), classify, rows())
    with pytest.raises(ProgramError, match="needs the numbers of a variable"):
        Layerdrop(0.1)(static.data("x", [None, 4]))


TAKEN: dict[str, Callable[[Tensor], Any]] = {
    "int": lambda x: int(x.shape[0]),
    "float": lambda x: x / float(x.shape[0]),
    "range": lambda x: [x[at] for at in range(x.shape[0])],
    "sqrt": lambda x: x / np.sqrt(int(x.shape[0])),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_number_of_a_free_size_is_refused_at_its_line(name: str) -> None:
    class Sized(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return TAKEN[name](x)

    with static.program_guard(static.Program(), static.Program()):
        x = static.data("x", [None, 4])
        line = TAKEN[name].__code__.co_firstlineno
        with pytest.raises(ProgramError, match=rf"habits\.py:{line}: a number is made of dim.*0 "):
            Sized()(x)
    with static.program_guard(static.Program(), static.Program()):
        Sized()(static.data("x", [3, 4]))
