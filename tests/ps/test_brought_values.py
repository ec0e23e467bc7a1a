"""What is written to parameters past the servers is noticed, whatever the numbers are."""

import math

import pytest
import torch
from torch import Tensor, nn

from fleetx.ps.worker.brought_values import BroughtValues
from fleetx.ps.worker.dense_group import DenseGroup


def noted(*values: float, dtype: torch.dtype = torch.float32) -> tuple[nn.Parameter, BroughtValues]:
    parameter = nn.Parameter(torch.tensor(values, dtype=dtype))
    brought = BroughtValues({parameter: "head"})
    brought.note([parameter])
    return parameter, brought


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_one_number_is_enough(dtype: torch.dtype) -> None:
    parameter, brought = noted(1.0, math.nan, 3.0, dtype=dtype)
    assert brought.written() is None  # though what is no number differs from itself
    parameter.data[2] = 4
    assert brought.written() is parameter
    with pytest.raises(RuntimeError, match="'head' was written to"):
        brought.refuse_written()
    brought.note([parameter])
    assert brought.written() is None
    parameter.data[2] = math.inf
    brought.forget()
    assert brought.written() is None


def test_another_shape_is_noticed_and_another_type_of_the_same_values_is_none() -> None:
    parameter, brought = noted(1.0, 2.0, 3.0)
    parameter.data = parameter.data.double()
    assert brought.written() is None
    parameter.data = parameter.data[:2]
    assert brought.written() is parameter
    brought.note([parameter])
    assert brought.written() is None


@pytest.mark.parametrize(
    "laid_out",
    [
        lambda t: t.contiguous(memory_format=torch.channels_last),
        lambda t: t.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        lambda t: t.repeat(1, 1, 1, 2)[..., :3],
    ],
)
def test_parameters_lie_in_memory_as_they_like(laid_out: object) -> None:
    assert callable(laid_out)
    plain = torch.arange(24.0).view(2, 4, 1, 3)
    weight: Tensor = laid_out(plain)
    assert not weight.is_contiguous()
    strides = weight.stride()
    group = DenseGroup(
        "dense-0", {"conv": nn.Parameter(weight)}, [(("conv", 0, 9),), (("conv", 9, 24),)]
    )
    first = group.values()
    assert [len(array) for array in first] == [9, 15]
    group.put([array + 1 for array in first])
    torch.testing.assert_close(weight, plain + 1, rtol=0, atol=0)
    group.put([array * 0 + 1 for array in first], add=True)
    torch.testing.assert_close(weight, plain + 2, rtol=0, atol=0)
    assert weight.stride() == strides
