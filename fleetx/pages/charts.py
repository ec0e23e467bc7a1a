"""Small charts as SVG, in the colours of the page."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fleetx.pages.parts import Part, part

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 230, 50, 38, 20
ROOM = WIDTH - LEFT - 10
PARTS = 40
BAR, GAP = 22, 7
COLOURS = 9


@dataclass(frozen=True)
class _Across:
    """Where values stand between the left and the right end."""

    low: float
    high: float
    least: float
    """Of a logarithmic scale the place of zero; 0 for an even one."""
    from_zero: bool = False

    @staticmethod
    def over(values: Sequence[float], logarithmic: bool) -> "_Across":
        # Zero has no logarithm; it stands one magnitude below the least of the others.
        least = min((v for v in values if v > 0), default=1e-12) / 10 if logarithmic else 0.0
        places = [_Across(0, 1, least).place(value) for value in values]
        low, high = min(places), max(places)
        if high <= low:
            low, high = low - 0.5, low + 0.5
        return _Across(low, high, least, logarithmic and min(values) <= 0)

    def place(self, value: float) -> float:
        return math.log10(max(value, self.least)) if self.least else value

    def value(self, share: float) -> float:
        place = self.low + share * (self.high - self.low)
        return 10.0**place if self.least else place

    def shown(self, share: float) -> float:
        return 0.0 if self.from_zero and share == 0 else self.value(share)

    def share(self, value: float) -> float:
        return (self.place(value) - self.low) / (self.high - self.low)

    def x(self, share: float) -> float:
        return LEFT + share * ROOM


def histogram(
    values: Sequence[float],
    *,
    label: str,
    unit: str = "inputs",
    limit: float | None = None,
    logarithmic: bool = False,
) -> Part:
    """How many values lie where; those above the limit have another colour.

    Args:
        values: those that are not finite are left out, and counted below.
        label: what the values are.
        unit: what has one of them.
        limit: a line that values should not pass.
        logarithmic: whether magnitudes are equally wide, for values that span several.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return Part(f'<p class="soft">No value is finite: {part(label)}.</p>')
    across = _Across.over([*finite, *([] if limit is None else [limit])], logarithmic)
    counts = [0] * PARTS
    for value in finite:
        counts[min(PARTS - 1, int(across.share(value) * PARTS))] += 1
    ends = ((0.0, "start"), (0.5, "middle"), (1.0, "end"))
    lines = [
        _frame(max(counts), unit),
        *_columns(counts, across, limit),
        *(_text(across.x(at), HEIGHT - 23, f"{across.shown(at):.3g}", to) for at, to in ends),
        *([] if limit is None else _line(across.x(across.share(limit)), f"limit {limit:.3g}")),
        _text(WIDTH - 10, HEIGHT - 6, label, "end"),
    ]
    left = len(values) - len(finite)
    more = f'<p class="soft">{left} that are not finite are not drawn.</p>' if left else ""
    return Part(_svg(HEIGHT, lines) + more)


def _columns(counts: Sequence[int], across: _Across, limit: float | None) -> Iterator[str]:
    step = ROOM / PARTS
    for at, count in enumerate(counts):
        if not count:
            continue
        middle = across.value((at + 0.5) / PARTS)
        kind = "good" if limit is None or middle <= limit else "bad"
        tall = max(1.5, count / max(counts) * (HEIGHT - TOP - BOTTOM))
        yield (
            f'<rect class="{kind}" x="{LEFT + at * step + 1:.1f}" '
            f'y="{HEIGHT - BOTTOM - tall:.1f}" width="{step - 2:.1f}" height="{tall:.1f}" rx="2">'
            f"<title>{count} around {middle:.3g}</title></rect>"
        )


def _line(x: float, said: str) -> list[str]:
    anchor, shift = ("end", -5) if x > WIDTH / 2 else ("start", 5)
    line = f'<path class="limit" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
    return [line, _text(x + shift, TOP + 9, said, anchor)]


def bars(
    rows: Mapping[str, Mapping[str, float]],
    *,
    unit: str,
    words: Mapping[str, str],
    limit: tuple[float, str] | None = None,
) -> Part:
    """Stacked bars, one below the other.

    Args:
        rows: name of a bar -> name of a part -> how long it is.
        unit: of the numbers.
        words: name of a part -> what people call it.
        limit: a line across all bars, and its name.
    """
    names = list(dict.fromkeys(name for row in rows.values() for name in row if row[name]))
    longest = max([*(sum(row.values()) for row in rows.values()), limit[0] if limit else 0.0])
    longest = longest or 1.0
    bottom = TOP + len(rows) * (BAR + GAP)
    lines: list[str] = []
    for at, (name, row) in enumerate(rows.items()):
        y, x = TOP + at * (BAR + GAP), float(LEFT)
        lines.append(_text(LEFT - 8, y + 15, name, "end"))
        for which, each in enumerate(names):
            width = row.get(each, 0.0) / longest * ROOM
            said = f"{words.get(each, each)}: {row.get(each, 0.0):.4g} {unit}"
            lines.append(rectangle((x, y), (width, BAR), colour(which), said))
            x += width
    lines.append(f'<path class="axis" d="M{LEFT} {bottom}H{WIDTH - 10}"/>')
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        shown = f"{_short(longest * share)} {unit}"
        lines.append(_text(LEFT + share * ROOM, bottom + 15, shown, anchor))
    if limit is not None:
        x = LEFT + limit[0] / longest * ROOM
        lines.append(f'<path class="limit" d="M{x:.1f} {TOP - 6}V{bottom}"/>')
        lines.append(_text(x - 5, TOP - 3, limit[1], "end"))
    return Part(_svg(bottom + 22, lines) + _legend([words.get(name, name) for name in names]))


def timeline(
    rows: Mapping[str, Sequence[tuple[float, float, int]]], *, words: Sequence[str]
) -> Part:
    """Who does what when: turns of each row, one below the other.

    Args:
        rows: name of a row -> its turns: begin, length, and which of the kinds.
        words: what people call the kinds.
    """
    longest = max(begin + length for turns in rows.values() for begin, length, _ in turns)
    bottom = TOP + len(rows) * (BAR + GAP)
    lines: list[str] = []
    for at, (name, turns) in enumerate(rows.items()):
        y = TOP + at * (BAR + GAP)
        lines.append(_text(LEFT - 4, y + 15, name, "end"))
        for begin, length, kind in turns:
            x, width = LEFT + begin / longest * ROOM, length / longest * ROOM
            lines.append(rectangle((x, y), (width - 1, BAR), colour(kind), words[kind]))
    return Part(_svg(bottom, lines) + _legend(words))


def colour(number: int) -> str:
    """One of the colours of the page, again and again."""
    return f"--c{number % COLOURS + 1}"


def rectangle(corner: tuple[float, float], sides: tuple[float, float], fill: str, said: str) -> str:
    """A box that says what it is when somebody points at it."""
    (x, y), (width, height) = corner, sides
    if width <= 0:
        return ""
    return (
        f'<rect style="fill:var({fill})" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}"><title>{part(said)}</title></rect>'
    )


def _legend(words: Sequence[str]) -> str:
    marks = (
        f'<span><i style="background:var({colour(at)})"></i>{part(word)}</span>'
        for at, word in enumerate(words)
    )
    return f'<div class="legend">{"".join(marks)}</div>'


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _svg(height: float, lines: Sequence[str]) -> str:
    return f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img">{"".join(lines)}</svg>'


def _frame(most: int, unit: str) -> str:
    return (
        f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - 10}"/>'
        f"{_text(LEFT - 6, TOP + 9, str(most), 'end')}"
        f"{_text(LEFT - 6, HEIGHT - BOTTOM, '0', 'end')}"
        f"{_text(LEFT - 4, TOP - 7, unit, 'start')}"
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{part(text)}</text>'
