"""``paddle.nn.layer.container``: layers in lists and in rows."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any, Self

from typing_extensions import override

from fleetx.compat.paddle.nn.layer.layers import Layer


class Sequential(Layer):
    """Layers one behind the other: as arguments, as (name, layer) pairs, or in a dict."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        if len(layers) == 1 and isinstance(layers[0], (dict, OrderedDict)):
            layers = tuple(layers[0].items())
        for at, given in enumerate(layers):
            name, layer = given if isinstance(given, (tuple, list)) else (str(at), given)
            self.add_sublayer(name, layer)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, str):
            return self._modules[at]
        found = list(self._modules.values())[at]
        return Sequential(*found) if isinstance(at, slice) else found

    def __setitem__(self, at: Any, layer: Any) -> None:
        self.add_sublayer(list(self._modules)[at] if isinstance(at, int) else at, layer)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def append(self, layer: Any) -> Self:
        """One more behind the others."""
        self.add_sublayer(str(len(self)), layer)
        return self

    @override
    def forward(self, input: Any) -> Any:
        for layer in self._modules.values():
            assert layer is not None
            input = layer(input)
        return input


class LayerList(Layer):
    """A list of layers."""

    def __init__(self, sublayers: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.extend(sublayers or [])

    def _place(self, at: int) -> str:
        return str(range(len(self))[at])

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return LayerList(list(self._modules.values())[at])
        return self._modules[self._place(at)]

    def __setitem__(self, at: int, layer: Any) -> None:
        self.add_sublayer(self._place(at), layer)

    def __delitem__(self, at: Any) -> None:
        kept = list(self._modules.values())
        del kept[at]
        self._fill(kept)

    def _fill(self, layers: list[Any]) -> None:
        self._modules.clear()
        for at, layer in enumerate(layers):
            self.add_sublayer(str(at), layer)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def append(self, sublayer: Any) -> Self:
        """One more at the end."""
        self.add_sublayer(str(len(self)), sublayer)
        return self

    def extend(self, sublayers: Iterable[Any]) -> Self:
        """More at the end."""
        for layer in sublayers:
            self.append(layer)
        return self

    def insert(self, index: int, sublayer: Any) -> None:
        """One more before another."""
        layers = list(self._modules.values())
        layers.insert(index, sublayer)
        self._fill(layers)


class LayerDict(Layer):
    """Layers by names."""

    def __init__(self, sublayers: Any = None) -> None:
        super().__init__()
        self.update(sublayers or {})

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, layer: Any) -> None:
        self.add_sublayer(key, layer)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: object) -> bool:
        return key in self._modules

    def keys(self) -> Any:
        """The names."""
        return self._modules.keys()

    def values(self) -> Any:
        """The layers."""
        return self._modules.values()

    def items(self) -> Any:
        """Names and layers."""
        return self._modules.items()

    def update(self, sublayers: Any) -> None:
        """More of them."""
        given = sublayers.items() if hasattr(sublayers, "items") else sublayers
        for key, layer in given:
            self.add_sublayer(key, layer)


class ParameterList(Layer):
    """A list of parameters."""

    def __init__(self, parameters: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._count = 0
        for parameter in parameters or []:
            self.append(parameter)

    def append(self, parameter: Any) -> Self:
        """One more at the end."""
        self.add_parameter(str(self._count), parameter)
        self._count += 1
        return self

    def __getitem__(self, at: int) -> Any:
        return getattr(self, str(range(self._count)[at]))

    def __setitem__(self, at: int, parameter: Any) -> None:
        self.add_parameter(str(range(self._count)[at]), parameter)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(self._count))
