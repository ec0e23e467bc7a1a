"""Lines outside of calls of modules that choose by the mode of one, found in their source.

What they chose is recorded like everything else, and a clone for tests cannot run them again. Code
without a source, such as that of an interactive session, tells nothing.
"""

import ast
import itertools
import linecache
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType
from typing import Any

from torch import nn

from fleetx.record.source_lines import OURS

Extent = tuple[tuple[int, int], tuple[int, int]]
"""Where code begins and ends: lines, and places in them."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_TAKING = (ast.Call, ast.BinOp, ast.Compare)


@dataclass(frozen=True)
class _Ask:
    """A place of some code that reads an attribute ``training``."""

    line: int
    function: int
    """The line in which the function begins that it belongs to; 0 at the top."""
    taker: Extent | None
    """The innermost call or operator that is given it."""
    owner: tuple[str, ...]
    """Names that lead to whose it is; empty where an expression does."""
    chosen: tuple[Extent, ...]
    """What runs by the choice, if it decides a branch."""


def choosing_line() -> str | None:
    """The line of the running code that chooses by a module in training mode, if there is one."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if "training" in frame.f_code.co_names and (line := _chosen(frame)) is not None:
            return f"{frame.f_code.co_filename}:{line}"
        frame = frame.f_back
    return None


def handing_line() -> str | None:
    """The same for an expression that hands the mode on, or a branch outside of methods."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if "training" in code.co_names and not code.co_filename.startswith(OURS):
            running = _running(frame)
            for ask in _asks(code.co_filename):
                if _decides(ask, running) and _trains(ask, frame):
                    return f"{code.co_filename}:{ask.line}"
        frame = frame.f_back
    return None


def _chosen(frame: FrameType) -> int | None:
    """Where a method that runs outside of a call of its module branches by its mode."""
    owner, code = frame.f_locals.get("self"), frame.f_code
    if isinstance(owner, nn.Module) and owner.training:
        own = (ask for ask in _asks(code.co_filename) if ask.function == code.co_firstlineno)
        return next((ask.line for ask in own if ask.chosen), None)
    return None


def _decides(ask: _Ask, running: Extent) -> bool:
    """Whether what runs now was given the mode, or was chosen by it."""
    within = (one[0] <= running[0] and running[1] <= one[1] for one in ask.chosen)
    return ask.taker == running or any(within)


def _running(frame: FrameType) -> Extent:
    line, last, column, end = _positions(frame.f_code)[frame.f_lasti // 2]
    return (line or 0, column or 0), (last or 0, end or 0)


@cache
def _positions(code: CodeType) -> list[tuple[int | None, ...]]:
    return list(code.co_positions())


def _trains(ask: _Ask, frame: FrameType) -> bool:
    """Whether it is the mode of a module that trains; what nobody can tell may be one."""
    if not ask.owner:
        return True
    first, *rest = ask.owner
    found: Any = frame.f_locals.get(first, frame.f_globals.get(first))
    for name in rest:
        found = getattr(found, name, None)
    return isinstance(found, nn.Module) and found.training


@cache
def _asks(file: str) -> tuple[_Ask, ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # not Python, such as the cell of a notebook with commands
        return ()
    return tuple(_found(tree, []))


def _found(node: ast.AST, around: list[ast.AST]) -> Iterator[_Ask]:
    """The asks below a node, given what is around it, the outermost first."""
    match node:
        case ast.Attribute(attr="training", ctx=ast.Load()):
            yield _ask(node, around)
    for child in ast.iter_child_nodes(node):
        yield from _found(child, [*around, node])


def _ask(node: ast.Attribute, around: Sequence[ast.AST]) -> _Ask:
    functions = [at for at, outer in enumerate(around) if isinstance(outer, _FUNCTIONS)]
    inside = around[functions[-1] + 1 :] if functions else around
    takers = [outer for outer in inside if isinstance(outer, _TAKING)]
    return _Ask(
        line=node.lineno,
        function=_first_line(around[functions[-1]]) if functions else 0,
        taker=_extent(takers[-1]) if takers else None,
        owner=_owner(node.value),
        chosen=tuple(_extent(part) for part in _parts_chosen([*inside, node])),
    )


def _parts_chosen(path: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """What runs or does not by a choice that asks at the end of the path."""
    for outer, inner in itertools.pairwise(path):
        if isinstance(outer, ast.If | ast.While) and inner is outer.test:
            yield from (*outer.body, *outer.orelse)
        elif isinstance(outer, ast.IfExp) and inner is outer.test:
            yield from (outer.body, outer.orelse)
        elif isinstance(outer, ast.BoolOp):
            yield from outer.values[1 + [*outer.values].index(inner) :]  # type: ignore[arg-type]


def _first_line(function: ast.AST) -> int:
    """As code objects count it: with decorators."""
    decorators = getattr(function, "decorator_list", [])
    return min(getattr(node, "lineno", 0) for node in (function, *decorators))


def _extent(node: ast.AST) -> Extent:
    at: Any = node
    return (at.lineno, at.col_offset), (at.end_lineno, at.end_col_offset)


def _owner(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.Attribute):
        before = _owner(node.value)
        return (*before, node.attr) if before else ()
    return (node.id,) if isinstance(node, ast.Name) else ()
