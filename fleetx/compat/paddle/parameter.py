"""``paddle.create_parameter``."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from typing import Any

from fleetx.compat import parameters, unique_names
from fleetx.compat.fills import Number, XavierFill
from fleetx.compat.parameters import ParamAttr


def create_parameter(
    shape: Any,
    dtype: Any,
    name: str | None = None,
    attr: Any = None,
    is_bias: bool = False,
    default_initializer: Any = None,
) -> Any:
    """A parameter that belongs to no layer."""
    described = ParamAttr.of(attr)
    if described is not None and name is not None:
        described = ParamAttr(**{**vars(described), "name": name})
    start = Number(0.0) if is_bias else XavierFill(None, None, uniform=True)
    layer = unique_names.generate("create_parameter")
    return parameters.create(
        layer,
        described or False,
        shape,
        dtype,
        default=default_initializer or start,
        is_bias=is_bias,
    )
