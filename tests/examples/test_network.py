"""benchmarks/network.py: its sets, limits and tables; and one case on real links."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.exchanges import cases, links, tables
from benchmarks.exchanges.cases import FLAGS, Flags, legal, limit, refusal, traffic, variants
from benchmarks.exchanges.collectives import NAMES, SIZES, line
from benchmarks.exchanges.links import LINKS, Lab, why_not
from benchmarks.exchanges.measuring import measured
from benchmarks.exchanges.models import MODELS
from benchmarks.exchanges.records import GOAL, Case, Records, Timed
from fleetx.config import composition

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "benchmarks"


def test_the_sets_are_those_that_compose_lets_pass() -> None:
    found = {flags.names: flags for flags in legal(4)}
    assert () in found
    known = variants()
    assert {names[0] for names in found if len(names) == 1} == known.keys()
    for one, other in itertools.combinations(FLAGS, 2):
        pairs = [(a, b) for a in FLAGS[one] for b in FLAGS[other]]
        is_legal = composition.refusal(one, other) is None
        assert all((pair in found) is is_legal for pair in pairs), (one, other)
    for flags in found.values():
        assert not refusal(flags.settings, 4)
    # Two workers have no blocks of neighbours.
    assert cases.HIERARCHICAL not in {name for flags in legal(2) for name in flags.names}
    assert "does not cut" in refusal(known[cases.HIERARCHICAL][1], 2)


def test_bytes_come_from_the_explanation() -> None:
    mlp = MODELS["mlp"]
    size = 4 * sum(p.numel() for p in mlp.made().parameters())
    found = {flags.name: traffic(flags, mlp, 4) for flags in legal(4, most=1)}
    assert found["plain"].sent == pytest.approx(1.5 * size)
    assert found["fp16_allreduce"].sent == pytest.approx(0.75 * size)
    assert found["localsgd"].sent == pytest.approx(0.75 * size)
    assert found["sharding 3"].sent == pytest.approx(2.25 * size, rel=0.01)
    assert found["adaptive_localsgd"].each_time == pytest.approx(1.5 * size, rel=1e-4)
    assert found["plain"].each_time == 0
    assert found["plain"].beside == found["sharding 1"].beside == 1
    assert found["gradient_merge"].beside == 0.5


def test_no_step_is_below_its_limit() -> None:
    assert limit(0.1, 12.5e6, "100M") == pytest.approx(1.0)
    assert limit(2.0, 12.5e6, "100M") == 2.0
    assert limit(0.1, 12.5e6, "10G") == 0.1
    assert limit(0.1, 12.5e6, "free") == 0.1
    # Of two batches, the first is over before anything is sent.
    assert limit(0.1, 12.5e6, "100M", beside=0.5) == pytest.approx(1.05)
    assert limit(4.0, 12.5e6, "100M", beside=0.5) == 4.0


def test_records_are_kept_and_told(tmp_path: Path) -> None:
    records = Records(tmp_path / "network.json")
    timed = {"free": Timed([0.3, 0.1, 0.2]), "100M": Timed([1.25, 9.0, 1.25], sent=12.6e6)}
    records.keep(Case("mlp", 2, "plain", 12.5e6, 1.0, ["all-reduce"], timed))
    slow = {"free": Timed([0.1]), "100M": Timed([2.0])}
    records.keep(Case("mlp", 2, "dgc", 12.5e6, 1.0, [], slow))
    records.save()
    again = Records(tmp_path / "network.json")
    assert [case.key for case in again] == [("mlp", 2, "plain"), ("mlp", 2, "dgc")]
    case = again["mlp", 2, "plain"]
    assert (case.links["free"].median, case.links["100M"].median) == (0.2, 1.25)
    assert case.reached("100M") == pytest.approx(0.8)
    told = "\n".join(tables.lines(again))
    assert "| 100M | mlp, 2 workers |" in told
    assert "| plain | 1,250 ms, 80% |" in told
    assert "| dgc | 2,000 ms, **50%** |" in told
    assert "10G" not in told
    tables.draw(again, tmp_path / "network.png")
    assert (tmp_path / "network.png").stat().st_size > 1000


def test_kept_measurements_are_of_every_set_and_flags_reach_the_goal() -> None:
    records = Records(FOLDER / "network.json")
    sets = {workers: [flags.name for flags in legal(workers)] for workers in (2, 4)}
    expected = {(m, w, name) for m in MODELS for w, names in sets.items() for name in names}
    assert {case.key for case in records} == expected
    for case in records:
        assert case.links.keys() == LINKS.keys()
        # What the link saw is what was told, and what TCP adds to it.
        slow = case.links["100M"]
        assert case.told <= slow.sent <= 1.05 * case.told + 50_000, case.key
        assert "+" in case.flags or case.reached("100M") >= GOAL, case.key


def test_kept_collectives_are_of_every_link() -> None:
    rows = json.loads((FOLDER / "collectives.json").read_text())["rows"]
    found = {(row["collective"], row["workers"], row["link"]) for row in rows}
    assert found == set(itertools.product(NAMES, (2, 4), LINKS))
    told = list(tables.collective_lines(rows))
    assert len(told) == 2 + len(NAMES)
    assert told[2].startswith("| all_reduce | ")
    assert all([point["bytes"] for point in row["points"]] == list(SIZES) for row in rows)
    assert line([(4, 1e-3), (1004, 2e-3), (500, 9.0)]) == pytest.approx((1e-3, 1e-6))


def test_who_may_not_make_links_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "need root" in why_not()
    with pytest.raises(links.NoLinks, match="need root"):
        Lab(2)


@pytest.mark.rare
def test_a_case_on_real_links() -> None:
    if reason := why_not():
        pytest.skip(reason)
    flags = Flags((), {})
    with Lab(2) as lab:
        pids = [worker.pid for worker in lab._workers]
        case = measured(lab, "mlp", flags, ("free", "100M"), rounds=1)
        with pytest.raises(RuntimeError, match="worker 0: KeyError"):
            lab.ask({"do": "something else"})
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    slow = case.links["100M"]
    assert case.told <= slow.sent <= 1.05 * case.told
    assert slow.median >= 0.95 * 8 * case.told / LINKS["100M"], "a link has its rate"
    assert case.links["free"].median < slow.median


@pytest.mark.rare
def test_the_script_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    command = [sys.executable, "benchmarks/network.py", "--folder", str(tmp_path)]
    command += ["--only", "plain", "--links", "1G", "--workers", "2", "--models", "mlp"]
    command += ["--rounds", "1"]
    first, second = (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
        for _ in range(2)
    )
    assert "1/1 2 workers, mlp, plain: free" in first.stdout
    assert "1/1" not in second.stdout
    assert "| 1G | mlp, 2 workers |" in second.stdout
    assert "| plain | " in second.stdout
