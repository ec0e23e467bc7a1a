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
    sizes={"fc.weight": 3, "fc.bias": 1},
    fed=("ab", "cd"),
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


def repeated(again: Outcome) -> str:
    report = judge(FINE, {}, workers=1, again=again)
    assert not report.ok
    assert not report.alike
    assert str(report).endswith("two runs of the script, as it is, must do the same.")
    return report.findings[0].words


def test_a_second_run_must_begin_alike_be_fed_alike_and_end_alike() -> None:
    assert judge(FINE, {}, workers=1, again=FINE).findings[0].verdict is Verdict.EQUAL
    other = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    words = repeated(replace(FINE, start=FINE.start + other))
    assert words.startswith("the weights begin differently at each start (fc.bias)")
    words = repeated(replace(FINE, fed=("ab", "ef")))
    assert words.startswith("a second run was fed other data, from batch 2 on")
    words = repeated(replace(FINE, end=FINE.end + other))
    assert "ends 5.0e-01 away, most in fc.bias: the model is not deterministic" in words
    rounding = judge(FINE, {}, workers=1, again=replace(FINE, end=FINE.end + 1e-5 * other))
    assert rounding.findings[0].verdict is Verdict.WITHIN


def test_parameters_that_differ_are_named_the_farthest_first() -> None:
    by = torch.tensor([0.0, 0.5, 0.0, 1.0], dtype=torch.float64)
    report = judge(FINE, {"amp": replace(FINE, end=FINE.end + by, losses=())}, workers=1)
    assert report.findings[0].words.endswith("most in fc.bias, fc.weight")
    torn = judge(replace(FINE, apart=0.1, torn=("a", "b", "c", "d", "e")), {}, workers=2)
    assert "differ by up to 1.0e-01, most in a, b, c and 2 more" in str(torn)


def test_workers_that_begin_apart_are_wrong_and_those_that_were_made_equal_are_not() -> None:
    assert judge(replace(FINE, given=("a",)), {}, workers=2).ok
    begun = judge(replace(FINE, begun=("a", "b")), {}, workers=2)
    assert "workers differ before the first batch, in a, b; load" in str(begun)
    assert not begun.ok


def test_the_page_says_the_same_with_a_distribution_for_each_flag_that_moves_weights() -> None:
    report = judge(FINE, {"amp": moved(1e-3), "recompute": FINE}, workers=2)
    page = report.to_html()
    for finding in report.findings:
        assert finding.subject in page
        assert finding.words in page
    assert "Weights without amp" in page
    assert "4 around 0.001" in page
    assert "Weights without recompute" not in page
    assert '<span class="badge good">within</span>' in page
    assert "do not train with this" in judge(FINE, {"amp": moved(1.0)}, workers=1).to_html()
