"""A profile as pictures: the parts of a step of each worker, and one step from begin to end.

As a PNG, and as an HTML page that needs nothing else.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fleetx import pages
from fleetx.auto.units import seconds
from fleetx.profiling.findings import Findings
from fleetx.profiling.phases import BETWEEN
from fleetx.profiling.shares import EXCHANGE, PARTS, WORDS, Worker

_SHADES = (
    *("#efb118", "#4269d0", "#6cc5b0", "#a463f2"),
    *("#ff725c", "#3ca951", "#9498a0", "#97bbf5"),
)
COLOURS = dict(zip(PARTS, _SHADES, strict=True))
LANES = {"host": "the script", "card": "the card", "exchange": "exchanges"}


def draw(profile: Findings, file: Path) -> list[Path]:
    """Write the picture; nowhere if matplotlib is not installed, as the page has it all."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return []
    workers, lanes = profile.workers, _lanes(profile.slowest)
    heights = [1.4 + 0.4 * len(workers), 1.2 + 0.45 * max(len(lanes), 1)]
    figure = Figure(figsize=(11, sum(heights)), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=heights)
    _draw_parts(above, workers)
    _draw_lanes(below, lanes, profile.slowest)
    figure.suptitle(profile.headline)
    figure.savefig(file, dpi=120)
    return [file]


def _draw_parts(axes: Any, workers: Sequence[Worker]) -> None:
    places = range(len(workers), 0, -1)
    left = [0.0] * len(workers)
    for name in PARTS:
        widths = [1e3 * worker.parts.get(name, 0.0) for worker in workers]
        if any(widths):
            axes.barh(places, widths, left=left, color=COLOURS[name], label=WORDS[name])
        left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.set_yticks(list(places), [f"rank {worker.rank}" for worker in workers])
    axes.set_title("milliseconds of a mean step", fontsize="medium")
    axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=4)


def _draw_lanes(
    axes: Any, lanes: Mapping[str, Sequence[tuple[str, float, float]]], worker: Worker
) -> None:
    for place, turns in zip(range(len(lanes), 0, -1), lanes.values(), strict=True):
        for name, begin, width in turns:
            axes.barh(place, 1e3 * width, left=1e3 * begin, color=COLOURS[_part(name)])
    axes.set_yticks(range(len(lanes), 0, -1), [LANES[lane] for lane in lanes])
    title = f"one step of rank {worker.rank}, in milliseconds, under the profiler"
    axes.set_title(title if lanes else "no step was traced", fontsize="medium")


def _lanes(worker: Worker) -> Mapping[str, Sequence[tuple[str, float, float]]]:
    return {} if worker.traced is None else worker.traced.lanes


def _part(name: str) -> str:
    return "script" if name == BETWEEN else name


def page(profile: Findings) -> str:
    """The same for a browser."""
    best = profile.best
    exchange = profile.parts.get(EXCHANGE, 0.0)
    columns, rows = profile.columns, [*profile.rows()]
    return pages.document(
        "fleetx profile",
        pages.head("Where a step goes", below=f"{profile.headline}."),
        pages.tiles(
            (
                ("a step", seconds(profile.step)),
                ("largest", WORDS[profile.largest]),
                ("exchange, not hidden", seconds(exchange)),
                ("hidden", "unknown" if profile.hidden is None else seconds(profile.hidden)),
                ("would help most", "none known" if best is None else best.flag),
            )
        ),
        pages.card(
            "Parts of a step",
            pages.table(columns, rows, numbers=range(1, len(columns))),
            *(pages.paragraph(line) for line in profile.words() if not line.startswith("  ")),
        ),
        pages.card("Workers", _bars(profile)),
        *_step_card(profile.slowest),
        *_tries_card(profile),
    )


def _bars(profile: Findings) -> pages.Part:
    rows = {
        f"rank {worker.rank}": {name: 1e3 * part for name, part in worker.parts.items()}
        for worker in profile.workers
    }
    return pages.bars(rows, unit="ms", words=WORDS)


def _step_card(worker: Worker) -> list[pages.Part]:
    lanes = _lanes(worker)
    if not lanes:
        return []
    kinds = [*dict.fromkeys(_part(name) for turns in lanes.values() for name, _, _ in turns)]
    rows = {
        lane: [(begin, width, kinds.index(_part(name))) for name, begin, width in turns]
        for lane, turns in lanes.items()
    }
    drawn = pages.timeline(rows, words=[WORDS[kind] for kind in kinds])
    return [pages.card(f"One step of rank {worker.rank}, under the profiler", drawn)]


def _tries_card(profile: Findings) -> list[pages.Part]:
    tries = profile.tries
    if tries is None or not tries.tried:
        return []
    table = pages.table(("flag", "an update", "change", ""), tries.rows(), numbers=(1, 2))
    return [pages.card("Flags that were tried on copies of the model", table)]
