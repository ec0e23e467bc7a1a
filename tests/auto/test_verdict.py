"""What is said about the best plans: why none fits, and what would change the choice."""

from dataclasses import replace

from fleetx.auto.units import size
from fleetx.auto.verdict import CANDIDATES, shortage, told, what_would_change
from tests.auto.test_search import cluster, search


def test_it_says_by_how_much_nothing_fits_and_what_takes_the_room() -> None:
    best = search(cluster(memory_gigabytes=1e-3)).best()
    said, found = shortage(best), best[0].estimate
    assert f"takes {size(found.memory)} on the fullest device, which has 1 MB" in said
    assert f"{size(found.memory - 1e6)} are missing" in said
    assert max(found.held, key=lambda what: found.held[what]) in said
    assert sum(found.held.values()) == found.memory
    assert told(best[0]) in said
    assert shortage(search(cluster()).best()) == ""


def test_what_would_change_the_choice_is_found_on_changed_clusters() -> None:
    roomy = search(cluster()).best()[0].estimate.memory
    short = search(cluster(memory_gigabytes=0.6 * roomy / 1e9, nodes=2, devices_per_node=2))
    best = short.best()[0]
    changes = {change.what: change for change in what_would_change(short, best)}
    assert changes.keys() >= {"twice the memory on each device", "half the speed between machines"}
    more = changes["twice the memory on each device"]
    assert more.is_other
    assert more.after.estimate.memory > best.estimate.available
    assert more.after.estimate.seconds < best.estimate.seconds
    assert told(more.after) in str(more)
    slower = changes["half the speed between machines"].before.estimate
    assert slower.exchange > best.estimate.exchange
    assert changes["twice the arithmetic on each device"].before.estimate.forward < (
        best.estimate.forward
    )


def test_a_choice_that_stays_is_said_to_stay() -> None:
    found = search(cluster(), sharding=False, tensor_parallel=False, recompute=False, amp=False)
    best = found.best()[0]
    changes = what_would_change(found, best)
    assert not any(change.is_other for change in changes)
    assert all("the same plan stays the best one" in str(change) for change in changes)
    assert not any("between machines" in change.what for change in changes), "there is one"
    assert len(found.looked_at) < CANDIDATES
    assert replace(changes[0].after, estimate=best.estimate) == best
