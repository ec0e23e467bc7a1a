"""The table of a profile, and what it recommends."""

import math

import pytest

from fleetx.profiling.phases import PHASES
from fleetx.profiling.pictures import page
from fleetx.profiling.profile import Profile
from fleetx.profiling.shares import Worker
from fleetx.profiling.tracing import Traced
from fleetx.profiling.trying import Tries, Try

HOST = {"data": 0.002, "forward": 0.004, "backward": 0.010, "update": 0.002, "between": 0.002}


def worker(rank: int = 0, exposed: float = 0.0, **more: float) -> Worker:
    """Of a machine without a card, whose traced steps take twice as long."""
    traced = Traced(
        steps=2,
        host={name: 2 * spent for name, spent in HOST.items()},
        exposed={"backward": 2 * exposed},
        hidden=0.001,
    )
    return Worker(rank=rank, laps=[HOST | more], loads=True, traced=traced)


def on_card(step: float, *, loads: bool = True) -> Worker:
    traced = Traced(
        steps=2,
        host={name: 2 * spent for name, spent in HOST.items()},
        exposed={"backward": 0.001},
        hidden=0.001,
        card={"forward": 0.004, "backward": 0.008, "update": 0.001, "between": 0.0005},
        idle={"data": 0.003, "between": 0.003, "forward": 0.006},
    )
    lap = {**dict.fromkeys(PHASES, 0.0), "forward": step}
    return Worker(rank=0, laps=[lap], loads=loads, traced=traced, on_card=True)


def tries(*seconds: float, before: tuple[float, ...] = (0.100, 0.101)) -> Tries:
    tried = [
        Try(flag=f"flag{at}", words=f"strategy.flag{at} = True", seconds=one, same_update=not at)
        for at, one in enumerate(seconds)
    ]
    return Tries(before=before, tried=tried)


def test_exposed_exchanges_are_taken_from_their_phase() -> None:
    parts = worker(exposed=0.004).parts
    assert parts["exchange"] == pytest.approx(0.004)
    assert parts["backward"] == pytest.approx(0.006)
    assert parts["script"] == pytest.approx(0.002)
    assert sum(parts.values()) == pytest.approx(0.020)


def test_a_card_is_idle_for_what_an_unprofiled_step_leaves() -> None:
    """Traced steps are slower, because the profiler slows the host down."""
    parts = on_card(step=0.0185).parts
    assert parts["forward"] == pytest.approx(0.004)
    assert parts["exchange"] == pytest.approx(0.001)
    assert parts["script"] == pytest.approx(0.0005)
    assert parts["data"] == pytest.approx(0.004 * 0.25)
    assert parts["host"] == pytest.approx(0.004 * 0.75)
    assert sum(parts.values()) == pytest.approx(0.0185)


def test_without_a_loader_the_time_between_steps_is_a_wait_for_data() -> None:
    parts = on_card(step=0.0185, loads=False).parts
    assert parts["data"] == pytest.approx(0.004 * 0.5)
    quiet = Worker(rank=0, laps=[HOST], loads=False)
    assert quiet.parts["data"] == pytest.approx(0.004)
    assert "No DataLoader of torch was seen" in str(Profile(workers=[quiet]))


def test_the_table() -> None:
    found = Profile(workers=[worker(0, exposed=0.001), worker(1, exposed=0.005, forward=0.002)])
    assert str(found).splitlines() == [
        "fleetx profile: 1 step of 2 workers on CPU, 19 ms a step",
        "                              mean  share  rank 0 *  rank 1",
        "  waiting for data            2 ms    11%      2 ms    2 ms",
        "  forward                     3 ms    16%      4 ms    2 ms",
        "  backward                    7 ms    37%      9 ms    5 ms",
        "  exchange, not hidden        3 ms    16%      1 ms    5 ms",
        "  update                      2 ms    11%      2 ms    2 ms",
        "  other lines of the script   2 ms    11%      2 ms    2 ms",
        "  step                       19 ms   100%     20 ms   18 ms",
        "  * the slowest: the other waits for it in exchanges",
        "Hidden behind computation: 1 ms of exchanges a step.",
        "Largest: backward, 37% of a step.",
    ]


def test_what_is_unaccounted_is_said() -> None:
    found = Profile(workers=[on_card(step=0.010)])  # a card that was busy for longer than that
    assert found.unaccounted == pytest.approx(-0.0045)
    assert any(line.startswith("  unaccounted") for line in str(found).splitlines())


def test_the_flag_that_helps_most_is_named() -> None:
    found = Profile(workers=[worker()], tries=tries(0.090, 0.050, math.inf))
    assert found.best is not None
    assert found.best.flag == "flag1"
    # Data and other lines, 4 of 20 ms, stay what they are.
    assert found.with_best == pytest.approx(0.012)
    lines = str(found).splitlines()
    assert lines[-1] == (
        "Would help most: strategy.flag1 = True. 8 ms less a step on this machine, 20 ms -> 12 ms."
    )
    assert lines[-4:-1] == [
        "  strategy.flag1 = True       50 ms  -50%  changes the numbers of an update",
        "  strategy.flag0 = True       90 ms  -10%",
        "  strategy.flag2 = True  cannot run        changes the numbers of an update",
    ]


def test_what_runs_of_the_same_differ_by_is_no_gain() -> None:
    assert tries(0.098).best is None
    assert tries(0.090, before=(0.100, 0.120)).best is None
    assert tries(0.090).best is not None
    assert "None of these flags helps" in str(Profile(workers=[worker()], tries=tries(0.098)))


def test_what_cannot_run_has_no_time_on_the_page() -> None:
    text = page(Profile(workers=[worker()], tries=tries(math.inf)))
    assert '<td>strategy.flag0 = True</td><td class="number">cannot run</td>' in text
    assert "inf%" not in text


def test_tries_survive_the_way_through_a_file() -> None:
    found = tries(0.1, math.inf)
    assert Tries.of_json(found.to_json()) == Tries(before=found.before, tried=tuple(found.tried))
