"""Pages that need nothing else, whose texts are texts."""

import re
from html.parser import HTMLParser

import pytest

from fleetx import pages

VOID = {"meta", "img", "br", "path"}


class Checked(HTMLParser):
    """Complains of elements that are not closed, or not open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(page: str) -> None:
    parser = Checked()
    parser.feed(page)
    assert parser.open == []
    assert not re.search(r"https?://|<link|<script|@import|url\(", page)


def test_texts_are_escaped_and_parts_are_not() -> None:
    page = pages.document(
        "<b>",
        pages.head("<i>", "<u>", "bad", below="a & b"),
        pages.tiles([("<k>", "<v>")]),
        pages.card("<c>", pages.note("<n>"), pages.paragraph("<p>"), pages.preformatted("<x>")),
        pages.table(["<h>"], [["<d>"], [pages.badge("<e>")]]),
        pages.figure(b"\x89PNG", "<f>"),
    )
    check(page)
    for name in "biukvcnxhdef":
        assert f"<{name}>" not in page.partition("<body>")[2]
        assert f"&lt;{name}&gt;" in page
    assert '<span class="badge ">&lt;e&gt;</span>' in page


def test_a_page_is_light_and_dark() -> None:
    assert "prefers-color-scheme: dark" in pages.document("t")
    names = re.findall(r"(--[a-z0-9-]+):", pages.style().partition("@media")[0])
    dark = pages.style().partition("@media (prefers-color-scheme: dark)")[2].partition("*")[0]
    assert all(f"{name}:" in dark for name in names), "every colour has a dark one"


@pytest.mark.parametrize("logarithmic", [True, False])
def test_a_distribution_counts_every_finite_value_once(logarithmic: bool) -> None:
    values = [0.0, 1e-6, 1e-5, 1e-5, 0.5, float("nan"), float("inf")]
    drawn = pages.histogram(values, label="distance", limit=1e-3, logarithmic=logarithmic)
    check(pages.document("t", drawn))
    assert sum(int(n) for n in re.findall(r"<title>(\d+) around", drawn)) == 5
    assert "2 that are not finite" in drawn
    assert 'class="bad"' in drawn
    assert "limit 0.001" in drawn


def test_distributions_of_nothing_and_of_one_value() -> None:
    assert "No value is finite" in pages.histogram([float("nan")], label="x")
    for value in (0.0, 3.0):
        for logarithmic in (True, False):
            assert "1 around" in pages.histogram([value], label="x", logarithmic=logarithmic)


def test_bars_and_timelines_say_what_each_part_is() -> None:
    rows = {"1": {"state": 2.0, "none": 0.0}, "2": {"state": 1.0, "none": 0.0}}
    drawn = pages.bars(rows, unit="GB", words={"state": "optimizer state"}, limit=(4.0, "there is"))
    check(pages.document("t", drawn))
    assert "optimizer state: 2 GB" in drawn
    assert "none" not in drawn
    turns = {"stage 0": [(0.0, 1.0, 0), (1.0, 2.0, 1)]}
    drawn = pages.timeline(turns, words=("forward", "backward"))
    check(pages.document("t", drawn))
    assert drawn.count("<title>backward</title>") == 1
    assert "</i>backward</span>" in drawn
