"""Who waits for whom, judged from what ranks tell of themselves."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fleetx as fleet
from fleetx.launch import reporter as reporting
from fleetx.launch.errors import LaunchError
from fleetx.launch.out_of_step import different_updates
from fleetx.launch.reporter import Reporter
from fleetx.launch.seen import Group, Seen, Verdict, from_json, to_json
from fleetx.launch.standstill import ended_early, judge
from fleetx.launch.stuck import DEFAULT_WARNING, Limits
from fleetx.roles import activity
from fleetx.testing import world

ALL = (0, 1, 2, 3)
DONE = Seen(
    still=40,
    doing=activity.READING,
    batches=812,
    place="reader.py:31",
    groups={"dp": Group("mesh_dp", ALL, made=50, recent={50: ("all-reduce", "[[4]]")})},
)
OPEN = Group("mesh_dp", ALL, made=51, open=51, recent={51: ("all-reduce", "[[4]]")})
WAITING = Seen(
    still=38,
    doing="in backward",
    batches=813,
    owners={"dp": "data_parallel"},
    groups={"dp": OPEN},
    place="train.py:8",
)


def verdict(seen: dict[int, Seen], limit: float = 30) -> Verdict:
    found = judge(seen, limit)
    assert found is not None
    return found


def test_the_rank_that_has_not_begun_what_others_have_is_the_culprit() -> None:
    seen = dict.fromkeys(ALL, WAITING) | {1: DONE}
    found = verdict(seen)
    assert found.culprits == (1,)
    assert found.sentence == (
        "rank 1 has been reading data at reader.py:31 for 40 s (step 812); ranks 0, 2, 3 wait for "
        "it in the all-reduce of data_parallel"
    )
    assert verdict(from_json(to_json(seen))) == found, "another machine judges alike"


@pytest.mark.parametrize(
    "seen",
    [
        dict.fromkeys(ALL, DONE),  # all read data: nobody waits
        dict.fromkeys(ALL, WAITING) | {1: replace(DONE, still=1.0)},  # it goes on
        dict.fromkeys(ALL, replace(WAITING, still=3.0)) | {1: DONE},  # nobody has waited for long
        {0: WAITING},  # of rank 1 nothing is known yet
    ],
)
def test_nobody_is_named_without_a_reason(seen: dict[int, Seen]) -> None:
    assert judge(seen, 30) is None


def test_a_chain_leads_to_its_end() -> None:
    other = Group("mesh_pp", (2, 3), made=7, open=7, recent={7: ("broadcast", "[[1]]")})
    seen = {
        0: replace(WAITING, groups={"dp": replace(OPEN, ranks=(0, 2))}),
        2: replace(WAITING, groups={"dp": replace(OPEN, made=50, open=0), "pp": other}),
        3: DONE,
    }
    found = verdict(seen)
    assert found.culprits == (3,)
    assert found.waiting == (0, 2)


def test_ranks_that_wait_for_each_other_and_why() -> None:
    met = replace(DONE, meetings=4, meeting="fleet.barrier_worker()", doing="in the barrier")
    seen = {0: WAITING, 1: met}
    found = verdict(seen)
    assert found.culprits == (0, 1)
    assert "wait for each other: rank 0 in the all-reduce of data_parallel at train.py:8" in (
        found.sentence
    )
    assert "rank 1 in fleet.barrier_worker()" in found.sentence
    assert "must make the same number of batches" in found.sentence
    shapes = {0: "((4, 8),)", 1: "((2, 8),)"}
    told = {r: replace(s, batches=5, notes={"shapes": shapes[r]}) for r, s in seen.items()}
    assert "They differ in shapes: ((4, 8),) on rank 0, ((2, 8),) on rank 1" in (
        verdict(told).sentence
    )
    same = {rank: replace(each, batches=5) for rank, each in seen.items()}
    assert "the same exchanges in a different order" in verdict(same).sentence


def test_collectives_that_differ_are_the_first_thing_to_be_told() -> None:
    mixed = replace(OPEN, recent={50: ("all-reduce", "[[4]]"), 51: ("broadcast", "[[9]]")})
    seen = {0: WAITING, 1: replace(WAITING, groups={"dp": mixed})}
    found = verdict(seen)
    assert found.culprits == (0, 1)
    assert "as number 51 of the same group" in found.sentence
    assert "rank 0 made an all-reduce of [[4]] of data_parallel (step 813)" in found.sentence
    assert "rank 1 made a broadcast of [[9]]" in found.sentence


def test_a_rank_that_left_out_the_end_of_a_batch() -> None:
    """Its exchanges fit those of others until something is compared."""
    meets = replace(WAITING, meetings=4, meeting="what all workers do or none", groups={})
    level = {0: replace(meets, batches=16, calls=16, ended=15)}
    skipped = replace(WAITING, batches=16, calls=17, ended=15)
    told = (
        "rank 0 has called the model 16 times and ended 15 batches, rank 1 has called the model 17 "
        "times and ended 15 batches: every rank must end each batch"
    )
    circle = verdict(level | {1: skipped})
    assert "wait for each other" in circle.sentence
    assert told in circle.sentence
    # The same, where nothing says that the other one waits as well.
    found = verdict(level | {1: replace(skipped, groups={})})
    assert "rank 1 has been in backward at train.py:8" in found.sentence
    assert told in found.sentence
    assert found.culprits == (0, 1), "nobody knows which of the two is right"


def test_a_rank_that_left_its_loop_early_is_not_innocent() -> None:
    """It waits, outside of batches, for one that is in a batch that it never began."""
    left = replace(WAITING, doing=activity.READING, batches=149, calls=149, ended=149)
    ahead = replace(WAITING, doing="in forward", batches=150, calls=150, ended=149, groups={})
    found = verdict({0: ahead, 1: left})
    assert found.culprits == (0, 1)
    assert "rank 0 has begun 150 batches, rank 1 has begun 149 batches" in found.sentence
    slow = replace(ahead, batches=149, calls=149, ended=148)
    found = verdict({0: slow, 1: left})
    assert found.culprits == (0,), "it has not come as far as rank 1"
    assert "must" not in found.sentence


def test_different_numbers_of_updates_at_the_end() -> None:
    done = replace(DONE, state="ended", updates=15, owners={"dp": "data_parallel"})
    assert different_updates({0: done, 1: done}) == ""
    said = different_updates({0: done, 1: replace(done, updates=14), 2: done})
    assert "different numbers of updates: 14 on rank 1, 15 on ranks 0, 2" in said
    alone = replace(done, owners={})  # a worker of parameter servers
    assert different_updates({0: alone, 1: replace(alone, updates=14)}) == ""


def test_a_wait_that_nobody_counts_is_for_those_who_do_not_wait() -> None:
    pair = {"pp": Group("mesh_pp", (0, 1), pairs=9)}
    waiting = replace(WAITING, groups=pair, waits="batch_isend_irecv", strategy="pipeline")
    found = verdict({0: waiting, 1: replace(DONE, groups=pair), 2: DONE})
    assert found.culprits == (1,), "rank 2 has no part in it"
    assert "rank 0 waits for it in the transfer of pipeline" in found.sentence


def test_who_ended_well_is_behind_the_failure_of_who_needed_it() -> None:
    failed = replace(WAITING, state="failed", broken=True)
    gone = replace(DONE, state="ended")
    found = ended_early({0: failed, 1: gone}, 0)
    assert found is not None
    assert found.culprits == (1,)
    assert "rank 1 ended with code 0 after 812 batches" in found.sentence
    level = {"dp": replace(OPEN, made=51, open=0)}
    assert ended_early({0: failed, 1: replace(gone, groups=level)}, 0) is None, "it was not needed"


def test_limits_by_flag_and_by_variables() -> None:
    assert Limits.of(None, {}) == Limits(DEFAULT_WARNING, None)
    assert DEFAULT_WARNING < 30
    assert Limits.of(None, {"FLEETX_TIMEOUT": "90"}).end == 90
    assert Limits.of(7.0, {"FLEETX_TIMEOUT": "90"}).end == 7
    assert Limits.of(None, {"FLEETX_STUCK_WARNING": "0"}).warn == float("inf")
    with pytest.raises(LaunchError, match="FLEETX_STUCK_WARNING='soon' is not a number of sec"):
        Limits.of(None, {"FLEETX_STUCK_WARNING": "soon"})


def test_a_process_that_goes_on_says_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proved by counting: nobody looks at stacks and records of collectives while it goes on."""
    looks: list[str] = []

    def looked(at: str) -> dict[str, Any]:
        looks.append(at)
        return {}

    monkeypatch.setattr(Reporter, "_collectives", lambda self: looked("record"))
    monkeypatch.setattr(reporting, "_located", lambda places: looked("stack"))
    reporter = Reporter(str(tmp_path / "told"), after=0.0)
    activity.forget()
    for _ in range(5):
        activity.begin_batch()
        reporter._after = 1e9
        reporter.beat()
    assert looks == []
    reporter._after = 0.0
    reporter.beat()
    assert looks == ["record", "stack"]
    reporter.beat()
    assert looks == ["record", "stack", "stack"], "the record is read once in ten seconds"
    told: dict[str, Any] = json.loads((tmp_path / "told").read_text())
    assert told["batches"] == 5
    assert told["doing"] == "in forward"
    assert told["still"] <= told["written"]


def words_of_a_step() -> list[str]:
    fleet.init(is_collective=True)
    model = fleet.distributed_model(torch.nn.Linear(2, 1))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    said: list[str] = []
    activity.listeners.append(said.append)
    try:
        for _ in range(2):
            said.clear()
            optimizer.minimize(model(torch.ones(1, 2)).sum())
    finally:
        activity.listeners.remove(said.append)
    return [*said, str(activity.now()["batches"])]


def test_a_step_says_four_words() -> None:
    (said,) = world(1).run(words_of_a_step)
    assert said == ["in forward", "in backward", "in the update", activity.READING, "2"]
