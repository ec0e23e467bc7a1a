"""Verdicts on a strategy, and the table that shows them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from typing_extensions import override

from fleetx import pages
from fleetx.checking.outcome import Outcome, listed

EQUAL = 1e-6
"""Runs closer than this differ by the order of additions alone."""


ROUNDING = 1e-4
"""A strategy that promises this much changes where numbers lie and not what they are."""


class Verdict(Enum):
    """What a comparison found."""

    EQUAL = "equal"
    WITHIN = "within"
    IN_FORCE = "in force"
    APART = "apart"
    NO_EFFECT = "no effect"
    FINITE = "finite"
    UNKNOWN = "unknown"
    WRONG = "WRONG"
    UNLIKE = "UNLIKE"
    """Two runs of the same script differ, so that nothing can be said of a flag."""

    @property
    def good(self) -> bool:
        """Whether a user can go on."""
        return self not in (Verdict.WRONG, Verdict.UNLIKE)

    @property
    def tone(self) -> str:
        """The colour of it."""
        doubtful = (Verdict.NO_EFFECT, Verdict.APART, Verdict.UNKNOWN)
        return "warn" if self in doubtful else "good" if self.good else "bad"


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    subject: str
    verdict: Verdict
    words: str
    unlike: tuple[float, ...] = ()
    """Of a flag: how far each number of the weights is from the run without it."""


@dataclass(frozen=True)
class Report:
    """All findings of a check; printing it shows the table."""

    title: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return all(finding.verdict.good for finding in self.findings)

    @property
    def alike(self) -> bool:
        """Whether two runs of the script were the same, so that runs can be compared at all."""
        return all(finding.verdict is not Verdict.UNLIKE for finding in self.findings)

    @override
    def __str__(self) -> str:
        width = max(len(finding.subject) for finding in self.findings)
        rows = [f"  {f.subject:<{width}}  {f.verdict.value:<9}  {f.words}" for f in self.findings]
        return "\n".join((self.title, *rows, self._conclusion()))

    def to_html(self) -> str:
        """The same as a page, with a plot of where the weights are without each flag."""
        word, tone = ("fine", "good") if self.ok else ("do not train with this", "bad")
        rows = [
            (
                finding.subject,
                pages.badge(finding.verdict.value, finding.verdict.tone),
                finding.words,
            )
            for finding in self.findings
        ]
        plots = (
            pages.card(
                f"Weights without {finding.subject}",
                pages.histogram(
                    finding.unlike,
                    label="distance of a weight from the run with all flags",
                    unit="weights",
                    logarithmic=True,
                ),
            )
            for finding in self.findings
            if any(finding.unlike)
        )
        return pages.document(
            "fleetx check",
            pages.head("fleetx check", word, tone, below=self.title.removeprefix("fleetx check: ")),
            pages.note(self._conclusion(), tone),
            pages.card("What was found", pages.table(("", "verdict", "why"), rows)),
            pages.side_by_side(*plots),
        )

    def _conclusion(self) -> str:
        wrong = [f.subject for f in self.findings if not f.verdict.good]
        idle = [f.subject for f in self.findings if f.verdict is Verdict.NO_EFFECT]
        if not self.alike:
            return "No flag was judged: two runs of the script, as it is, must do the same."
        if wrong:
            return f"Do not train with this: {', '.join(wrong)}."
        if idle:
            return f"Nothing is wrong, but {', '.join(idle)} did nothing in these batches."
        return "Every flag does what it promises here."


def judge(
    everything: Outcome,
    without: Mapping[str, Outcome],
    workers: int,
    *,
    again: Outcome | None = None,
) -> Report:
    """Hold the run of the whole strategy against the runs that leave one flag out.

    Args:
        everything: the run with all flags.
        without: flag -> the run without it.
        workers: their number.
        again: a second run with all flags, which must do the same.
    """
    findings = [
        replace(_on_flag(name, everything, other), unlike=everything.distances(other))
        for name, other in without.items()
    ]
    findings += [] if again is None else [_on_repeat(everything, again)]
    findings += [*_on_starts(everything), *_on_ranks(everything, workers), _on_losses(everything)]
    flags = ", ".join(without or everything.tolerances) or "plain data parallel"
    title = (
        f"fleetx check: {flags}; {everything.batches} batches on {workers} "
        f"worker{'s' * (workers != 1)}"
    )
    return Report(title, tuple(findings))


def _on_flag(name: str, everything: Outcome, without: Outcome) -> Finding:
    distance, limit = everything.away_from(without), _limit(name, everything.tolerances)
    if not math.isfinite(distance):
        return Finding(name, Verdict.WRONG, "the weights are not finite")
    own = everything.tolerances[name]
    if distance == 0 and (own is None or own > ROUNDING):
        return Finding(name, Verdict.NO_EFFECT, "the same weights as without it, bit for bit")
    if limit is None:
        words = f"changes the update by design; {distance:.1e} away from the run without it"
        return Finding(name, Verdict.IN_FORCE, words)
    if distance <= min(limit, EQUAL):
        return Finding(name, Verdict.EQUAL, f"the weights of the run without it ({distance:.1e})")
    return _on_rounding(name, everything, without, limit)


def _limit(name: str, tolerances: Mapping[str, float | None]) -> float | None:
    """How far a flag may move the weights; one that rounds anew does so as coarsely as all."""
    own = tolerances[name]
    if own is None or own <= EQUAL:
        return own
    return max(tolerance for tolerance in tolerances.values() if tolerance is not None)


def _on_rounding(name: str, everything: Outcome, without: Outcome, limit: float) -> Finding:
    distance, felt = everything.away_from(without), everything.losses_away_from(without)
    words = f"{distance:.1e} away from the run without it; up to {limit:.0e} is expected"
    if distance <= limit:
        return Finding(name, Verdict.WITHIN, words)
    if felt <= limit:
        # Weights without influence, such as a bias before a batch norm, have gradients that are
        # nothing but rounding errors, and a rule that normalises updates sends them anywhere.
        return Finding(name, Verdict.WITHIN, f"{words}, and the losses are {felt:.1e} away")
    unlike = everything.parameters_unlike(without)
    return Finding(name, Verdict.WRONG, f"{words}; most in {listed(unlike)}" if unlike else words)


def _on_repeat(first: Outcome, again: Outcome) -> Finding:
    if unlike := first.parameters_unlike(again, at_start=True):
        words = f"the weights begin differently at each start ({listed(unlike)})"
        words += "; call torch.manual_seed(0) before the model is made"
        return Finding("repeat", Verdict.UNLIKE, words)
    if batch := first.batch_unlike(again):
        words = f"a second run was fed other data, from batch {batch} on; seed what draws it: "
        words += "torch.manual_seed(0), random, numpy, the generator of a DataLoader"
        return Finding("repeat", Verdict.UNLIKE, words)
    distance = again.away_from(first)
    if distance <= EQUAL:
        words = f"a second run ends with the same weights ({distance:.1e})"
        return Finding("repeat", Verdict.EQUAL, words)
    if distance <= ROUNDING:
        words = f"a second run ends {distance:.1e} away: kernels add in another order"
        return Finding("repeat", Verdict.WITHIN, words)
    words = f"the same weights and data, and a second run ends {distance:.1e} away, most in "
    words += f"{listed(first.parameters_unlike(again))}: the model is not deterministic. Seed "
    words += "what it draws; torch.use_deterministic_algorithms(True) names kernels"
    return Finding("repeat", Verdict.UNLIKE, words)


def _on_starts(everything: Outcome) -> Iterator[Finding]:
    if everything.begun:
        words = f"workers differ before the first batch, in {listed(everything.begun)}; load "
        words += "weights on all workers, or with fleet.load_full_state_dict()"
        yield Finding("start", Verdict.WRONG, words)
    elif everything.given:
        words = f"workers brought different weights ({listed(everything.given)}); all began with "
        words += "worker 0's"
        yield Finding("start", Verdict.APART, words)


def _on_ranks(everything: Outcome, workers: int) -> Iterator[Finding]:
    if workers == 1:
        return
    if everything.apart == 0:
        yield Finding("ranks", Verdict.EQUAL, f"all {workers} workers hold the same weights")
    elif not everything.meets:
        words = f"{everything.apart:.1e} apart, as planned until the workers meet again"
        yield Finding("ranks", Verdict.APART, words)
    else:
        words = f"the workers' weights differ by up to {everything.apart:.1e}"
        words += f", most in {listed(everything.torn)}" if everything.torn else ""
        yield Finding("ranks", Verdict.WRONG, words)


def _on_losses(everything: Outcome) -> Finding:
    if not everything.losses:
        words = "not seen: the script calls loss.backward() by itself"
        return Finding("loss", Verdict.UNKNOWN, words)
    first, last = everything.losses[0], everything.losses[-1]
    fine = all(math.isfinite(loss) for loss in everything.losses)
    verdict = Verdict.FINITE if fine else Verdict.WRONG
    return Finding("loss", verdict, f"{first:.4g} at the first batch, {last:.4g} at the last")
