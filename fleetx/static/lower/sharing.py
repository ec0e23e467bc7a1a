"""How forms of a program share its parameters without sharing how modules run."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, fx, nn

from fleetx.record.module_hooks import copied, without_hooks
from fleetx.torch_internals import children_of, use_children, use_tensors


class Twins:
    """Twins of modules: the same parameters, buffers and options, but a forward of their own.

    With containers of its ``own``, a twin that gets another parameter or a hook keeps that to
    itself, which layouts over several workers need: the original goes on to have the program's.
    """

    def __init__(self, *, eval_mode: bool, own: bool = False) -> None:
        self._eval, self._own = eval_mode, own
        self._made: dict[int, nn.Module] = {}

    def of(self, module: nn.Module) -> nn.Module:
        """The one twin of a module."""
        if id(module) not in self._made:
            twin = self._made[id(module)] = copied(without_hooks(module))
            if self._own:
                vars(twin).update(_containers_of_tensors(twin))
            children = children_of(module)
            use_children(twin, {n: None if c is None else self.of(c) for n, c in children.items()})
            if self._eval:
                twin.training = False
        return self._made[id(module)]


def _containers_of_tensors(module: nn.Module) -> dict[str, Any]:
    """Copies of the containers in which a module keeps tensors and hooks."""
    found: dict[str, Any] = {}
    for name, value in vars(module).items():
        ours = isinstance(value, dict) and (name in {"_parameters", "_buffers"} or "hooks" in name)
        # Recurrent layers have a list of their weights beside them.
        beside = isinstance(value, list) and any(isinstance(item, Tensor) for item in value)
        if ours or beside:
            found[name] = copy.copy(value)
    return found


class Ownership:
    """Says which piece may read a parameter by itself: the one piece that uses all of its owner."""

    def __init__(self, graph: fx.Graph, numbers: Mapping[fx.Node, int]) -> None:
        self._users: dict[str, set[int | None]] = {}
        for node in graph.nodes:
            if node.op == "get_attr":
                users = self._users.setdefault(_owner(node), set())
                users |= {numbers.get(user) for user in node.users}
        for node in graph.nodes:
            if node.op == "call_module":
                for owner in self._users:
                    if f"{owner}.".startswith(f"{node.target}."):
                        self._users[owner].add(numbers.get(node))

    def __call__(self, node: fx.Node, number: int) -> bool:
        """Whether the piece of that number may."""
        # What lies directly in the program has no owner that could go into a piece.
        return bool(_owner(node)) and self._users[_owner(node)] == {number}


def _owner(node: fx.Node) -> str:
    return str(node.target).rpartition(".")[0]


def put_module(
    part: nn.Module, path: str, module: nn.Module, kind: type[nn.Module] = nn.Module
) -> None:
    """Put a module at a path below a part, in modules of a kind where there are none yet."""
    *above, last = path.split(".")
    children_of(_containers(part, above, kind))[last] = module


def share(part: nn.Module, path: str, owner: nn.Module, attribute: str) -> None:
    """Let a part see the parameters that lie directly in a module, and nothing below it."""
    view = _containers(part, path.split("."))
    if attribute in vars(owner):
        vars(view)[attribute] = vars(owner)[attribute]
    use_tensors(view, owner)


def _containers(
    part: nn.Module, path: Iterable[str], kind: type[nn.Module] = nn.Module
) -> nn.Module:
    for name in path:
        if name not in children_of(part):
            children_of(part)[name] = kind()
        child = children_of(part)[name]
        assert child is not None
        part = child
    return part
