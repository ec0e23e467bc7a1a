"""The names of parameters, of those that a user made and of those that a layout made of them."""

from collections.abc import Iterator, Mapping

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary
from typing_extensions import override


class ParameterNames(Mapping[Tensor, str]):
    """Parameters -> names.

    A layout that spreads a model lets go of what the user made, so those are known weakly. Those
    that run are held: torch does not let ``model.to()`` replace tensors that have weak references.
    """

    def __init__(self, made: Mapping[str, nn.Parameter]) -> None:
        self._running: dict[Tensor, str] = {p: name for name, p in made.items()}
        self._made = WeakTensorKeyDictionary()

    def run(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Learn which parameters the layout made."""
        running: dict[Tensor, str] = {p: name for name, p in parameters.items()}
        for parameter, name in self._running.items():
            if parameter not in running:
                self._made[parameter] = name
        self._running = running

    @override
    def __getitem__(self, parameter: Tensor) -> str:
        found = self._running.get(parameter)
        return self._made[parameter] if found is None else found

    @override
    def __contains__(self, parameter: object) -> bool:
        return parameter in self._running or parameter in self._made

    @override
    def __iter__(self) -> Iterator[Tensor]:
        yield from self._running
        yield from self._made

    @override
    def __len__(self) -> int:
        return len(self._running) + len(self._made)
