"""What was measured, as tables and as a picture."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.exchanges.links import LINKS
from benchmarks.exchanges.records import GOAL, Case, Records

RATES = [link for link, rate in LINKS.items() if rate]
SLOWEST = RATES[-1]


def lines(records: Records) -> Iterator[str]:
    """A table in Markdown for each link."""
    for link in RATES:
        if any(link in case.links for case in records):
            yield from _table(records, link)
            yield ""


def _table(records: Records, link: str) -> Iterator[str]:
    """A row for each set of flags, a column for each model and number of workers."""
    columns = list(dict.fromkeys((case.model, case.workers) for case in records))
    heads = [f"{model}, {workers} workers" for model, workers in columns]
    yield f"| {link} | {' | '.join(heads)} |"
    yield f"|---|{'--:|' * len(columns)}"
    for flags in _in_order(records):
        keys = [(model, workers, flags) for model, workers in columns]
        cells = [_cell(records[key], link) if key in records else "" for key in keys]
        yield f"| {flags} | {' | '.join(cells)} |"


def _in_order(records: Records) -> list[str]:
    """Names of sets: single flags first, then pairs."""
    names = list(dict.fromkeys(case.flags for case in records))
    return sorted(names, key=lambda name: name.count("+"))


def _cell(case: Case, link: str) -> str:
    """Milliseconds, and the share of the limit; bold where the goal is missed."""
    if link not in case.links:
        return ""
    share = case.reached(link)
    mark = "**" if link == SLOWEST and share < GOAL else ""
    return f"{1e3 * case.links[link].median:,.0f} ms, {mark}{share:.0%}{mark}"


def draw(records: Records, path: Path) -> None:
    """Step times against their limits, a picture for each number of workers."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    groups = list(dict.fromkeys(case.workers for case in records))
    figure, axes = plt.subplots(1, max(1, len(groups)), figsize=(9, 4.5), squeeze=False)
    for workers, axis in zip(groups, axes[0], strict=False):
        for link in RATES:
            seen = [c for c in records if c.workers == workers and link in c.links]
            limits = [1e3 * case.limit(link) for case in seen]
            axis.scatter(limits, [1e3 * c.links[link].median for c in seen], s=12, label=link)
        edge = [20.0, 4000.0]
        axis.plot(edge, edge, color="black", linewidth=0.8, label="limit")
        goal = [value / GOAL for value in edge]
        axis.plot(edge, goal, color="grey", linestyle=":", label=f"{GOAL:.0%} of it")
        axis.set(xscale="log", yscale="log", title=f"{workers} workers", xlabel="limit, ms")
        axis.set_ylabel("step, ms")
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def collective_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Milliseconds of each collective on the largest tensor, and of a small one without a rate."""
    found = {(row["collective"], row["workers"], row["link"]): row for row in rows}
    sizes = list(dict.fromkeys(row["workers"] for row in rows))
    links = list(dict.fromkeys(row["link"] for row in rows))
    heads = [f"{size}: {head}" for size in sizes for head in ("small", *links)]
    yield f"| workers | {' | '.join(heads)} |"
    yield f"|---|{'--:|' * len(heads)}"
    for name in dict.fromkeys(row["collective"] for row in rows):
        cells = []
        for size in sizes:
            cells.append(f"{1e3 * found[name, size, 'free']['alpha_seconds']:.2f}")
            points = [found[name, size, link]["points"][-1] for link in links]
            cells += [f"{1e3 * point['seconds']:,.0f}" for point in points]
        yield f"| {name} | {' | '.join(cells)} |"
