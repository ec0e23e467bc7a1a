"""Operators by name: the table, and the formats that kernels really see."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from fleetx.graph.operator_casts import (
    Casts,
    OperatorCasts,
    cast,
    one_of,
    parameters_named,
)
from fleetx.graph.operator_lists import FUNCTIONS, PRODUCTS, functions
from fleetx.testing import world
from tests.strategies.formats import formats


def low(**options: Any) -> OperatorCasts:
    return OperatorCasts(Casts(device="cpu", low=torch.bfloat16, **options))


def listed(*operators: str) -> frozenset[str]:
    return functions("the list", operators)


def test_every_name_leads_to_a_function_of_torch() -> None:
    homes = (torch, F, torch.Tensor, torch.linalg, torch._C._VariableFunctions, torch._C._nn)
    for operator, names in FUNCTIONS.items():
        assert any(hasattr(home, name) for name in names for home in homes), operator


@pytest.mark.parametrize("spelling", ["gelu", "torch.nn.functional.gelu", "F.gelu"])
def test_functions_may_be_spelled_with_their_home(spelling: str) -> None:
    assert listed(spelling) == {"gelu"}


def test_an_unknown_operator_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(ValueError, match=r"'sofmax', which fleetx does not know.*softmax"):
        listed("linear", "sofmax")


A, B = torch.ones(2, 2), torch.full((2, 2), 2.0)
SPELLINGS: dict[str, list[Any]] = {
    "matmul": [lambda: A @ B, lambda: A.matmul(B), lambda: torch.matmul(A, B), lambda: A.mm(B)],
    "mul": [lambda: A @ B, lambda: F.linear(A, B), lambda: torch.einsum("ij,jk->ik", A, B)],
    "softmax": [lambda: A.softmax(0), lambda: torch.softmax(A, 0), lambda: F.softmax(A, 0)],
    "elementwise_add": [lambda: A + B, lambda: torch.add(A, B), lambda: A.add(B), lambda: 1 + A],
    "elementwise_sub": [lambda: A - B, lambda: 1 - A, lambda: torch.sub(A, B)],
    "elementwise_mul": [lambda: A * B, lambda: 2 * A, lambda: torch.mul(A, B)],
    "elementwise_div": [lambda: A / B, lambda: 1 / A],
    "pow": [lambda: A**2, lambda: 2**A, lambda: torch.pow(A, 2)],
    "reduce_mean": [A.mean, lambda: torch.mean(A)],
    "exp": [A.exp, lambda: torch.exp(A)],
    "relu": [lambda: F.relu(A), lambda: torch.relu(A), lambda: nn.ReLU()(A)],
    "gelu": [lambda: F.gelu(A), lambda: nn.GELU()(A)],
    "pool2d": [
        lambda: nn.MaxPool2d(2)(A[None]),
        lambda: nn.AvgPool2d(2)(A[None]),
        lambda: nn.AdaptiveAvgPool2d(1)(A[None]),
    ],
    "dropout": [lambda: F.dropout(A)],
    "softmax_with_cross_entropy": [lambda: F.cross_entropy(A, torch.tensor([0, 1]))],
    "concat": [lambda: torch.cat([A, B])],
    "layer_norm": [lambda: F.layer_norm(A, (2,)), lambda: nn.LayerNorm(2)(A)],
}


@pytest.mark.parametrize("operator", SPELLINGS)
def test_every_spelling_of_a_listed_operator_runs_in_the_chosen_format(operator: str) -> None:
    for spelling in SPELLINGS[operator]:
        assert spelling().dtype == torch.float32
        with low(lowered=listed(operator)):
            assert spelling().dtype == torch.bfloat16
        with torch.autocast("cpu", torch.bfloat16), low(kept=listed(operator)):
            assert spelling().dtype == torch.float32


def attention() -> nn.MultiheadAttention:
    torch.manual_seed(0)
    return nn.MultiheadAttention(4, 2, batch_first=True)


def test_operators_inside_of_others_are_reached() -> None:
    model, x = attention(), torch.randn(2, 3, 4)
    with torch.autocast("cpu", torch.bfloat16), low(kept=listed("bmm", "matmul")):
        seen = formats(lambda: model(x, x, x))
    assert seen["addmm"] == {"float"}
    with torch.autocast("cpu", torch.bfloat16), low(lowered=listed("softmax")):
        seen = formats(lambda: model(x, x, x))
    assert seen["_softmax"] == {"bf16"}


def test_gradients_come_back_in_the_format_of_the_weights() -> None:
    layer, x = nn.Linear(3, 2), torch.randn(4, 3)
    with low(lowered=listed("linear")):
        out = layer(x)
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32
    rounded = x.bfloat16().float().sum(0).expand(2, 3)
    torch.testing.assert_close(layer.weight.grad, rounded, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("pattern", ["1.weight", "1", "?.weight", "*"])
def test_operators_of_named_parameters_stay_in_float32(pattern: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    keeps = one_of(parameters_named(model, pattern))
    both = pattern in {"?.weight", "*"}
    for mode in (low(keeps=keeps, lowered=listed("linear")), low(keeps=keeps, parameters=True)):
        with mode:
            hidden = model[0](torch.ones(2, 3))
            assert hidden.dtype == (torch.float32 if both else torch.bfloat16)
            assert model[1](hidden).dtype == torch.float32


def test_a_pattern_of_nothing_finds_nothing() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    assert parameters_named(model, "weight") == []
    assert parameters_named(model, "1") == []


class Counting(nn.Module):
    """Writes to a parameter and asks it for its format."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.weight = nn.Parameter(torch.ones(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1  # type: ignore[misc]
        self.calls.add_(1)
        self.calls[0] = self.calls[0] + 1
        assert self.weight.dtype == torch.bfloat16
        return x.to(self.weight.dtype) @ self.weight


def test_what_a_model_writes_to_its_parameters_is_not_lost() -> None:
    model = Counting()
    with low(lowered=PRODUCTS, parameters=True):
        assert model(torch.ones(2, 2)).dtype == torch.bfloat16
    assert model.calls.tolist() == [3.0]
    assert model.weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Linear(4, 4), (2, 4)),
        (nn.LayerNorm(4), (2, 4)),
        (nn.Conv2d(4, 4, 1), (2, 4, 3, 3)),
        (nn.GroupNorm(2, 4), (2, 4, 3, 3)),
        (nn.LSTM(4, 4), (2, 3, 4)),
        (nn.GRU(4, 4), (2, 3, 4)),
        (nn.PReLU(), (2, 4)),
    ],
)
def test_in_pure_mode_no_kernel_mixes_formats(module: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).bfloat16()
    with low(lowered=PRODUCTS, parameters=True):
        seen = formats(lambda: module(x))
    seen.pop("_to_copy")
    assert set().union(*seen.values()) == {"bf16"}


def test_a_transformer_layer_computes_in_the_low_format() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    x = torch.randn(2, 3, 4).bfloat16()
    with low(lowered=PRODUCTS, parameters=True):
        seen = formats(lambda: layer(x))
        assert layer(x).dtype == torch.bfloat16
    # Attention itself goes through float32 inside of torch's own kernel for a CPU.
    assert seen["addmm"] == seen["native_layer_norm"] == seen["relu"] == {"bf16"}


def test_batch_norm_keeps_float32_statistics_and_updates_them() -> None:
    module, plain = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    x = torch.randn(8, 3).bfloat16()
    with low(lowered=PRODUCTS, parameters=True):
        out = module(x)
    plain(x.float())
    assert out.dtype == torch.bfloat16
    assert module.running_mean is not None
    torch.testing.assert_close(module.running_mean, plain.running_mean, rtol=1e-4, atol=1e-4)
    assert module.running_mean.dtype == torch.float32
    assert module.weight.dtype == torch.float32


@pytest.mark.parametrize("sparse", [True, False])
def test_a_table_is_looked_up_in_float32(sparse: bool) -> None:
    table = nn.Embedding(50, 4, sparse=sparse)
    ids = torch.tensor([[1, 2], [1, 1]])
    with low(lowered=PRODUCTS, parameters=True):
        seen = formats(lambda: table(ids))
        out = table(ids)
    assert out.dtype == torch.bfloat16
    assert seen["embedding"] == {"float"}
    out.float().sum().backward()
    gradient = table.weight.grad
    assert gradient is not None
    assert gradient.is_sparse == sparse
    assert gradient.to_dense()[:3, 0].tolist() == [0.0, 3.0, 1.0]


def test_doubles_and_integers_are_left_alone() -> None:
    mixed = {"a": [torch.ones(1).double(), torch.ones(1).half()], "b": (torch.tensor(1), "word")}
    got = cast(mixed, torch.float32)
    assert [t.dtype for t in got["a"]] == [torch.float64, torch.float32]
    assert got["b"][0].dtype == torch.int64
    assert got["b"][1] == "word"


@world(2)
@pytest.mark.parametrize("kept", [True, False])
def test_parameters_that_are_gathered_for_the_forward_are_recognised(kept: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    keeps = one_of(parameters_named(model, "2")) if kept else None
    for layer in model:
        fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
    with low(lowered=PRODUCTS, parameters=True, keeps=keeps):
        out = model(torch.ones(2, 4).bfloat16())
    assert out.dtype == (torch.float32 if kept else torch.bfloat16)
    out.float().sum().backward()
    for parameter in model.parameters():
        assert isinstance(parameter.grad, DTensor)
        assert parameter.grad.dtype == torch.float32
