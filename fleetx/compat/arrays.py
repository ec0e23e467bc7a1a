"""Arrays as scripts of numpy 1 days use them: one element is a number, whatever the shape."""

from typing import Any

import numpy as np
from typing_extensions import override


class Array(np.ndarray[Any, Any]):
    """An array whose ``float()``, ``int()``, ``"%f" %`` and ``{:f}`` work while it has one element.

    numpy itself dropped that for arrays with dimensions, and Paddle's losses have the shape [1].
    """

    @override
    def __float__(self) -> float:
        return float(self.item())

    @override
    def __int__(self) -> int:
        return int(self.item())

    @override
    def __format__(self, spec: str, /) -> str:
        return format(self.item(), spec) if spec and self.size == 1 else super().__format__(spec)

    @override
    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))

    def __round__(self, digits: int = 0) -> Any:
        """``round(loss, 3)``."""
        return round(self.item(), digits) if self.size == 1 else np.round(self, digits)


def scalar_like(array: Any) -> Any:
    """The same array, convertible to a number while it has one element."""
    return array.view(Array) if type(array) is np.ndarray and array.dtype != object else array
