"""Lines outside of calls of modules that choose by the mode of one, found in their code.

What they chose is recorded like everything else, and a clone for tests cannot run them again.
"""

import dis
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType
from typing import Any

from torch import nn

from fleetx.static.source_lines import OURS

_BETWEEN = frozenset({"CACHE", "COPY", "TO_BOOL", "UNARY_NOT"})
_NAMES = frozenset({"LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF"})
_TAKING = ("CALL", "BINARY_OP", "COMPARE_OP")
Extent = tuple[tuple[int, int], tuple[int, int]]
"""Where an expression begins and ends: lines, and places in them."""


@dataclass(frozen=True)
class _Ask:
    """A place of some code that reads an attribute ``training``."""

    line: int
    taker: Extent | None
    """The innermost call or operator that is given it."""
    owner: tuple[str, ...]
    """Names that lead to whose it is; empty where an expression does."""
    chosen: range
    """Offsets of the code that runs only in training, if a branch follows."""
    branch: bool


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
            for ask in _asks(code):
                if (_takes(ask, frame) or frame.f_lasti in ask.chosen) and _trains(ask, frame):
                    return f"{code.co_filename}:{ask.line}"
        frame = frame.f_back
    return None


def _chosen(frame: FrameType) -> int | None:
    """Where a method that runs outside of a call of its module branches by its mode."""
    owner = frame.f_locals.get("self")
    if isinstance(owner, nn.Module) and owner.training:
        return next((ask.line for ask in _asks(frame.f_code) if ask.branch), None)
    return None


def _takes(ask: _Ask, frame: FrameType) -> bool:
    """Whether what runs now was given the mode."""
    line, last, column, end = _positions(frame.f_code)[frame.f_lasti // 2]
    return ask.taker == ((line, column), (last, end))


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
def _positions(code: CodeType) -> list[tuple[Any, ...]]:
    return list(code.co_positions())


@cache
def _asks(code: CodeType) -> tuple[_Ask, ...]:
    return tuple(_found(list(dis.get_instructions(code))))


def _found(code: list[dis.Instruction]) -> Iterator[_Ask]:
    for at, instruction in enumerate(code):
        extent = _extent(instruction)
        reads = instruction.opname == "LOAD_ATTR" and instruction.argval == "training"
        if reads and extent is not None:
            jump = _jump(code, at)
            chosen = range(0) if jump is None else _taken(code, jump)
            taker = _taker(code, extent)
            yield _Ask(extent[0][0], taker, _owner(code, at), chosen, jump is not None)


def _extent(instruction: dis.Instruction) -> Extent | None:
    at = instruction.positions
    if at is None or at.lineno is None or at.end_lineno is None:
        return None
    return (at.lineno, at.col_offset or 0), (at.end_lineno, at.end_col_offset or 0)


def _taker(code: list[dis.Instruction], asked: Extent) -> Extent | None:
    """The smallest call or operator around an expression."""
    found: Extent | None = None
    for instruction in code:
        extent = _extent(instruction)
        if extent is None or not instruction.opname.startswith(_TAKING):
            continue
        around = extent[0] <= asked[0] and asked[1] <= extent[1]
        if around and (found is None or (found[0] <= extent[0] and extent[1] <= found[1])):
            found = extent
    return found


def _jump(code: list[dis.Instruction], at: int) -> int | None:
    """The branch that is decided by what was read here; an assertion is none."""
    for following in range(at + 1, len(code)):
        if code[following].opname not in _BETWEEN:
            asserts = code[following + 1].opname == "LOAD_ASSERTION_ERROR"
            return following if "JUMP" in code[following].opname and not asserts else None
    return None


def _taken(code: list[dis.Instruction], jump: int) -> range:
    """What runs by the choice: up to where the branch leads, and what is there instead of it."""
    begin, end = code[jump].offset, int(code[jump].argval)
    before = [one for one in code if one.offset < end]
    if before[-1].opname == "JUMP_FORWARD":
        end = int(before[-1].argval)
    return range(begin, max(begin, end))


def _owner(code: list[dis.Instruction], at: int) -> tuple[str, ...]:
    names: list[str] = []
    for instruction in reversed(code[:at]):
        if instruction.opname in _NAMES:
            return (instruction.argval, *reversed(names))
        if instruction.opname == "LOAD_ATTR":
            names.append(instruction.argval)
        elif instruction.opname != "CACHE":
            break
    return ()
