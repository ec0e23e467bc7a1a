"""Layers that call a function with the options they were made with."""

from collections.abc import Callable
from typing import Any

from typing_extensions import override

from fleetx.compat.paddle.nn.layer.layers import Layer


class Called(Layer):
    """A function with options in Paddle's order."""

    function: Callable[..., Any]
    options: tuple[str, ...] = ()
    needed = 0
    """How many options have no default."""

    def __init__(self, *args: Any, name: str | None = None, **kwargs: Any) -> None:
        super().__init__()
        given = {**dict(zip(self.options, args, strict=False)), **kwargs}
        missing = [key for key in self.options[: self.needed] if key not in given]
        unknown = [key for key in given if key not in self.options]
        if unknown or missing or len(args) > len(self.options):
            raise TypeError(
                f"{type(self).__name__}() takes {', '.join(self.options)}; got "
                f"{', '.join(given) or 'nothing'}"
            )
        self._given = given

    @override
    def forward(self, *inputs: Any) -> Any:
        return type(self).function(*inputs, **self._given)
