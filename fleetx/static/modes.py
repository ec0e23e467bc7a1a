"""Training and evaluation mode of modules, as each of their calls was recorded."""

from typing import Any

from torch import fx, nn
from typing_extensions import override

from fleetx.static.error import ProgramError
from fleetx.static.sharing import copied, hang


class Hidden(nn.Module):
    """Holds modules whose values are saved elsewhere, under the names of the program."""

    @override
    def state_dict(self, *args: Any, destination: Any = None, **kwargs: Any) -> Any:
        """Nothing."""
        return {} if destination is None else destination


class Modes:
    """Gives a lowered program a second twin of each module that is called in both modes."""

    def __init__(self, root: nn.Module, *, own: bool) -> None:
        self._root, self._own = root, own
        self._first: dict[str, bool] = {}
        """Path of a module -> whether its first twin is in training mode."""
        self._twice: set[str] = set()
        """Paths of those that have a second twin."""

    def set(self, graph: fx.Graph, *, for_test: bool) -> None:
        """Let every call of a module run in its own mode; in tests all are in evaluation mode."""
        for node in graph.nodes:
            if node.op == "call_module":
                path, training = str(node.target), node.meta["training"] and not for_test
                if self._first.setdefault(path, training) is training:
                    self._root.get_submodule(path).training = training
                else:
                    node.target = self._other(path, training)

    def _other(self, path: str, training: bool) -> str:
        if self._own:
            raise ProgramError(
                f"{path!r} is called in training and in evaluation mode, and a strategy spreads "
                "its parameters, which lie in one module; use one mode, or a module for each."
            )
        if path not in self._twice:
            self._twice.add(path)
            other = copied(self._root.get_submodule(path))
            other.training = training
            hang(self._root, f"modes.{path}", other, Hidden)
        return f"modes.{path}"
