"""``paddle.fluid.data_feeder``."""

from typing import Any

from fleetx.compat.dtypes import convert_dtype, dtype_of
from fleetx.compat.feeders import DataFeeder


def check_dtype(
    input_dtype: Any, input_name: str, expected_dtype: Any, op_name: str, extra_message: str = ""
) -> None:
    """Refuse a format that is not among these."""
    if convert_dtype(input_dtype) not in expected_dtype:
        raise TypeError(
            f"The data type of '{input_name}' in {op_name} must be {expected_dtype}, but received "
            f"{convert_dtype(input_dtype)}. {extra_message}"
        )


def check_type(
    input: Any, input_name: str, expected_type: Any, op_name: str, extra_message: str = ""
) -> None:
    """Refuse a value that is not of these kinds."""
    if not isinstance(input, expected_type):
        raise TypeError(
            f"The type of '{input_name}' in {op_name} must be {expected_type}, but received "
            f"{type(input)}. {extra_message}"
        )


def check_variable_and_dtype(
    input: Any, input_name: str, expected_dtype: Any, op_name: str, extra_message: str = ""
) -> None:
    """Refuse a tensor whose format is not among these."""
    check_dtype(dtype_of(input.dtype), input_name, expected_dtype, op_name, extra_message)


__all__ = [
    "DataFeeder",
    "check_dtype",
    "check_type",
    "check_variable_and_dtype",
    "convert_dtype",
]
