"""Values survive the way to bytes and back; what would not is refused."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fleetx.roles.messages import as_array, decode, encode

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(values)
def test_json_values_come_back(value: Any) -> None:
    assert decode(encode(value)) == value


@pytest.mark.parametrize("dtype", ["bool", "u8", ">i4", "f2", "c8", "f8"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_arrays_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype)[..., ::-1] if shape else np.ones(shape, dtype)
    back = decode(encode(array))
    assert (back.dtype, back.shape) == (array.dtype, shape)
    assert np.array_equal(back, array)
    assert back.flags.writeable


def test_others_come_back_as_their_nearest() -> None:
    assert decode(encode((1, 2))) == [1, 2]
    assert decode(encode(np.float32(0.5))) == 0.5
    assert math.isnan(decode(encode(math.nan)))
    assert decode(encode(torch.ones(2, dtype=torch.bfloat16))).dtype == np.float32


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (object(), "object cannot be gathered"),
        ({1, 2}, "set cannot be gathered"),
        ([b"x"], "bytes cannot be gathered"),
        ({1: "a"}, "dict key 1 is not a string"),
        ([np.zeros(1)], "ndarray cannot be gathered"),
        (np.array(["a"]), "is not numeric"),
        (np.array([object()]), "is not numeric"),
    ],
)
def test_refused(value: Any, complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        encode(value)


@pytest.mark.parametrize("value", ["text", None, [2**70], {"a": 1}])
def test_not_numeric(value: Any) -> None:
    with pytest.raises(TypeError, match="is not numeric"):
        as_array(value)


def test_a_tensor_that_wants_gradients_is_read() -> None:
    assert as_array(torch.ones(2, requires_grad=True)).tolist() == [1, 1]
