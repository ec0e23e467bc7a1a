"""``fleetx compat port``: the native version of what can be moved, written into the old text."""

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

from fleetx.compat.port_imports import binds, import_of, imported, of_paddle, taken
from fleetx.compat.ported import HEADS, Rule, rule_of
from fleetx.compat.uses import parse, paths

MARK = "# fleetx port:"
"""Begins the comment above a statement of which something was left."""


@dataclass(frozen=True)
class Edit:
    """Characters from one place to another, and what stands there instead."""

    start: int
    end: int
    text: str


class CannotPort(Exception):
    """A call has something in it that has no native form."""


@dataclass
class Ported:
    """A script after it was moved."""

    text: str
    moved: int
    left: list[str] = field(default_factory=list)
    """Why something was left, each with its line in the old script."""

    @property
    def summary(self) -> str:
        """In one line."""
        return f"{self.moved} uses of Paddle moved, {len(self.left)} left and marked"


def port(text: str, file: str = "<script>") -> Ported:
    """The native version of what can be moved; the rest is left, under a comment that says why."""
    return _Porter(text, file).ported()


def diff(before: str, after: str, file: str) -> str:
    """What changed, as a unified diff."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), file, f"{file} (native)"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


class _Porter:
    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._tree = parse(text, file)
        self._lines = text.splitlines(keepends=True)
        self._begins = [0]
        for line in self._lines:
            self._begins.append(self._begins[-1] + len(line))
        self._paths = paths(self._tree)
        self._edits: list[Edit] = []
        self._heads: set[str] = set()
        self._marks: dict[int, list[str]] = {}
        self._left: list[str] = []
        self._taken = taken(self._tree)
        self._imported = imported(self._tree)
        self._done: set[ast.AST] = set()
        """Expressions that were moved with the call around them."""
        self._gone: list[Edit] = []
        """Statements that go when nothing of Paddle is left, such as ``paddle.enable_static()``."""
        self._moved = 0

    def ported(self) -> Ported:
        for statement in self._tree.body:
            self._statement(statement)
        if not self._left:
            self._edits += self._gone
            self._moved += len(self._gone)
        self._imports()
        return Ported(self._written(), self._moved, self._left)

    # One statement after the other, so that a comment stands above what it is about.
    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            return
        if self._is_gone(node):
            return
        for child in ast.iter_child_nodes(node):
            self._inside(child, node)

    def _inside(self, node: ast.AST, statement: ast.stmt) -> None:
        if isinstance(node, ast.stmt):
            self._statement(node)
            return
        if isinstance(node, ast.Call) and self._named(node.func):
            self._try(node, statement)
            for part in [*node.args, *(k.value for k in node.keywords)]:
                if part not in self._done:
                    self._inside(part, statement)
            return
        if isinstance(node, ast.Attribute | ast.Name) and self._named(node):
            self._try(node, statement)
            return
        for child in ast.iter_child_nodes(node):
            self._inside(child, statement)

    def _named(self, node: ast.AST) -> str:
        """The plain name of Paddle that an expression is; methods of objects are not one."""
        path = self._paths.get(node, "")
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        imported = isinstance(root, ast.Name) and root.id in self._imported
        if "()" in path or not imported or isinstance(getattr(node, "ctx", None), ast.Store):
            return ""  # a variable of the script keeps its name
        return path

    def _is_gone(self, node: ast.stmt) -> bool:
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
            return False
        rule = rule_of(self._named(node.value.func))
        if rule is None or not rule.gone:
            return False
        start, end = self._begins[node.lineno - 1], self._begins[node.end_lineno or node.lineno]
        alone = self._text[start:end].strip() == ast.get_source_segment(self._text, node)
        whole = (start, end) if alone and node.col_offset == 0 else self._span(node)
        self._gone.append(Edit(*whole, "" if whole[0] == start and alone else "pass"))
        return True

    def _try(self, node: ast.expr, statement: ast.stmt) -> None:
        call = node if isinstance(node, ast.Call) else None
        name = self._named(call.func if call else node)
        try:
            rule = rule_of(name)
            if rule is None or rule.gone:
                raise CannotPort("the table has no native form of it")
            to = _native(rule, call)
            if (head := to.partition(".")[0]) in self._taken:
                raise CannotPort(f"the script has another {head!r}, which {to} would need")
            edits = list(self._call(call, rule)) if call else []
        except CannotPort as why:
            self._leave(name, node, statement, str(why))
            return
        target = call.func if call else node
        self._edits += [Edit(*self._span(target), to), *edits]
        self._heads |= {part.partition(".")[0] for part in (to, rule.first) if part}
        self._heads |= {"torch"} if any("torch." in edit.text for edit in edits) else set()
        self._moved += 1

    def _leave(self, name: str, node: ast.expr, statement: ast.stmt, why: str) -> None:
        self._left.append(f"line {node.lineno}: {name}: {why}")
        told = f"{MARK} {name} is left: {why}."
        marks = self._marks.setdefault(statement.lineno, [])
        if told not in marks:
            marks.append(told)

    def _call(self, call: ast.Call, rule: Rule) -> Iterator[Edit]:
        if not rule.order and not rule.first:
            return  # the same arguments
        if any(isinstance(a, ast.Starred) for a in call.args) or any(
            k.arg is None for k in call.keywords
        ):
            raise CannotPort("it is called with *arguments, whose names are not known here")
        given = dict(zip(rule.order, call.args, strict=False))
        if len(given) < len(call.args):
            raise CannotPort("it has more arguments without a name than the table knows")
        named = {cast(str, k.arg): k for k in call.keywords}
        _check_names(rule, {**given, **{n: k.value for n, k in named.items()}})
        yield from self._positional(call, rule, given)
        for name, keyword in named.items():
            yield from self._keyword(call, rule, name, keyword)
        yield from self._added(call, rule, {*given, *named})

    def _positional(self, call: ast.Call, rule: Rule, given: dict[str, ast.expr]) -> Iterator[Edit]:
        dropped = False
        for place, (name, value) in enumerate(given.items()):
            start, _ = self._span(value)
            native = rule.names.get(name, name)
            if not native:
                dropped = True
                yield self._without(call, value, value)
            elif dropped or (place and native != "shape") or rule.first:
                yield Edit(start, start, f"{native}=")
            yield from self._value(call, rule, name, value)

    def _keyword(
        self, call: ast.Call, rule: Rule, name: str, keyword: ast.keyword
    ) -> Iterator[Edit]:
        start, _ = self._span(keyword)
        native = rule.names[name]
        if not native or name == "append_batch_size":
            yield self._without(call, keyword, keyword.value)
            return
        if native != name:
            yield Edit(start, start + len(name), native)
        yield from self._value(call, rule, name, keyword.value)

    def _value(self, call: ast.Call, rule: Rule, name: str, value: ast.expr) -> Iterator[Edit]:
        if name == rule.shape:
            yield from self._batch(call, value)
        if name in {"regularization", "weight_decay"}:
            yield from self._decay(value)

    def _batch(self, call: ast.Call, shape: ast.expr) -> Iterator[Edit]:
        """``fluid.layers.data`` adds the size of the batch itself."""
        asked = [k.value for k in call.keywords if k.arg == "append_batch_size"]
        if asked and isinstance(asked[0], ast.Constant) and asked[0].value is False:
            return
        start, end = self._span(shape)
        if isinstance(shape, ast.List):
            yield Edit(start + 1, start + 1, "None, ")
        else:
            yield Edit(start, start, "[None, *")
            yield Edit(end, end, "]")

    def _decay(self, value: ast.expr) -> Iterator[Edit]:
        """``L2Decay(0.1)`` is a number of the optimizer."""
        if isinstance(value, ast.Constant):
            return
        name = self._paths.get(value, "")
        arguments = (
            [*value.args, *(k.value for k in value.keywords)] if isinstance(value, ast.Call) else []
        )
        if "L2Decay" not in name or len(arguments) != 1:
            raise CannotPort("its regularization is no L2Decay(…)")
        start, end = self._span(value)
        self._done.add(value)
        self._moved += 1
        yield Edit(start, end, ast.get_source_segment(self._text, arguments[0]) or "")

    def _added(self, call: ast.Call, rule: Rule, given: set[str]) -> Iterator[Edit]:
        opening = self._text.index("(", self._span(call.func)[1]) + 1
        empty = not call.args and not call.keywords
        if rule.first and not _eager(call):
            yield Edit(opening, opening, rule.first + ("" if empty else ", "))
        more = [text for text, instead in rule.unless.items() if not given & {*instead}]
        if more:
            end = self._span(call)[1] - 1
            comma = "" if empty or self._text[:end].rstrip().endswith(",") else ", "
            yield Edit(end, end, comma + ", ".join(more))

    def _without(self, call: ast.Call, part: ast.AST, value: ast.AST) -> Edit:
        """Take an argument away, with the comma that follows or the one before."""
        start, end = self._span(part)[0], self._span(value)[1]
        all_parts = sorted(self._span(a) for a in [*call.args, *call.keywords])
        after = [s for s, _ in all_parts if s > start]
        if after:
            return Edit(start, after[0], "")
        before = [e for s, e in all_parts if s < start]
        return Edit(before[-1] if before else start, end, "")

    def _imports(self) -> None:
        statements = [
            node
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Import | ast.ImportFrom) and of_paddle(node)
        ]
        names = [node for node in ast.walk(self._tree) if isinstance(node, ast.Name)]
        used = {node.id for node in names if self._stays(node)}
        lines = sorted(
            {HEADS[h] for h in self._heads if h in HEADS}, key=lambda i: (i[0] == "f", i)
        )
        if self._left and "static" in self._heads and not self._gone:
            # What is left must still know that a program is written.
            lines += ["import paddle", "paddle.enable_static()"]
        for number, node in enumerate(statements):
            kept = [a for a in node.names if binds(a) in used or a.name == "*"]
            text = [import_of(node, kept)] if kept else []
            text += lines if not number else []
            indent = " " * node.col_offset
            start, end = self._span(node)
            if not text:
                start, end = self._whole_line(start, end)
                text = ["" if not node.col_offset else f"{indent}pass\n"]
            self._edits.append(Edit(start, end, f"\n{indent}".join(text)))

    def _whole_line(self, start: int, end: int) -> tuple[int, int]:
        begin = self._text.rfind("\n", 0, start) + 1
        after = self._text.find("\n", end)
        return begin, len(self._text) if after < 0 else after + 1

    def _stays(self, node: ast.Name) -> bool:
        """Whether a name of the script still stands in it."""
        start, end = self._span(node)
        return not any(edit.start <= start and end <= edit.end for edit in self._edits)

    def _span(self, node: ast.AST) -> tuple[int, int]:
        at = cast(ast.expr, node)
        return self._offset(at.lineno, at.col_offset), self._offset(
            at.end_lineno or at.lineno, at.end_col_offset or 0
        )

    def _offset(self, line: int, column: int) -> int:
        # Columns of ``ast`` count bytes.
        before = (
            self._lines[line - 1].encode()[:column].decode() if line <= len(self._lines) else ""
        )
        return self._begins[line - 1] + len(before)

    def _written(self) -> str:
        for line, marks in self._marks.items():
            begin = self._begins[line - 1]
            text = self._lines[line - 1]
            indent = text[: len(text) - len(text.lstrip())]
            self._edits.append(Edit(begin, begin, "".join(f"{indent}{m}\n" for m in marks)))
        text = self._text
        for edit in sorted(_outermost(self._edits), key=lambda e: (e.start, e.end), reverse=True):
            text = text[: edit.start] + edit.text + text[edit.end :]
        return text


def _outermost(edits: list[Edit]) -> list[Edit]:
    """Without what stands inside of a larger edit."""
    large = [edit for edit in edits if edit.end > edit.start]
    return [
        edit
        for edit in dict.fromkeys(edits)
        if not any(
            other is not edit
            and other.start <= edit.start
            and edit.end <= other.end
            and (edit.end - edit.start) < (other.end - other.start)
            and not (edit.start == edit.end and edit.start in {other.start, other.end})
            for other in large
        )
    ]


def _check_names(rule: Rule, given: dict[str, ast.expr]) -> None:
    unknown = [name for name in given if name not in rule.names]
    if unknown:
        raise CannotPort(f"the table has no native form of its {', '.join(unknown)}")
    if rule.to == "torch.reshape" and _has_zero(given.get("shape")):
        raise CannotPort("a 0 in its shape keeps a size, which torch says otherwise")
    plain = ("param_attr", "bias_attr", "weight_attr", "grad_clip", "beta1", "beta2")
    for name, value in given.items():
        is_none = isinstance(value, ast.Constant) and value.value in {None, False}
        if name in plain and not is_none:
            raise CannotPort(f"its {name} has no native form in the table")


def _has_zero(shape: ast.expr | None) -> bool:
    """Whether a shape has a 0, or may have one."""
    if not isinstance(shape, ast.List | ast.Tuple):
        return True
    return any(isinstance(size, ast.Constant) and size.value == 0 for size in shape.elts)


def _native(rule: Rule, call: ast.Call | None) -> str:
    """An optimizer that is given the parameters of a model is one of torch."""
    return rule.first if rule.first and call and _eager(call) else rule.to


def _eager(call: ast.Call) -> bool:
    return any(k.arg == "parameters" for k in call.keywords)
