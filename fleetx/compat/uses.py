"""What a script uses of Paddle, read from its text: names, lines, keywords; nothing is run."""

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

TOPS = ("paddle", "paddlenlp", "fleetx")
"""Modules whose names are looked for."""

Scope = dict[str, str | None]
"""What names stand for: a dotted name, ``…()`` for what a call returns; None: something else."""


@dataclass(frozen=True)
class Call:
    """One call of a name."""

    line: int
    positional: int
    keywords: tuple[str, ...]
    open: bool
    """Whether it passes ``*args`` or ``**options`` as well."""


@dataclass
class Use:
    """A name, and where it stands."""

    name: str
    lines: list[int] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


class NotPython3(SyntaxError):
    """The script cannot be read by this Python."""


PYTHON_2 = {
    "Missing parentheses in call to": "print and exec are functions in Python 3",
    "multiple exception types must be parenthesized": "write `except Error as e`",
    "leading zeros in decimal integer": "write 0o777 for an octal number",
    "inconsistent use of tabs": "Python 3 does not mix tabs and spaces",
}
"""Beginning of an error -> what became of it in Python 3."""


def parse(text: str, file: str) -> ast.Module:
    """The tree of a script; a script of Python 2 is told as such, with its line."""
    try:
        return ast.parse(text, file)
    except SyntaxError as error:
        told = f"{file}:{error.lineno}: "
        for words, now in PYTHON_2.items():
            if words in error.msg:
                raise NotPython3(
                    f"{told}this is Python 2 ({error.msg}); {now}. Convert the script first, for "
                    "example with `python3.11 -m lib2to3 -w`."
                ) from None
        raise NotPython3(f"{told}{error.msg}.") from None


def uses(tree: ast.Module, listed: Callable[[str], Sequence[str]] = lambda _: ()) -> list[Use]:
    """Every name of Paddle in a script, in the order of its lines.

    Args:
        tree: the script.
        listed: the names of a module, for ``from module import *``.
    """
    reader = _Reader(listed)
    reader.read(tree.body, [{}])
    while reader.later:
        body, scopes = reader.later.pop(0)
        reader.read(body, scopes)
    return sorted(reader.found.values(), key=lambda use: (use.lines[0], use.name))


def paths(tree: ast.Module) -> dict[ast.AST, str]:
    """Expressions that stand for a name of Paddle -> that name."""
    reader = _Reader(lambda _: ())
    reader.read(tree.body, [{}])
    while reader.later:
        body, scopes = reader.later.pop(0)
        reader.read(body, scopes)
    return reader.nodes


class _Reader:
    def __init__(self, listed: Callable[[str], Sequence[str]]) -> None:
        self.found: dict[str, Use] = {}
        self.nodes: dict[ast.AST, str] = {}
        self.later: list[tuple[Sequence[ast.stmt], list[Scope]]] = []
        """Bodies of functions: they see what the whole file binds."""
        self._listed = listed

    def read(self, body: Sequence[ast.stmt], scopes: list[Scope]) -> None:
        for statement in body:
            self._statement(statement, scopes)

    def _statement(self, node: ast.stmt, scopes: list[Scope]) -> None:
        match node:
            case ast.Import():
                for alias in node.names:
                    self._import(alias, node.lineno, scopes)
            case ast.ImportFrom() if _ours(node.module or "") and not node.level:
                self._import_from(node, scopes)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, scopes)
            case ast.ClassDef():
                self._expressions([*node.bases, *node.decorator_list], scopes)
                scopes[-1][node.name] = None
                self.read(node.body, [*scopes, {}])
            case _:
                self._expressions(_own_expressions(node), scopes)
                for name, value in _bound(node):
                    scopes[-1][name] = self._path(value, scopes) if value else None
                for inner in _bodies(node):
                    self.read(inner, scopes)

    def _import(self, alias: ast.alias, line: int, scopes: list[Scope]) -> None:
        if not _ours(alias.name):
            scopes[-1][alias.asname or alias.name.partition(".")[0]] = None
            return
        self._use(alias.name, line)
        if alias.asname:
            scopes[-1][alias.asname] = alias.name
        else:
            top = alias.name.partition(".")[0]
            scopes[-1][top] = top

    def _import_from(self, node: ast.ImportFrom, scopes: list[Scope]) -> None:
        module = node.module or ""
        for alias in node.names:
            if alias.name == "*":
                self._use(module, node.lineno)
                scopes[-1].update({name: f"{module}.{name}" for name in self._listed(module)})
            else:
                self._use(f"{module}.{alias.name}", node.lineno)
                scopes[-1][alias.asname or alias.name] = f"{module}.{alias.name}"

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scopes: list[Scope]) -> None:
        given = node.args
        defaults = [*given.defaults, *(d for d in given.kw_defaults if d)]
        self._expressions([*node.decorator_list, *defaults], scopes)
        scopes[-1][node.name] = None
        names = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        names += [name for name in (given.vararg, given.kwarg) if name]
        self.later.append((node.body, [*scopes, {name.arg: None for name in names}]))

    def _expressions(self, nodes: Sequence[ast.expr], scopes: list[Scope]) -> None:
        for node in nodes:
            self._expression(node, scopes)

    def _expression(self, node: ast.expr, scopes: list[Scope]) -> None:
        if isinstance(node, ast.Attribute | ast.Name) and (path := self._path(node, scopes)):
            self.nodes[node] = path
            if not path.endswith("()"):
                self._use(path, node.lineno)
            if "()" not in path:
                return  # what stands before the last dot is no use of its own
        if isinstance(node, ast.Call) and (path := self._path(node.func, scopes)):
            self.nodes[node] = f"{path}()"
            if not path.endswith("()"):
                self._use(path, node.lineno).calls.append(_call(node))
        self._expressions(_inside(node), [*scopes, _inner_names(node)])

    def _path(self, node: ast.expr, scopes: list[Scope]) -> str | None:
        match node:
            case ast.Name():
                return next((scope[node.id] for scope in scopes[::-1] if node.id in scope), None)
            case ast.Attribute():
                inner = self._path(node.value, scopes)
                return inner and f"{inner}.{node.attr}"
            case ast.Call():
                inner = self._path(node.func, scopes)
                return inner and f"{inner}()"
        return None

    def _use(self, name: str, line: int) -> Use:
        use = self.found.setdefault(name, Use(name))
        if line not in use.lines:
            use.lines.append(line)
        return use


def _ours(module: str) -> bool:
    return module.partition(".")[0] in TOPS


def _call(node: ast.Call) -> Call:
    stars = any(isinstance(a, ast.Starred) for a in node.args)
    options = any(k.arg is None for k in node.keywords)
    names = tuple(k.arg for k in node.keywords if k.arg)
    return Call(node.lineno, len(node.args), names, stars or options)


def _inside(node: ast.expr) -> list[ast.expr]:
    """The expressions of an expression."""
    found: list[ast.expr] = []
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.expr():
                found.append(child)
            case ast.keyword():
                found.append(child.value)
            case ast.comprehension():
                found += [child.iter, *child.ifs]
    return found


def _inner_names(node: ast.expr) -> Scope:
    """Names that an expression binds for itself."""
    match node:
        case ast.Lambda():
            return {name.arg: None for name in [*node.args.args, *node.args.kwonlyargs]}
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            return {n: None for part in node.generators for n in _names(part.target)}
    return {}


def _own_expressions(node: ast.stmt) -> list[ast.expr]:
    """Expressions of a statement, without those of statements inside of it."""
    found = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            found.append(child)
        elif isinstance(child, ast.withitem):
            found.append(child.context_expr)
        elif isinstance(child, ast.ExceptHandler) and child.type:
            found.append(child.type)
    return found


def _bodies(node: ast.stmt) -> Iterator[Sequence[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(node, name, [])
    for handler in getattr(node, "handlers", []):
        yield handler.body


def _bound(node: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    """Names that a statement binds, and the expression where it is one."""
    match node:
        case ast.Assign():
            for target in node.targets:
                yield from _bound_to(target, node.value)
        case ast.AnnAssign():
            yield from _bound_to(node.target, node.value)
        case ast.For() | ast.AsyncFor() | ast.AugAssign():
            yield from _bound_to(node.target, None)
        case ast.With() | ast.AsyncWith():
            for item in node.items:
                if item.optional_vars:
                    yield from _bound_to(item.optional_vars, item.context_expr)


def _bound_to(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    else:
        yield from ((name, None) for name in _names(target))


def _names(target: ast.expr) -> list[str]:
    return [
        n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    ]
