"""``paddle.static.input``: what a program or a layer is given."""

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from fleetx.compat.default_dtype import get_default_dtype
from fleetx.compat.dtypes import convert_dtype
from fleetx.compat.paddle.fluid.layers.io import declared


def data(name: str, shape: Sequence[Any], dtype: Any = None, lod_level: int = 0) -> Any:
    """An input of the program that is written."""
    return declared(name, shape, dtype or get_default_dtype(), lod_level)


class InputSpec:
    """The shape and format of an input, and its name."""

    def __init__(
        self,
        shape: Sequence[Any],
        dtype: Any = "float32",
        name: str | None = None,
        stop_gradient: bool = False,
    ) -> None:
        self.shape = tuple(-1 if size is None else int(size) for size in shape)
        self.dtype, self.name = convert_dtype(dtype), name
        self.stop_gradient = stop_gradient

    @classmethod
    def from_tensor(cls, tensor: Any, name: str | None = None) -> "InputSpec":
        """That of a tensor."""
        return cls(list(tensor.shape), tensor.dtype, name or getattr(tensor, "name", None))

    @classmethod
    def from_numpy(cls, ndarray: Any, name: str | None = None) -> "InputSpec":
        """That of an array."""
        return cls(ndarray.shape, ndarray.dtype, name)

    def batch(self, batch_size: int) -> "InputSpec":
        """The same with a dimension for the batch before the others."""
        self.shape = (int(batch_size), *self.shape)
        return self

    def unbatch(self) -> "InputSpec":
        """The same without the first dimension."""
        if not self.shape:
            raise ValueError("InputSpec.unbatch(): there is no dimension to take away.")
        self.shape = self.shape[1:]
        return self

    @override
    def __repr__(self) -> str:
        return f"InputSpec(shape={self.shape}, dtype={self.dtype}, name={self.name})"
