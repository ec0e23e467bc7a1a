"""The best plans as pictures: what fills the memory of a rank, and where its time goes.

As a PNG, and as an HTML page that needs nothing else.
"""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from fleetx import pages
from fleetx.auto.proposals import Proposal, Proposals
from fleetx.auto.report import COLUMNS, in_words, report, row
from fleetx.auto.units import seconds, size
from fleetx.plan.error import PlanError

TIME = ("forward", "backward", "waiting", "exposed", "update", "to_host")
WORDS = {
    "state": "optimizer state",
    "waiting": "waiting for other stages",
    "exposed": "exchanges",
    "to_host": "way to the host",
}
COLOURS = (
    *("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#a463f2"),
    *("#9c6b4e", "#3ca951", "#ff8ab7", "#97bbf5", "#9498a0"),
)
MICRO_BATCHES = 12
"""So many of them a timeline has room for."""


def save(plans: Proposals, folder: Path) -> list[Path]:
    """Write all files; where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    strategy, table = folder / "strategy.prototxt", folder / "plans.txt"
    save_strategy(plans.best, strategy)
    table.write_text(f"{report(plans)}\n", encoding="utf-8")
    picture, shown = folder / "plans.png", folder / "plans.html"
    draw(plans).savefig(picture, dpi=120)
    shown.write_text(page(plans), encoding="utf-8")
    return [strategy, table, picture, shown]


def save_strategy(proposal: Proposal, file: Path) -> None:
    """What a script loads, with what it is expected to do as a comment."""
    proposal.strategy.save_to_prototxt(file)
    found = proposal.expected
    words = (
        f"# {in_words(proposal)}\n# Expected: {seconds(found.seconds)} for an update of "
        f"{found.samples:g} samples, {size(found.memory)} a rank.\n# Let the loader of each share "
        f"of the data give batches of {proposal.batch}.\n"
    )
    file.write_text(words + file.read_text(encoding="utf-8"), encoding="utf-8")


def draw(plans: Proposals) -> Any:
    """Memory and time of every plan, and how the stages of the best one take turns."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise PlanError(
            "pictures are drawn by matplotlib, which is not installed; pip install 'fleetx[auto]'."
        ) from error
    staged = plans.best.planned.plan.mesh["pp"] > 1
    height = 2.0 + 0.45 * max(len(plans), 3)
    figure = Figure(figsize=(11, height + 1.2 + 2.4 * staged), layout="constrained")
    ratios = [height] + [2.4] * staged
    rows = figure.subfigures(len(ratios), 1, height_ratios=ratios, squeeze=False)
    memory, time = rows[0, 0].subplots(1, 2, sharey=True)
    _draw_memory(memory, plans)
    _draw_time(time, plans)
    if staged:
        _draw_stages(rows[1, 0].subplots(), plans.best)
    figure.suptitle(f"The best plans for {plans.cluster.workers} workers: {plans.cluster.name}")
    return figure


def _bars(axes: Any, plans: Proposals, parts: dict[str, list[float]]) -> None:
    left = [0.0] * len(plans)
    places = range(len(plans), 0, -1)
    for (name, widths), colour in zip(parts.items(), cycle(COLOURS), strict=False):
        if any(widths):
            axes.barh(places, widths, left=left, color=colour, label=WORDS.get(name, name))
        left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.set_yticks(list(places), [str(at) for at in range(1, len(plans) + 1)])
    axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3)


def _draw_memory(axes: Any, plans: Proposals) -> None:
    most = max(one.expected.memory for one in plans)
    unit, scale = ("GB", 1e9) if most > 1e9 else ("MB", 1e6)
    names = dict.fromkeys(name for one in plans for name in one.expected.held)
    parts = {name: [one.expected.held.get(name, 0) / scale for one in plans] for name in names}
    _bars(axes, plans, parts)
    room = plans.best.expected.available / scale
    if room < 4 * most / scale:
        axes.axvline(room, color="black", linestyle="--", label="there is")
    axes.set_title(f"{unit} of the fullest rank", fontsize="medium")


def _draw_time(axes: Any, plans: Proposals) -> None:
    parts = {name: [1e3 * getattr(one.expected, name) for one in plans] for name in TIME}
    _bars(axes, plans, parts)
    axes.set_title("milliseconds of an update", fontsize="medium")


def _draw_stages(axes: Any, best: Proposal) -> None:
    stages = best.planned.plan.mesh["pp"]
    batches, shown = _micro_batches(best)
    for stage, turns in enumerate(one_forward_one_backward(stages, min(batches, MICRO_BATCHES))):
        for begin, length, backward in turns:
            colour = COLOURS[backward]
            axes.barh(stages - stage, length, left=begin, color=colour, edgecolor="white")
    axes.set_yticks(range(stages, 0, -1), [f"stage {stage}" for stage in range(stages)])
    axes.set_xticks([])
    title = f"One update of the best plan: {batches} micro-batches{shown}, one forward one backward"
    axes.set_title(title, fontsize="medium")


def _idle(best: Proposal) -> float:
    found = best.expected
    return found.waiting / max(found.forward + found.backward, 1e-12)


def one_forward_one_backward(
    stages: int, batches: int
) -> Sequence[Sequence[tuple[float, float, bool]]]:
    """When each stage does what: begin, length, and whether it is a backward.

    A backward takes as long as two forwards.
    """
    done: dict[tuple[int, int, bool], float] = {}
    orders = [_order(stage, stages, batches) for stage in range(stages)]
    turns: list[list[tuple[float, float, bool]]] = [[] for _ in range(stages)]
    free, at = [0.0] * stages, [0] * stages
    while any(at[stage] < len(orders[stage]) for stage in range(stages)):
        for stage in range(stages):
            if at[stage] == len(orders[stage]):
                continue
            batch, backward = orders[stage][at[stage]]
            before = _before(stage, stages, batch, backward)
            if before is not None and before not in done:
                continue
            begin = max(free[stage], 0.0 if before is None else done[before])
            length = 2.0 if backward else 1.0
            turns[stage].append((begin, length, backward))
            free[stage] = done[stage, batch, backward] = begin + length
            at[stage] += 1
    return turns


def _order(stage: int, stages: int, batches: int) -> list[tuple[int, bool]]:
    ahead = min(stages - stage, batches)
    found = [(batch, False) for batch in range(ahead)]
    for batch in range(batches):
        found.append((batch, True))
        if batch + ahead < batches:
            found.append((batch + ahead, False))
    return found


def _before(stage: int, stages: int, batch: int, backward: bool) -> tuple[int, int, bool] | None:
    """What must be done before."""
    if not backward:
        return None if stage == 0 else (stage - 1, batch, False)
    return (stage, batch, False) if stage == stages - 1 else (stage + 1, batch, True)


def page(plans: Proposals) -> str:
    """The same for a browser, with what each part of a bar is when one points at it."""
    table, best = report(plans).splitlines(), plans.best.expected
    foot = table[len(plans) + 2 :]
    return pages.document(
        "fleetx plan",
        pages.head(
            f"Plans for {plans.cluster.name or 'this cluster'}",
            *(("fits", "good") if best.fits else ("does not fit", "bad")),
            below=f"{table[0].rstrip(':')}.",
        ),
        pages.tiles(
            (
                ("an update of the best", seconds(best.seconds)),
                ("samples/s", f"{best.throughput:.4g}"),
                ("memory, fullest rank", size(best.memory)),
                ("sent by the busiest rank", size(best.sent)),
                ("mostly", best.binding),
            )
        ),
        pages.card(
            "The best plans",
            pages.table(
                COLUMNS,
                [row(at, one) for at, one in enumerate(plans, 1)],
                numbers=range(len(COLUMNS) - 2),
            ),
            *(pages.paragraph(line) for line in foot),
        ),
        pages.side_by_side(
            pages.card("Memory of the fullest rank", _memory_bars(plans)),
            pages.card("Time of an update", _time_bars(plans)),
        ),
        *_stages_card(plans.best),
    )


def _memory_bars(plans: Proposals) -> pages.Part:
    most = max(one.expected.memory for one in plans)
    unit, scale = ("GB", 1e9) if most > 1e9 else ("MB", 1e6)
    rows = {
        str(at): {name: held / scale for name, held in one.expected.held.items()}
        for at, one in enumerate(plans, 1)
    }
    room = plans.best.expected.available
    limit = (room / scale, "there is") if room < 4 * most else None
    return pages.bars(rows, unit=unit, words=WORDS, limit=limit)


def _time_bars(plans: Proposals) -> pages.Part:
    rows = {
        str(at): {name: 1e3 * getattr(one.expected, name) for name in TIME}
        for at, one in enumerate(plans, 1)
    }
    return pages.bars(rows, unit="ms", words=WORDS)


def _stages_card(best: Proposal) -> list[pages.Part]:
    stages = best.planned.plan.mesh["pp"]
    if stages == 1:
        return []
    batches, shown = _micro_batches(best)
    turns = one_forward_one_backward(stages, min(batches, MICRO_BATCHES))
    rows = {
        f"stage {stage}": [(begin, length, int(backward)) for begin, length, backward in each]
        for stage, each in enumerate(turns)
    }
    title = f"One update of the best plan: {batches} micro-batches{shown}, one forward one backward"
    return [pages.card(title, pages.timeline(rows, words=("forward", "backward")))]


def _micro_batches(best: Proposal) -> tuple[int, str]:
    """How many a batch is cut into, and what is said if not all are drawn."""
    stages = best.planned.plan.mesh["pp"]
    batches = max(1, round((stages - 1) / max(_idle(best), 1e-9)))
    return batches, "" if batches <= MICRO_BATCHES else f", the first {MICRO_BATCHES}"
