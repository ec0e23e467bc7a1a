"""From what is told to what is shown."""

from typing import Any

import pytest

from fleetx.watch.watched import RUN, SILENT, Watched, slow_ranks

MESH = {"pp": 2, "dp": 2, "sharding": 1, "tp": 1}


def job(at: float, attempt: int = 0, workers: int = 2) -> dict[str, Any]:
    given = {"script": "t.py", "node": 0, "nodes": 1, "workers": workers, "servers": 0}
    return {"kind": "job", "at": at, "attempt": attempt, "host": "a", **given}


def ranks(at: float, attempt: int = 0, **told: Any) -> dict[str, Any]:
    usual = {"state": "running", "still": 0.0, "batch_size": 8, "exchanging": 0.1}
    each = {name[1:]: {**usual, **values} for name, values in told.items()}
    return {"kind": "ranks", "at": at, "attempt": attempt, "host": "a", "ranks": each}


def steps(number: int, **more: Any) -> dict[str, Any]:
    return dict.fromkeys(("batches", "calls", "ended"), number) | more


def shown(*lines: dict[str, Any], at: float | None = None) -> dict[str, Any]:
    watched = Watched()
    for line in lines:
        watched.take(line)
    return watched.now(lines[-1]["at"] if at is None else at) | {"points": watched.points}


def test_rates_samples_and_losses_are_of_the_last_seconds() -> None:
    told = shown(
        job(0),
        ranks(0, r0=steps(0), r1=steps(0)),
        ranks(2, r0=steps(20, loss=1.0), r1=steps(20, loss=3.0)),
    )
    assert told["state"] == "running"
    assert told["ranks"][0]["rate"] == 10
    assert told["ranks"][0]["samples"] == 80
    assert told["totals"]["samples"] == 160
    assert told["totals"]["loss"] == 2
    assert told["points"][1] == (2, 20, 2.0, 160.0)
    later = [ranks(2 + second, r0=steps(20), r1=steps(20)) for second in range(1, 15)]
    told = shown(job(0), ranks(0, r0=steps(0)), ranks(2, r0=steps(20)), *later)
    assert told["ranks"][0]["rate"] == 0, "what was long ago does not count"


def test_ranks_that_share_their_samples_are_counted_once() -> None:
    plan = {"kind": "facts", "at": 0, "attempt": 0, "plan": {"mesh": MESH}}
    four: dict[str, Any] = {f"r{rank}": steps(0) for rank in range(4)}
    after: dict[str, Any] = {f"r{rank}": steps(10) for rank in range(4)}
    told = shown(job(0, workers=4), plan, ranks(0, **four), ranks(1, **after))
    assert told["totals"]["samples"] == 160


def test_workers_that_meet_at_servers_have_samples_of_their_own() -> None:
    alone = {"mesh": dict.fromkeys(MESH, 1)}
    plan = {"kind": "facts", "at": 0, "attempt": 0, "plan": alone}
    tables = [{"emb": {"rows": 5, "pulled": n, "pushed": 0}, "w": {"numbers": 9}} for n in (0, 30)]
    lines = [
        ranks(at, r0=steps(10 * at), r1=steps(10 * at))
        | {"servers": {"0": {"state": "running", "tables": tables[at]}}}
        for at in (0, 1)
    ]
    told = shown(job(0), plan, *lines)
    assert told["totals"]["samples"] == 160
    server = told["servers"][0]
    assert (server["rows"], server["numbers"]) == (5, 9)
    assert (server["pulled"], server["pushed"]) == (30, 0)


def test_a_rate_begins_with_the_first_step() -> None:
    waits = [ranks(at, r0=steps(0)) for at in range(8)]
    told = shown(job(0), *waits, ranks(8, r0=steps(10)), ranks(9, r0=steps(20)))
    assert told["ranks"][0]["rate"] == 10


def test_a_rank_that_died_is_told_and_a_restart_begins_anew() -> None:
    lines = [job(0), ranks(0, r0=steps(5), r1=steps(5, state="failed", code=-9))]
    told = shown(*lines)
    assert (told["state"], told["words"]) == ("hurt", "Rank 1 ended by signal 9.")
    assert (told["ranks"][1]["flag"], told["ranks"][1]["why"]) == ("dead", "ended by signal 9")
    late = ranks(4, r1=steps(9, state="failed", code=-9))
    told = shown(*lines, job(3, attempt=1), ranks(4, attempt=1, r0=steps(1)), late)
    assert told["state"] == "running"
    assert [rank["step"] for rank in told["ranks"]] == [1], "lines of an earlier attempt are late"
    assert told["job"]["attempt"] == 1


def test_who_is_stuck_is_what_the_launcher_says() -> None:
    verdict = {"culprits": [1], "waiting": [0], "sentence": "rank 1 has been reading data"}
    stuck = {"kind": "stuck", "at": 3, "attempt": 0, **verdict}
    told = shown(job(0), ranks(2, r0=steps(9), r1=steps(9)), stuck)
    assert (told["state"], told["words"]) == ("stuck", verdict["sentence"])
    assert [rank["flag"] for rank in told["ranks"]] == ["waits", "stuck"]
    over = {"kind": "stuck", "at": 4, "attempt": 0}
    assert shown(job(0), ranks(2, r0=steps(9)), stuck, over)["state"] == "running"


def test_the_end_is_told_and_a_launcher_that_is_gone_too() -> None:
    lines = [job(0), ranks(2, r0=steps(9, still=50.0))]
    assert shown(*lines)["ranks"][0]["flag"] == "quiet"
    ended = {"kind": "end", "at": 3, "attempt": 0, "code": 0}
    told = shown(*lines, ended, at=1e6)
    assert (told["state"], told["ranks"][0]["flag"]) == ("done", "")
    assert shown(*lines, {**ended, "code": 1})["state"] == "failed"
    assert shown(*lines, at=2 + SILENT + 1)["state"] == "lost"
    assert Watched().now(0.0)["state"] == "waiting"


def test_a_loss_that_is_no_number_is_said_and_not_drawn() -> None:
    told = shown(job(0), ranks(1, r0=steps(3, loss=float("nan"))))
    assert told["ranks"][0]["flag"] == "not finite"
    assert told["ranks"][0]["loss"] is None
    assert told["points"][0][2] is None


def test_an_earlier_run_in_the_same_folder_is_another_story() -> None:
    old = [job(0, workers=4), ranks(1, r3=steps(7))]
    began = RUN + 10
    told = shown(*old, job(began), ranks(began + 1, r0=steps(1)), ranks(2, r3=steps(8)))
    assert [rank["rank"] for rank in told["ranks"]] == [0]
    assert told["job"]["began"] == began


def test_curves_are_bounded_and_keep_both_ends() -> None:
    watched = Watched()
    watched.take(job(0))
    for at in range(5000):
        watched.take(ranks(at, r0=steps(at)))
    assert len(watched.points) <= 1500
    assert watched.points[0][0] == 0
    assert watched.points[-1][0] == 4999
    assert [point[0] for point in watched.since(4997)] == [4998, 4999]
    assert watched.since(4999) == []
    assert watched.since(0.0) == watched.points[1:]


def one(rank: int, rate: float, exchange: float) -> dict[str, Any]:
    return {"rank": rank, "state": "running", "rate": rate, "exchange": exchange}


@pytest.mark.parametrize(
    ("given", "slow"),
    [
        ([one(0, 10, 0.6), one(1, 10, 0.1)], [1]),
        ([one(0, 10, 0.6), one(1, 10, 0.5)], []),
        ([one(0, 10, 0.15), one(1, 10, 0.0)], []),
        ([one(0, 10, 0.5), one(1, 10, 0.55), one(2, 10, 0.05), one(3, 10, 0.5)], [2]),
        ([one(0, 10, 0.0), one(1, 10, 0.0), one(2, 5, 0.0)], [2]),
        ([one(0, 10, 0.9)], []),
    ],
)
def test_the_slow_one_is_the_one_that_does_not_wait(
    given: list[dict[str, Any]], slow: list[int]
) -> None:
    assert sorted(slow_ranks(given)) == slow
