"""Parts of pages: texts become HTML here, and nowhere else."""

import base64
import html
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

HOME = Path(__file__).parent


class Part(str):
    """A piece of HTML; a plain text is escaped before it becomes one."""

    __slots__ = ()


def part(given: str) -> Part:
    """What was given, escaped unless it is HTML already."""
    return given if isinstance(given, Part) else Part(html.escape(given))


def raw(text: str) -> Part:
    """HTML that another program wrote, such as a drawing, and that is known to be harmless."""
    return Part(text)


def together(parts: Iterable[str]) -> Part:
    """One after the other."""
    return Part("".join(part(each) for each in parts))


@cache
def style() -> str:
    """The stylesheet."""
    return (HOME / "style.css").read_text(encoding="utf-8")


def document(title: str, *parts: str) -> str:
    """A whole page, in one file."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{part(title)}</title>\n<style>\n{style()}</style>\n</head>\n"
        f"<body>\n<main>\n{together(parts)}\n</main>\n</body>\n</html>\n"
    )


def head(title: str, verdict: str = "", tone: str = "", below: str = "") -> Part:
    """What the page is about, how it came out, and a sentence below."""
    mark = badge(verdict, tone) if verdict else ""
    sentence = f'<div class="soft">{part(below)}</div>' if below else ""
    return Part(f'<header class="head"><h1>{part(title)}</h1>{mark}{sentence}</header>\n')


def badge(text: str, tone: str = "") -> Part:
    """A short word in a colour: good, warn, bad, accent, or none."""
    return Part(f'<span class="badge {tone}">{part(text)}</span>')


def card(title: str, *parts: str) -> Part:
    """A section with a heading."""
    return Part(f'<section class="card"><h2>{part(title)}</h2>{together(parts)}</section>\n')


def side_by_side(*cards: str) -> Part:
    """Cards in two columns, where the window is wide enough."""
    return Part(f'<div class="grid pair">{together(cards)}</div>\n')


def tiles(pairs: Iterable[tuple[str, str]]) -> Part:
    """Numbers at a glance, each with what it is."""
    each = (f'<div class="tile"><dt>{part(k)}</dt><dd>{part(v)}</dd></div>' for k, v in pairs)
    return Part(f'<dl class="tiles">{"".join(each)}</dl>\n')


def paragraph(text: str) -> Part:
    """A paragraph."""
    return Part(f"<p>{part(text)}</p>")


def note(text: str, tone: str = "") -> Part:
    """A paragraph that stands out."""
    return Part(f'<p class="note {tone}">{part(text)}</p>')


def preformatted(text: str) -> Part:
    """A text as a terminal shows it."""
    return Part(f"<pre>{part(text)}</pre>")


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()
) -> Part:
    """A table; the columns that are numbers stand to the right."""
    kinds = [' class="number"' if at in numbers else "" for at in range(len(columns))]
    top = "".join(f"<th{kind}>{part(name)}</th>" for name, kind in zip(columns, kinds, strict=True))
    lines = (
        f"<tr>{''.join(f'<td{k}>{part(cell)}</td>' for cell, k in zip(row, kinds, strict=True))}"
        "</tr>"
        for row in rows
    )
    body = "\n".join(lines)
    return Part(
        f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
        "</div>"
    )


def figure(png: bytes, *caption: str) -> Part:
    """A picture that lies inside of the page, with what it shows."""
    data = base64.b64encode(png).decode()
    words = "<br>".join(part(line) for line in caption)
    image = f'<img alt="" src="data:image/png;base64,{data}">'
    return Part(f"<figure>{image}<figcaption>{words}</figcaption></figure>")
