"""No sample is lost or repeated but those that are stated, for any count, batch and team."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetx.data.shares import Share, Uneven

counts = st.integers(1, 200)
batch_sizes = st.integers(1, 9)
teams = st.integers(1, 8)


def dealt(
    count: int, batch: int, size: int, *, uneven: Uneven = "pad", drop_last: bool = False
) -> list[list[list[int]]]:
    """Batches by worker."""
    workers = []
    for rank in range(size):
        share = Share(rank=rank, size=size, batch_size=batch, uneven=uneven, drop_last=drop_last)
        own = share.positions(count).tolist()
        workers.append([own[at : at + batch] for at in range(0, len(own), batch)])
        assert len(workers[-1]) == share.num_batches(count)
    return workers


@settings(max_examples=200, deadline=None)
@given(counts, batch_sizes, teams, st.sampled_from(["mark", "pad", "drop"]), st.booleans())
def test_workers_are_in_step_and_batches_are_those_of_one_process(
    count: int, batch: int, size: int, uneven: Uneven, drop_last: bool
) -> None:
    workers = dealt(count, batch, size, uneven=uneven, drop_last=drop_last)
    shapes = {tuple(map(len, batches)) for batches in workers}
    assert len(shapes) == 1
    together = [
        sorted(index for part in parts for index in part) for parts in zip(*workers, strict=True)
    ]
    step = batch * size
    alone = [list(range(at, min(at + step, count))) for at in range(0, count, step)]
    for ours, theirs in zip(together, alone, strict=False):
        if len(theirs) == step:
            assert ours == theirs


@settings(max_examples=200, deadline=None)
@given(counts, batch_sizes, teams)
def test_padding_repeats_as_few_as_stated_and_loses_none(count: int, batch: int, size: int) -> None:
    seen = Counter(i for own in dealt(count, batch, size) for part in own for i in part)
    repeated = sum(seen.values()) - count
    assert set(seen) == set(range(count))
    assert repeated == -count % size
    remark = Share(rank=0, size=size, batch_size=batch).remark(count, "sample")
    assert bool(remark) == bool(repeated)


@settings(max_examples=200, deadline=None)
@given(counts, batch_sizes, teams, st.booleans())
def test_dropping_repeats_none_and_loses_the_last(
    count: int, batch: int, size: int, drop_last: bool
) -> None:
    workers = dealt(count, batch, size, uneven="drop", drop_last=drop_last)
    seen = Counter(i for own in workers for part in own for i in part)
    lost = count % (batch * size if drop_last else size)
    assert seen == Counter(range(count - lost))


@settings(max_examples=200, deadline=None)
@given(counts, batch_sizes, teams, teams, st.integers(0, 30))
def test_the_rest_of_an_epoch_goes_to_any_number_of_workers(
    count: int, batch: int, before: int, after: int, steps: int
) -> None:
    given_out = min(steps * batch * before, count)
    seen: set[int] = set(range(given_out))
    for rank in range(after):
        share = Share(rank=rank, size=after, batch_size=batch)
        seen.update(share.positions(count, given_out).tolist())
    assert seen == set(range(count)) or given_out == count


@settings(max_examples=200, deadline=None)
@given(counts, batch_sizes, teams, st.integers(0, 250), st.booleans())
def test_without_what_is_marked_each_entry_is_there_once(
    count: int, batch: int, size: int, given_out: int, drop_last: bool
) -> None:
    """For every size: fewer than workers, not divisible, an epoch that goes on."""
    seen: Counter[int] = Counter(range(min(given_out, count)))
    for rank in range(size):
        share = Share(rank=rank, size=size, batch_size=batch, drop_last=drop_last)
        positions = share.positions(count, given_out)
        flags = share.is_filler(count, given_out)
        assert len(flags) == len(positions)
        seen.update(positions[~flags].tolist())
        plain = Share(rank=rank, size=size, batch_size=batch, uneven="pad")
        assert not plain.is_filler(count, given_out).any(), "they count there as samples"
    rest = max(count - given_out, 0)
    kept = count - (rest % (batch * size) if drop_last else 0)
    assert seen == Counter(range(kept))


def test_remarks() -> None:
    dropping = Share(rank=0, size=4, batch_size=8, drop_last=True)
    assert Share(rank=0, size=4).remark(1001, "sample") == (
        "1,001 samples on 4 workers: 3 samples are repeated in every epoch"
    )
    assert Share(rank=0, size=4, uneven="drop").remark(1001, "sample") == (
        "1,001 samples on 4 workers: 1 sample is left out in every epoch"
    )
    assert "9 samples are left out" in dropping.remark(1001, "sample")
    assert "2 batches are repeated" in Share(rank=0, size=4).remark(6, "batch")


@pytest.mark.parametrize("uneven", ["pad", "drop"])
def test_one_worker_keeps_everything(uneven: Uneven) -> None:
    share = Share(rank=0, size=1, batch_size=4, uneven=uneven)
    assert share.positions(10).tolist() == list(range(10))
    assert share.num_batches(10) == 3
