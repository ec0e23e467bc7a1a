"""Numbers as scripts of numpy 1 days write them: an array of one element is one, anywhere.

``float(x)``, ``int(x)`` and ``"%f" % x`` took such arrays, and numpy refuses them today. The code
of a script and of the modules beside it asks for these three here instead.
"""

import ast
import builtins
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np
from typing_extensions import override

_FORMATTED, _NUMBER = "__fleetx_formatted__", "__fleetx_number__"


def _plain(value: Any) -> Any:
    """An array of one element as that element; everything else as it is."""
    return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value


def formatted(text: str, values: Any) -> str:
    """``text % values``."""
    try:
        return str(text % values)
    except TypeError:
        if isinstance(values, tuple):
            return str(text % tuple(map(_plain, values)))
        if isinstance(values, dict):
            return str(text % {name: _plain(value) for name, value in values.items()})
        return str(text % _plain(values))


def number(kind: Callable[[Any], Any], value: Any) -> Any:
    """``float(value)`` or ``int(value)``."""
    try:
        return kind(value)
    except TypeError:
        return kind(_plain(value))


class _Asking(ast.NodeTransformer):
    """Lets code ask here."""

    @override
    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        text = node.left
        if not (
            isinstance(node.op, ast.Mod)
            and isinstance(text, ast.Constant)
            and isinstance(text.value, str)
        ):
            return node
        return ast.copy_location(_call(_FORMATTED, [text, node.right]), node)

    @override
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        kind = node.func
        if not isinstance(kind, ast.Name) or kind.id not in {"float", "int"}:
            return node
        if node.keywords or len(node.args) != 1 or isinstance(node.args[0], ast.Starred):
            return node
        return ast.copy_location(_call(_NUMBER, [kind, node.args[0]]), node)


def _call(name: str, args: list[Any]) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), args, [])


def code_of(source: bytes | str, path: str) -> CodeType:
    """What Python runs of a file."""
    tree = _Asking().visit(ast.parse(source, path))
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class _Loader(importlib.machinery.SourceFileLoader):
    """Reads a module that lies beside a script; its code is kept in no cache, where others look."""

    @override
    def source_to_code(self, data: Any, path: Any, **_: Any) -> CodeType:  # type: ignore[override]
        return code_of(data, str(path))

    @override
    def path_stats(self, path: Any) -> Any:
        raise OSError("not kept")


class _Beside:
    """Finds modules in the folder of a script."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder).resolve()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module, if it is one of the script's own."""
        if path is not None and not any(self._own(entry) for entry in path):
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path or [str(self._folder)])
        if found is None or type(found.loader) is not importlib.machinery.SourceFileLoader:
            return None
        assert found.origin is not None
        found.loader = _Loader(fullname, found.origin)
        return found

    def _own(self, entry: str) -> bool:
        return Path(entry).resolve().is_relative_to(self._folder)


def install(folder: str) -> None:
    """Let modules in a folder ask here."""
    vars(builtins).update({_FORMATTED: formatted, _NUMBER: number})
    sys.meta_path.insert(0, _Beside(folder))


def run(script: str) -> None:
    """Run a script as the main module."""
    module = ModuleType("__main__")
    module.__file__ = script
    vars(module)["__builtins__"] = builtins
    before = sys.modules["__main__"]
    sys.modules["__main__"] = module
    try:
        exec(code_of(Path(script).read_bytes(), script), vars(module))
    finally:
        sys.modules["__main__"] = before
