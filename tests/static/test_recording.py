"""What is recorded, under which names and shapes, and what says that it cannot be."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fleetx import static
from fleetx.static import ProgramError


def fetch(feed: dict[str, Any], *fetches: Any, program: static.Program | None = None) -> list[Any]:
    return static.Executor().run(program, feed, list(fetches))


def named(value: Tensor) -> static.Variable:
    assert isinstance(value, static.Variable)
    return value


def test_a_variable_is_a_tensor_with_a_name_a_shape_and_a_dtype() -> None:
    x = static.data("x", [None, 3, -1], "int64")
    assert isinstance(x, torch.Tensor)
    assert x.name == "x"
    assert x.dtype == torch.int64
    assert x.dim() == 3
    assert x.shape[1] == 3
    y = named(x.float().mean(2))
    y.name = "mean"
    assert re.fullmatch(r"Variable\(mean: float32\[s\d+, 3\]\)", repr(y))
    assert f"{y}" == str(y) == repr(y)


def test_sizes_follow_the_data() -> None:
    main = static.Program()
    with static.program_guard(main):
        x = static.data("x", [None, None])
        flat = x.reshape(x.shape[0] * x.shape[1])
        rows = torch.arange(x.shape[0]).float()
        padded = F.pad(x, (1, 1))
        scaled = x / x.size(0)
    for shape in [(2, 3), (5, 1), (1, 1)]:
        batch = np.ones(shape, dtype=np.float32)
        found = fetch({"x": batch}, flat, rows, padded, scaled, program=main)
        assert found[0].shape == (shape[0] * shape[1],)
        assert found[1].tolist() == list(range(shape[0]))
        assert found[2].shape == (shape[0], shape[1] + 2)
        assert np.allclose(found[3], 1 / shape[0])


def test_fetching_by_object_and_by_name() -> None:
    x = static.data("x", [2])
    y = named(x * 2)
    y.name = "twice"
    first, second, fed = fetch({"x": [1.0, 2.0]}, y, "twice", "x")
    assert first.tolist() == second.tolist() == [2.0, 4.0]
    assert fed.tolist() == [1.0, 2.0]


def test_names_are_unique_and_known() -> None:
    x = static.data("x", [2])
    y = named(x * 2)
    y.name = "twice"
    with pytest.raises(ProgramError, match="two variables cannot be called 'twice'"):
        named(x * 3).name = "twice"
    with pytest.raises(ProgramError, match="has an input 'x' already"):
        static.data("x", [2])
    with pytest.raises(ProgramError, match=r"no variable 'twicee'.*did you mean 'twice'"):
        fetch({"x": [1.0, 2.0]}, "twicee")
    with pytest.raises(ProgramError, match="cannot become 'z'"):
        x.name = "z"


REFUSED: dict[str, Any] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0),
    "float": lambda x: float(x.sum()),
    "numpy": lambda x: x.numpy(),
    "asarray": np.asarray,
    "tolist": lambda x: x.tolist(),
    "nonzero": lambda x: x.nonzero(),
    "backward": lambda x: x.sum().backward(),
    "iteration": list,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_numbers_is_refused_at_its_line(name: str) -> None:
    x = static.data("x", [None, 2])
    with pytest.raises(ProgramError, match=r"test_recording\.py:\d+: "):
        REFUSED[name](x)


def test_an_if_on_a_value_names_its_line() -> None:
    class Choosy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 0:
                return x
            return -x

    line = Choosy.forward.__code__.co_firstlineno + 1
    with pytest.raises(ProgramError, match=rf"test_recording\.py:{line}: .*torch\.where"):
        Choosy()(static.data("x", [None]))


def test_an_if_on_a_size_is_an_assumption_that_feeds_must_meet() -> None:
    x = static.data("x", [None])
    y = x + 1 if x.shape[0] > 4 else x - 1
    assert fetch({"x": np.zeros(6, np.float32)}, y)[0].tolist() == [1.0] * 6
    with pytest.raises(ProgramError, match=r"test_recording\.py:\d+: Python code decided"):
        fetch({"x": np.zeros(3, np.float32)}, y)


def test_a_free_dimension_is_not_fixed_silently() -> None:
    x = static.data("x", [None, 4])
    with pytest.raises(RuntimeError, match="must match the size of tensor b") as caught:
        x + torch.ones(7, 4)
    assert "is the free dimension 0 of 'x'" in caught.value.__notes__[0]
    with pytest.raises(ProgramError, match=r"made of dimension 0 of 'x'.*program_guard"):
        x + torch.ones(int(x.shape[0]), 4)


def test_tensors_computed_before_from_parameters_are_refused() -> None:
    weight = nn.Parameter(torch.ones(3))
    early = weight * 2
    x = static.data("x", [3])
    with pytest.raises(ProgramError, match="would stay what it is now"):
        x + early
    assert fetch({"x": [0.0, 0, 0]}, x + early.detach())[0].tolist() == [2.0] * 3


def test_variables_of_two_programs_do_not_mix() -> None:
    x = static.data("x", [3])
    with static.program_guard(static.Program(), static.Program()):
        y = static.data("y", [3])
        with pytest.raises(ProgramError, match="two programs"):
            x + y


def test_random_numbers_are_drawn_anew_in_every_run() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.rand(x.shape[0]) + torch.rand(1)

    y = Noisy()(static.data("x", [None]))
    zeros = np.zeros(4, np.float32)
    torch.manual_seed(0)
    first, second = fetch({"x": zeros}, y)[0], fetch({"x": zeros}, y)[0]
    assert not np.array_equal(first, second)
    torch.manual_seed(0)
    assert np.array_equal(first, (torch.rand(4) + torch.rand(1)).numpy())


def test_expressions_of_parameters_are_part_of_the_program() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 2))

        def forward(self, x: Tensor) -> Tensor:
            normal = self.weight / self.weight.sum()
            return x @ normal

    model = Tied()
    y = model(static.data("x", [None, 2]))
    ones = np.ones((1, 2), np.float32)
    assert fetch({"x": ones}, y)[0].tolist() == [[0.5, 0.5]]
    with torch.no_grad():
        model.weight[0] = 3.0
    assert fetch({"x": ones}, y)[0].tolist() == [[0.5, 0.5]]
    with torch.no_grad():
        model.weight[0, 0] = 1.0
    assert fetch({"x": ones}, y)[0].tolist() != [[0.5, 0.5]]


def test_a_buffer_that_is_assigned_moves_with_every_run() -> None:
    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(2))
            self.mean: Tensor

        def forward(self, x: Tensor) -> Tensor:
            self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
            return x - self.mean

    model = Average()
    loss = model(static.data("x", [None, 2])).sum() + nn.Linear(1, 1)(torch.ones(1)).sum().detach()
    weight = static.nn.fc(static.default_main_program().var("x"), 1).sum()
    static.Optimizer(torch.optim.SGD, lr=0.1).minimize(loss + weight)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    for _ in range(2):
        exe.run(feed={"x": np.ones((3, 2), np.float32)}, fetch_list=[loss])
    assert type(model.mean) is Tensor
    assert model.mean.tolist() == [0.75, 0.75]


def test_an_autograd_function_keeps_its_own_backward() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0] * 2

    weight = static.nn.create_parameter([3])
    loss = (Doubled.apply(weight) * static.data("x", [3])).sum()  # type: ignore[no-untyped-call]
    ((_, gradient),) = static.append_backward(loss)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    assert exe.run(feed={"x": [1.0, 2, 3]}, fetch_list=[gradient])[0].tolist() == [2.0, 4, 6]


def test_shared_layers_are_one_layer() -> None:
    layer = nn.Linear(4, 4)
    x = static.data("x", [None, 4])
    y = layer(layer(x))
    assert len(static.default_main_program().parameters()) == 2
    batch = torch.randn(3, 4)
    assert np.array_equal(fetch({"x": batch}, y)[0], layer(layer(batch)).detach().numpy())


def test_torch_is_as_before_outside_of_programs() -> None:
    call = nn.Module.__call__
    with static.program_guard(static.Program(), static.Program()):
        assert nn.Module.__call__ is not call
        eager = nn.Linear(2, 2)(torch.ones(1, 2))
        assert type(eager) is Tensor
    assert nn.Module.__call__ is call
    static.data("x", [1])
    assert type(nn.Linear(2, 2)(torch.ones(1, 2))) is Tensor
    static.reset()
    assert nn.Module.__call__ is call


def test_device_guard_is_noted_for_every_operator() -> None:
    x = static.data("x", [2])
    with static.device_guard("gpu:0"):
        y = x + 1
    with static.device_guard("gpu:1"):
        z = y * 2
        with static.device_guard("cpu"):
            w = z * 2
    assert [v.node.meta["device"] for v in (x, y, z, w)] == [None, "gpu:0", "gpu:1", "cpu"]  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="names no device"), static.device_guard("card 1"):
        pass
