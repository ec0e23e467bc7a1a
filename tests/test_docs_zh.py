"""The Chinese pages keep step with the English ones in snippets, options, numbers and links."""

import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parent.parent
TRANSLATED = [
    "strategy.md",
    "migrating.md",
    *(f"strategies/{p.name}" for p in (ROOT / "docs/strategies").glob("*.md")),
]
CHINESE = {
    "README.zh.md": "README.md",
    **{f"docs/zh/{name}": f"docs/{name}" for name in TRANSLATED},
}
"""Chinese page -> the English page that it translates."""
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
GENERATED = re.compile(r"<!-- coverage -->.*?<!-- end of coverage -->", re.DOTALL)
HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`]+)`")


def prose(text: str) -> str:
    """A page without its blocks of code and without what a program writes into it."""
    return GENERATED.sub("", FENCED.sub("", text))


def sections(text: str) -> list[str]:
    """The text under each heading, with what is above the first."""
    return re.split(r"^#+ .*$", prose(text), flags=re.MULTILINE)


def named(text: str) -> set[str]:
    """Everything that is written as code."""
    return {" ".join(code.split()) for code in CODE.findall(text)}


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d(?:[\d.,]*\d)?", LINK.sub("", CODE.sub("", text))))


def cells(text: str) -> list[list[set[str]]]:
    """What is written as code in each cell of each row of the tables."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [[named(cell) for cell in row.strip("|").split("|")] for row in rows]


def items(text: str) -> list[str]:
    """The items of lists, without the marks."""
    found = re.findall(r"^(?:- |\d+\. )(.*(?:\n  .*)*)", text, re.MULTILINE)
    return [" ".join(item.split()) for item in found]


def slug(heading: str) -> str:
    """The anchor that a heading gets on GitHub and on the site."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def destination(link: str, page: str) -> tuple[str, str]:
    """Where a link leads: the English page, and which of its headings."""
    place, _, anchor = link.partition("#")
    path = (ROOT / page).parent.joinpath(place).resolve() if place else ROOT / page
    name = PurePosixPath(path.relative_to(ROOT)).as_posix() if ROOT in path.parents else place
    if not anchor or path.suffix != ".md" or not path.exists():
        return CHINESE.get(name, name), anchor
    anchors = [slug(title) for _, title in HEADING.findall(prose(path.read_text()))]
    assert anchor in anchors, f"{page} links to {link}; headings there are {anchors}"
    return CHINESE.get(name, name), str(anchors.index(anchor))


def differences(english: str, chinese: str) -> Iterator[str]:
    """In what two pages are out of step."""
    for one, other in zip_longest(FENCED.findall(english), FENCED.findall(chinese)):
        if one != other:
            yield f"block of code: {one}\nis: {other}"
    levels = [[level for level, _ in HEADING.findall(prose(text))] for text in (english, chinese)]
    if levels[0] != levels[1]:
        yield f"headings: {levels[0]}, not {levels[1]}"
        return
    for number, (one, other) in enumerate(
        zip(sections(english), sections(chinese), strict=True), start=0
    ):
        for what in _differences_of_a_section(one, other):
            yield f"section {number}: {what}"


def _differences_of_a_section(english: str, chinese: str) -> Iterator[str]:
    if missing := named(english) - named(chinese):
        yield f"not named: {sorted(missing)}"
    if more := named(chinese) - named(english):
        yield f"named in Chinese alone: {sorted(more)}"
    if lost := numbers(english) - numbers(chinese):
        yield f"numbers that are missing: {sorted(lost)}"
    for row, (one, other) in enumerate(zip_longest(cells(english), cells(chinese))):
        if one != other:
            yield f"row {row} of the tables names {one}, not {other}"
    if len(items(english)) != len(items(chinese)):
        yield f"{len(items(english))} items of lists, not {len(items(chinese))}"
    if english.count("**") != chinese.count("**"):
        yield "emphasis differs"


def test_every_chinese_page_translates_one() -> None:
    there = {page.relative_to(ROOT).as_posix() for page in (ROOT / "docs/zh").rglob("*.md")}
    assert there == {*CHINESE} - {"README.zh.md"}


@pytest.mark.parametrize("name", sorted(CHINESE))
def test_both_languages_are_in_step(name: str) -> None:
    english, chinese = (ROOT / page for page in (CHINESE[name], name))
    assert not [*differences(english.read_text(), chinese.read_text())]


@pytest.mark.parametrize("name", sorted(CHINESE))
def test_links_lead_to_the_same_places(name: str) -> None:
    def places(page: str) -> list[tuple[str, str]]:
        text = prose((ROOT / page).read_text())
        return sorted(destination(link, page) for link in LINK.findall(text))

    assert places(name) == places(CHINESE[name])


@pytest.mark.parametrize("name", sorted(CHINESE))
def test_links_stay_in_the_language(name: str) -> None:
    translated = {*CHINESE.values()} - {CHINESE[name]}
    for link in LINK.findall(prose((ROOT / name).read_text())):
        place = (ROOT / name).parent.joinpath(link.partition("#")[0]).resolve()
        assert not any(place == ROOT / page for page in translated), f"{link} has a translation"


@pytest.mark.parametrize("name", sorted(CHINESE))
def test_no_sentence_is_left_in_english(name: str) -> None:
    text = LINK.sub("]", CODE.sub("", prose((ROOT / name).read_text())))
    assert not re.findall(r"(?:\b[A-Za-z][a-z']*\b[ ,]+){5,}", text)
    for item in items(text):
        assert re.search(r"[\u4e00-\u9fff]", item), item


@pytest.mark.parametrize("name", sorted(CHINESE))
def test_a_paragraph_is_one_line(name: str) -> None:
    broken = re.findall(
        r"^(?![|#<]).+\n(?!- |\d+\. )[^\n|#<].*", prose((ROOT / name).read_text()), re.MULTILINE
    )
    assert not broken, "a break between Chinese characters is shown as a space"


ENGLISH = """# One

Set `k_steps` to 4.

```python
import fleetx
```

| option | default |
|---|---|
| `avg` | `True` |

- One item.
"""


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("`k_steps`", "`steps`", "not named"),
        ("4", "5", "numbers"),
        ("import fleetx", "import torch", "block of code"),
        ("# One", "## One", "headings"),
        ("| `avg` | `True` |", "| `True` | `avg` |", "row 2"),
        ("- One item.", "", "items"),
    ],
)
def test_what_is_out_of_step_is_told(old: str, new: str, what: str) -> None:
    assert not [*differences(ENGLISH, ENGLISH)]
    assert what in "\n".join(differences(ENGLISH, ENGLISH.replace(old, new)))
