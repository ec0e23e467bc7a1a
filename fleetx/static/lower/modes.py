"""Mode and options of modules, as each of their calls was recorded."""

from dataclasses import dataclass
from typing import Any

from torch import fx, nn
from typing_extensions import override

from fleetx.record.error import ProgramError
from fleetx.record.module_hooks import copied
from fleetx.record.module_options import Options, changed, give, options_of, same
from fleetx.static.lower.sharing import put_module
from fleetx.static.record.program import Program
from fleetx.torch_internals import children_of, use_children


class Hidden(nn.Module):
    """Holds modules whose values are saved elsewhere, under the names of the program."""

    @override
    def state_dict(self, *args: Any, destination: Any = None, **kwargs: Any) -> Any:
        """Nothing."""
        return {} if destination is None else destination


@dataclass(frozen=True)
class _Setting:
    """How a twin of a module runs."""

    training: bool
    options: Options
    """Those that differ from what the module itself has."""

    def like(self, other: "_Setting") -> bool:
        return self.training is other.training and same(self.options, other.options)


class Modes:
    """Gives a lowered program another twin of a module for each way in which it is called."""

    def __init__(self, root: nn.Module, *, own: bool) -> None:
        self._root, self._own = root, own
        self._settings: dict[str, list[_Setting]] = {}
        """Path of a module -> how its twins run, the first one first."""
        self._base: dict[str, Options] = {}
        """Path of a module -> the options that it had when its first twin was asked for."""

    def set(self, graph: fx.Graph, program: Program) -> None:
        """Let every call of a module run as it was recorded; tests are in evaluation mode."""
        for node in graph.nodes:
            if node.op == "call_module":
                path = str(node.target)
                setting = self._setting(node, path, program)
                node.target = self._twin(path, setting, str(node.meta.get("line")))

    def _setting(self, node: fx.Node, path: str, program: Program) -> _Setting:
        if path not in self._base:
            self._base[path] = options_of(program.state.root.get_submodule(path))
        tested = program.for_test and "kept_mode" not in node.meta
        training = node.meta["training"] and not tested
        return _Setting(training, changed(node.meta.get("options", {}), self._base[path]))

    def _twin(self, path: str, setting: _Setting, line: str) -> str:
        known = self._settings.setdefault(path, [])
        for at, other in enumerate(known):
            if setting.like(other):
                found = f"modes.{at}.{path}" if at else path
                self._root.get_submodule(found).training = setting.training
                return found
        known.append(setting)
        first = self._root.get_submodule(path)
        if len(known) == 1:
            _set(first, setting)
            return path
        if self._own:
            raise ProgramError(
                f"{line}: {path!r} is called {_difference(known[0], setting)}, and a strategy "
                "spreads its parameters, which lie in one module; call it in one manner, or make "
                "a module for each."
            )
        other_twin = _copied(first)
        give(other_twin, {key: self._base[path][key] for key in known[0].options})
        _set(other_twin, setting)
        put_module(self._root, f"modes.{len(known) - 1}.{path}", other_twin, Hidden)
        return f"modes.{len(known) - 1}.{path}"


def _difference(first: _Setting, other: _Setting) -> str:
    if first.training is not other.training:
        return "in training and in evaluation mode"
    names = sorted({name for _, name in {**first.options, **other.options}})
    return f"with {', '.join(names)} changed between two calls"


def _set(module: nn.Module, setting: _Setting) -> None:
    module.training = setting.training
    give(module, setting.options)


def _copied(module: nn.Module) -> nn.Module:
    """A twin with parts of its own, over the same tensors."""
    made = copied(module)
    children = children_of(module)
    use_children(made, {n: None if c is None else _copied(c) for n, c in children.items()})
    return made
