"""How forms of a program share its parameters without sharing how modules run."""

import copy
from collections.abc import Iterable, Mapping

from torch import fx, nn


class Twins:
    """Twins of modules: the same parameters, buffers and options, but a forward of their own."""

    def __init__(self, *, eval_mode: bool) -> None:
        self._eval = eval_mode
        self._made: dict[int, nn.Module] = {}

    def of(self, module: nn.Module) -> nn.Module:
        """The one twin of a module."""
        if id(module) not in self._made:
            twin = self._made[id(module)] = copy.copy(module)
            twin._modules = {
                name: None if child is None else self.of(child)
                for name, child in module._modules.items()
            }
            if self._eval:
                twin.training = False
        return self._made[id(module)]


class Ownership:
    """Says which piece may read a parameter by itself: the one piece that uses all of its owner."""

    def __init__(self, graph: fx.Graph, numbers: Mapping[fx.Node, int]) -> None:
        self._users: dict[str, set[int | None]] = {}
        for node in graph.nodes:
            if node.op == "get_attr":
                users = self._users.setdefault(_owner(node), set())
                users |= {numbers.get(user) for user in node.users}

    def __call__(self, node: fx.Node, number: int) -> bool:
        """Whether the piece of that number may."""
        # What lies directly in the program has no owner that could go into a piece.
        return bool(_owner(node)) and self._users[_owner(node)] == {number}


def _owner(node: fx.Node) -> str:
    return str(node.target).rpartition(".")[0]


def hang(part: nn.Module, path: str, module: nn.Module) -> None:
    """Put a module at a path below a part."""
    *above, last = path.split(".")
    _containers(part, above)._modules[last] = module


def share(part: nn.Module, path: str, owner: nn.Module, attribute: str) -> None:
    """Let a part see the parameters that lie directly in a module, and nothing below it."""
    view = _containers(part, path.split("."))
    if attribute in vars(owner):
        vars(view)[attribute] = vars(owner)[attribute]
    view._parameters, view._buffers = owner._parameters, owner._buffers


def _containers(part: nn.Module, path: Iterable[str]) -> nn.Module:
    for name in path:
        if name not in part._modules:
            part._modules[name] = nn.Module()
        child = part._modules[name]
        assert child is not None
        part = child
    return part
