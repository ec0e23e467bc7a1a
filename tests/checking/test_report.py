"""Verdicts: what is equal, within, in force, idle or wrong, and how it reads."""

from dataclasses import replace

import pytest
import torch

from fleetx.checking.outcome import Outcome
from fleetx.checking.report import Verdict, judge

FINE = Outcome(
    start=torch.zeros(4, dtype=torch.float64),
    end=torch.ones(4, dtype=torch.float64),
    apart=0.0,
    meets=True,
    losses=(2.0, 1.0),
    batches=8,
    tolerances={"amp": 1e-2, "lars": None, "recompute": 1e-6},
)


def moved(by: float) -> Outcome:
    return replace(FINE, end=FINE.end + by, losses=(2.0, 1.0 + by))


@pytest.mark.parametrize(
    ("flag", "by", "verdict"),
    [
        ("amp", 0.0, Verdict.NO_EFFECT),
        ("amp", 1e-9, Verdict.EQUAL),
        ("recompute", 0.0, Verdict.EQUAL),
        ("recompute", 1e-4, Verdict.WRONG),
        ("amp", 5e-3, Verdict.WITHIN),
        ("amp", 5e-2, Verdict.WRONG),
        ("amp", float("nan"), Verdict.WRONG),
        ("lars", 0.5, Verdict.IN_FORCE),
        ("lars", 0.0, Verdict.NO_EFFECT),
    ],
)
def test_a_flag_is_judged_by_its_promise(flag: str, by: float, verdict: Verdict) -> None:
    report = judge(FINE, {flag: moved(by)}, workers=2)
    assert report.findings[0].subject == flag
    assert report.findings[0].verdict is verdict
    assert report.ok == (verdict is not Verdict.WRONG)


def test_losses_decide_where_weights_without_influence_wander() -> None:
    wandering = replace(moved(1.0), losses=(2.0, 1.001))
    report = judge(FINE, {"amp": wandering}, workers=1)
    assert report.findings[0].verdict is Verdict.WITHIN
    assert "and the losses are 5.0e-04 away" in report.findings[0].words
    assert not judge(FINE, {"amp": replace(moved(1.0), losses=(2.0, 1.1))}, workers=1).ok


def test_ranks_that_differ_are_wrong_unless_they_are_to_meet_later() -> None:
    assert not judge(replace(FINE, apart=0.1), {}, workers=2).ok
    drifting = judge(replace(FINE, apart=0.1, meets=False), {}, workers=2)
    assert drifting.ok
    assert "as planned until the workers meet again" in str(drifting)


def test_a_loss_that_is_not_finite_is_wrong() -> None:
    assert not judge(replace(FINE, losses=(1.0, float("inf"))), {}, workers=1).ok


def test_losses_that_a_script_keeps_to_itself_are_no_fault() -> None:
    silent = replace(FINE, losses=())
    report = judge(silent, {"lars": replace(silent, end=FINE.end + 0.5)}, workers=1)
    assert report.ok
    assert "not seen: the script calls loss.backward() by itself" in str(report)


def test_the_report_reads_as_a_table() -> None:
    text = str(judge(FINE, {"amp": moved(1e-3), "lars": moved(0.25)}, workers=2))
    assert text.splitlines() == [
        "fleetx check: amp, lars; 8 batches on 2 workers",
        "  amp    within     1.0e-03 away from the run without it; up to 1e-02 is expected",
        "  lars   in force   changes the update by design; 2.0e-01 away from the run without it",
        "  ranks  equal      all 2 workers hold the same weights",
        "  loss   finite     2 at the first batch, 1 at the last",
        "Every flag does what it promises here.",
    ]


def test_the_conclusion_names_what_is_wrong_or_idle() -> None:
    wrong = judge(FINE, {"amp": moved(1.0)}, workers=1)
    assert str(wrong).endswith("Do not train with this: amp.")
    idle = judge(FINE, {"lars": FINE}, workers=1)
    assert str(idle).endswith("but lars did nothing in these batches.")
