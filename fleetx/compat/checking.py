"""Whether what a script uses of Paddle is covered: the tables themselves are asked."""

import argparse
import importlib
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast, get_type_hints

from typing_extensions import override

from fleetx.compat import imports
from fleetx.compat.uses import Call, Use, parse, uses
from fleetx.near_names import near_names

UNKNOWN = object()
"""What cannot be told without running the script; nothing is said against it."""


ANYTHING = {Any, object, type(None), argparse.Namespace}
"""Annotations that do not say which attributes there are."""


@dataclass
class Problem:
    """Something that will not work, and where."""

    line: int
    text: str


@dataclass
class Verdict:
    """A name that a script uses, and whether it is covered."""

    name: str
    lines: list[int]
    covered: bool
    problems: list[Problem]


@dataclass
class Report:
    """What one script uses."""

    file: str
    names: list[Verdict]
    error: str = ""
    """Why the script could not be read."""

    @property
    def fine(self) -> bool:
        """Whether nothing is missing."""
        return not self.error and not any(verdict.problems for verdict in self.names)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "fine": self.fine}


class Missing(Exception):
    """A name is not covered."""


def check(file: str | Path) -> Report:
    """What a script uses of Paddle, and what of it is covered; nothing of it is run."""
    return check_text(Path(file).read_text(encoding="utf-8"), str(file))


def check_text(text: str, file: str = "<script>") -> Report:
    """The same of a text."""
    try:
        tree = parse(text, file)
    except SyntaxError as error:
        return Report(file, [], str(error))
    with served():
        return Report(file, sorted(_verdicts(uses(tree, _listed)), key=_place))


@contextmanager
def served() -> Iterator[None]:
    """Let names be looked up as a script would, for a while."""
    if imports.installed():
        yield
        return
    imports.install()
    try:
        yield
    finally:
        imports.uninstall()


def resolve(name: str) -> Any:
    """What a name stands for; ``paddle.fluid.Executor().run`` is a method of what a call returns.

    Raises:
        Missing: it is not covered.
    """
    head, *rest = name.split("()")
    found = _resolve_plain(head)
    for part in rest:
        found = _returned(found)
        for attribute in part.split(".")[1:]:
            if found is UNKNOWN:
                return UNKNOWN
            found = _of_object(found, attribute)
    return found


def _resolve_plain(name: str) -> Any:
    top, *parts = name.split(".")
    found: Any = _module(top)
    if found is None:
        raise Missing(f"there is no module {top!r} here.")
    path = top
    for part in parts:
        try:
            inner = getattr(found, part)
        except (AttributeError, ImportError):
            inner = _module(f"{path}.{part}") if inspect.ismodule(found) else None
            if inner is None:
                raise Missing(_Nearest(path, part, dir(found))) from None
        except Exception:
            return UNKNOWN  # it is there, and needs a job or a program to say more
        found, path = inner, f"{path}.{part}"
    return found


def _module(name: str) -> Any:
    known = name in _modules() or name.partition(".")[0] not in imports.SERVED
    try:
        return importlib.import_module(name) if known else None
    except ModuleNotFoundError:
        return None


@cache
def _modules() -> frozenset[str]:
    return frozenset(imports.modules())


class _Nearest:
    """The words about a missing name; looking for the nearest one takes its time."""

    def __init__(self, path: str, name: str, known: Sequence[str]) -> None:
        self._path, self._name = path, name
        self._known = [n for n in known if not n.startswith("_")]

    @override
    def __str__(self) -> str:
        near = near_names(self._name, self._known, most=1)
        told = f"{self._path} has no {self._name!r} here"
        if not near:
            return f"{told}, and none is near it."
        return f"{told}; the nearest name that is covered is {near[0]!r}."


def _returned(found: Any) -> Any:
    """What a call returns: a class for its object, a function's annotation where it has one."""
    if inspect.isclass(found):
        return found
    try:
        hint = get_type_hints(found).get("return")
    except Exception:
        return UNKNOWN  # names for type checkers alone, and things without hints
    return hint if inspect.isclass(hint) and hint not in ANYTHING else UNKNOWN


def _of_object(kind: Any, attribute: str) -> Any:
    if not inspect.isclass(kind) or attribute.startswith("_"):
        return UNKNOWN
    if hasattr(kind, attribute):
        found = inspect.getattr_static(kind, attribute)
        return found if inspect.isfunction(found) else UNKNOWN
    inside = _named_inside(cast(Any, kind))
    if "__getattr__" in dir(kind) or attribute in inside:
        return UNKNOWN
    raise Missing(_Nearest(f"{kind.__name__}()", attribute, [*dir(kind), *inside]))


@cache
def _named_inside(kind: Any) -> frozenset[str]:
    """Attributes that a class declares, or that its methods name."""
    found: set[str] = set()
    for base in inspect.getmro(kind)[:-1]:
        found |= {*vars(base).get("__annotations__", {})}
        codes = (getattr(member, "__code__", None) for member in vars(base).values())
        found |= {name for code in codes if code for name in code.co_names}
    return frozenset(found)


def _listed(module: str) -> list[str]:
    try:
        return [name for name in dir(resolve(module)) if not name.startswith("_")]
    except Missing:
        return []


def _place(verdict: Verdict) -> tuple[int, str]:
    return verdict.lines[0], verdict.name


def _verdicts(found: Sequence[Use]) -> Iterator[Verdict]:
    missing: list[str] = []
    for use in sorted(found, key=lambda use: use.name.count("()")):
        if any(use.name.startswith(f"{name}()") for name in missing):
            continue  # said of the thing itself
        verdict = _verdict(use)
        if not verdict.covered:
            missing.append(use.name)
        yield verdict


def _verdict(use: Use) -> Verdict:
    try:
        found = resolve(use.name)
    except Missing as missing:
        return Verdict(use.name, use.lines, False, [Problem(use.lines[0], str(missing))])
    problems = [p for call in use.calls for p in _wrong(use.name, found, call)]
    return Verdict(use.name, use.lines, True, problems)


def signature(found: Any, *, method: bool = False) -> inspect.Signature | None:
    """The arguments that something takes, if that can be known."""
    try:
        taken = inspect.signature(found)
    except (ValueError, TypeError):
        return None
    own = [*taken.parameters.values()][1:] if method else [*taken.parameters.values()]
    return taken.replace(parameters=own)


def not_taken(taken: inspect.Signature, keywords: Sequence[str]) -> list[str]:
    """Keywords that are not among the arguments."""
    kinds = [p.kind for p in taken.parameters.values()]
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return []
    named = [n for n, p in taken.parameters.items() if p.kind is not p.POSITIONAL_ONLY]
    return [keyword for keyword in keywords if keyword not in named]


def most_positional(taken: inspect.Signature) -> float:
    """How many arguments may stand without their names."""
    kinds = [p.kind for p in taken.parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return float("inf")
    placed = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    return sum(kind in placed for kind in kinds)


def _wrong(name: str, found: Any, call: Call) -> Iterator[Problem]:
    if found is UNKNOWN or not callable(found):
        return
    taken = signature(found, method="()" in name and inspect.isfunction(found))
    if taken is None:
        return
    for keyword in not_taken(taken, call.keywords):
        near = near_names(keyword, taken.parameters, most=1)
        hint = f"; the nearest that it takes is {near[0]!r}" if near else ""
        yield Problem(call.line, f"{name} does not take {keyword!r} here{hint}.")
    if not call.open and call.positional > (most := most_positional(taken)):
        yield Problem(
            call.line, f"{name} takes {most} arguments without a name, not {call.positional}."
        )
