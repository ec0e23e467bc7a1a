"""Where the time of a step goes on all workers, and what would help."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from typing_extensions import override

from fleetx.auto.units import seconds
from fleetx.profiling.phases import BACKWARD, DATA, FORWARD, SCRIPT, UPDATE
from fleetx.profiling.shares import EXCHANGE, HOST, PARTS, WORDS, Worker
from fleetx.profiling.tracing import GRAPH
from fleetx.profiling.trying import Tries, Try

SHOWN = 8
"""So many workers have a column of their own."""
COMPUTED = (FORWARD, BACKWARD, GRAPH, UPDATE)
ADVICE = {
    DATA: "No flag shortens it: give the DataLoader num_workers (and pin_memory on a GPU), or "
    "prepare the data before.",
    EXCHANGE: "Fewer bytes, or more computation beside them: fp16_allreduce, larger batches, "
    "gradient_merge; a faster link.",
    HOST: "The card is faster than the lines that feed it: strategy.compile, strategy.cuda_graph, "
    "larger batches.",
    SCRIPT: "Lines of the script besides model, loss and optimizer: look for .item(), print(), "
    "logging, copies and evaluation in the loop.",
}


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a step takes, part by part; prints as a table."""

    workers: Sequence[Worker]
    tries: Tries | None = None
    """What came of trying flags; None if none was to be tried."""
    cut_short: str = ""
    """What ended the measurement early."""

    @property
    def step(self) -> float:
        """Seconds of a mean step."""
        return fmean(worker.step for worker in self.workers)

    @property
    def parts(self) -> dict[str, float]:
        """Part -> seconds of a mean step of a mean worker; they sum to the step."""
        found = [worker.parts for worker in self.workers]
        names = (name for name in PARTS if any(name in one for one in found))
        return {name: fmean(one.get(name, 0.0) for one in found) for name in names}

    @property
    def unaccounted(self) -> float:
        """Seconds of a step of which nothing is known."""
        return self.step - sum(self.parts.values())

    @property
    def hidden(self) -> float | None:
        """Seconds of exchanges behind computation in a step; None if no trace tells."""
        told = [worker.hidden for worker in self.workers if worker.hidden is not None]
        return fmean(told) if told else None

    @property
    def largest(self) -> str:
        """The part that takes most."""
        return max(self.parts, key=lambda name: self.parts[name])

    @property
    def slowest(self) -> Worker:
        """The worker for which the others wait: it waits least itself."""
        return max(self.workers, key=lambda worker: worker.own)

    @property
    def best(self) -> Try | None:
        """The flag that would help most; None if none does."""
        return None if self.tries is None else self.tries.best

    @property
    def with_best(self) -> float:
        """Seconds that a step would take with it, data and script as they are."""
        if self.tries is None or self.best is None:
            return self.step
        # The update that was tried has no data to wait for, and no other line of the script.
        able = self.step - self.parts.get(DATA, 0.0) - self.parts.get(SCRIPT, 0.0)
        return self.step - able * (1 - self.best.seconds / self.tries.base)

    @override
    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The table, and what follows from it."""
        yield f"fleetx profile: {self.headline}"
        yield from _aligned([self.columns, *self.rows()])
        if len(self.workers) > 1:
            others = "the other waits" if len(self.workers) == 2 else "the others wait"
            yield f"  * the slowest: {others} for it in exchanges"
        yield from self.words()

    @property
    def headline(self) -> str:
        """What was measured."""
        count, on_card = len(self.workers), self.workers[0].on_card
        device = "CPU" if not on_card else "GPUs" if count > 1 else "a GPU"
        who = f"{count} worker{'s' * (count > 1)} on {device}"
        steps = min(len(worker.laps) for worker in self.workers)
        return f"{steps} step{'s' * (steps != 1)} of {who}, {seconds(self.step)} a step"

    @property
    def columns(self) -> list[str]:
        """The head of the table."""
        return ["", "mean", "share", *(self._name(worker) for worker in self._shown())]

    def rows(self) -> Iterator[list[str]]:
        """The table: what, the mean over workers, its share, and each worker."""
        shown = self._shown()
        for name, mean in self.parts.items():
            own = [seconds(worker.parts.get(name, 0.0)) for worker in shown]
            yield [WORDS[name], seconds(mean), f"{mean / self.step:.0%}", *own]
        if abs(self.unaccounted) > 0.005 * self.step:
            rest = [seconds(worker.step - sum(worker.parts.values())) for worker in shown]
            share = f"{self.unaccounted / self.step:.0%}"
            yield ["unaccounted", seconds(self.unaccounted), share, *rest]
        whole = [seconds(worker.step) for worker in shown]
        yield ["step", seconds(self.step), "100%", *whole]

    def words(self) -> Iterator[str]:
        """What follows."""
        if self.cut_short:
            yield self.cut_short
        if self.hidden is None:
            yield "Exchanges were not told apart: the run ended before its steps were traced."
        elif self.hidden or len(self.workers) > 1:
            yield f"Hidden behind computation: {seconds(self.hidden)} of exchanges a step."
        share = self.parts[self.largest] / self.step
        advice = f" {ADVICE[self.largest]}" if self.largest in ADVICE else ""
        yield f"Largest: {WORDS[self.largest]}, {share:.0%} of a step.{advice}"
        if not all(worker.loads for worker in self.workers):
            yield (
                "No DataLoader of torch was seen, so all time between two steps counts as waiting "
                "for data."
            )
        if self.tries is not None:
            yield from self._tried(self.tries)

    def _tried(self, tries: Tries) -> Iterator[str]:
        if tries.before:
            yield (
                f"Tried on copies of the model with one batch ({seconds(tries.base)} an update as "
                "it is):"
            )
            yield from _aligned(tries.rows())
        if tries.why_not:
            yield f"{'Not all' if tries.tried else 'No'} flags were tried: {tries.why_not}."
        if (best := tries.best) is not None:
            gain = self.step - self.with_best
            yield (
                f"Would help most: {best.words}. {seconds(gain)} less a step on this machine, "
                f"{seconds(self.step)} -> {seconds(self.with_best)}."
            )
        elif tries.tried:
            yield "None of these flags helps here by more than runs of the same differ."

    def _shown(self) -> list[Worker]:
        """The workers that have a column: all if they are few, else the slowest."""
        if len(self.workers) == 1:
            return []
        return [*self.workers] if len(self.workers) <= SHOWN else [self.slowest]

    def _name(self, worker: Worker) -> str:
        return f"rank {worker.rank}{' *' * (worker is self.slowest)}"

    def to_json(self) -> dict[str, Any]:
        """As plain values, in seconds."""
        best = self.best
        return {
            "step_seconds": self.step,
            "parts_seconds": self.parts,
            "unaccounted_seconds": self.unaccounted,
            "hidden_exchange_seconds": self.hidden,
            "largest": self.largest,
            "slowest_rank": self.slowest.rank,
            "best": None if best is None else best.words,
            "step_seconds_with_best": self.with_best,
            "tries": None if self.tries is None else self.tries.to_json(),
            "cut_short": self.cut_short,
            "workers": [worker.to_json() for worker in self.workers],
        }


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns of equal width; the first one stands to the left."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))] if rows else []
    for row in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield f"  {row[0]:<{widths[0]}}  {'  '.join(cells)}".rstrip()
