"""Sparse tables, with both kinds of kernels."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetx.ps.tables.entries import CountFilterEntry, ProbabilityEntry, ShowClickEntry
from fleetx.ps.tables.hashing import mixed, servers_of
from fleetx.ps.tables.index import DENSE, ROOMY, Fullness, Index
from fleetx.ps.tables.initializers import Constant, Normal, Uniform
from fleetx.ps.tables.kernels import numba_index, numba_kernels, numpy_kernels
from fleetx.ps.tables.rules import SGD, Adagrad, Adam, Rule
from fleetx.ps.tables.slot_pool import SlotPool
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.tables.sparse_table import SparseTable

EXTREMES = np.array([0, -1, 1, 2**63 - 1, -(2**63), 2**32, -(2**32)], np.int64)
NO_NAME: Any = 1
RULES = (SGD(0.1), Adagrad(0.1), Adam(0.1))


@pytest.fixture(params=[numpy_kernels, numba_kernels], ids=["numpy", "numba"])
def engine(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def make(engine: ModuleType | None = None, dim: int = 4, **spec: Any) -> SparseTable:
    return SparseTable(SparseSpec(name="t", dim=dim, **spec), engine)


def pulled(table: SparseTable, ids: Any, met: Any = None, *, train: bool = True) -> Any:
    out = np.empty((len(ids), table.spec.dim), np.float32)
    table.pull(np.asarray(ids, np.int64), out, met, train=train)
    return out


def random_ids(count: int, seed: int = 0) -> Any:
    return np.unique(np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, count))


def test_every_64_bit_id_is_legal(engine: ModuleType) -> None:
    table = make(engine)
    first = pulled(table, EXTREMES)
    assert len(table) == len(EXTREMES)
    assert len(np.unique(first, axis=0)) == len(EXTREMES)
    table.push(EXTREMES, np.ones((len(EXTREMES), 4), np.float32), 0.5)
    np.testing.assert_allclose(pulled(table, EXTREMES), first - 0.5)


@pytest.mark.parametrize("initializer", [Uniform(-0.1, 0.1), Normal(0.5, 2.0), Constant(3.0)])
def test_first_rows_depend_on_the_id_alone(initializer: Any) -> None:
    ids = random_ids(3000)
    one, other = (make(initializer=initializer, seed=3) for _ in range(2))
    rows = pulled(one, ids)
    for piece in np.array_split(np.random.default_rng(1).permutation(ids), 7):
        pulled(other, piece)
    assert (pulled(other, ids) == rows).all()
    assert (pulled(make(initializer=initializer, seed=3), ids, train=False) == rows).all()
    if not isinstance(initializer, Constant):
        assert (pulled(make(initializer=initializer, seed=4), ids) != rows).mean() > 0.99


def test_initial_distributions() -> None:
    ids = np.arange(20000)
    even = pulled(make(dim=8, initializer=Uniform(-1, 3)), ids)
    assert -1 <= even.min() < -0.99 < 2.99 < even.max() <= 3
    assert abs(even.mean() - 1) < 0.02
    bell = pulled(make(dim=8, initializer=Normal(2, 0.5)), ids)
    assert abs(bell.mean() - 2) < 0.01
    assert abs(bell.std() - 0.5) < 0.01
    assert abs(np.corrcoef(bell.T) - np.eye(8)).max() < 0.03


def test_servers_get_equal_shares_and_tables_no_clusters() -> None:
    for ids in (np.arange(100_000), random_ids(100_000), np.arange(0, 10**11, 10**6)):
        share = np.bincount(servers_of(ids, 3), minlength=3) / len(ids)
        assert abs(share - 1 / 3).max() < 0.01


def test_it_grows_and_forgets_nothing(engine: ModuleType) -> None:
    table, ids = make(engine, dim=2), random_ids(60_000)
    for piece in np.array_split(ids, 9):
        pulled(table, piece)
    assert len(table) == len(ids)
    assert (pulled(table, ids) == table._first(ids)).all()


@pytest.mark.parametrize(
    ("dim", "rule", "most"),
    [
        (8, Adagrad(), 1.3),
        (16, Adagrad(), 1.3),
        (16, SGD(), 1.3),
        (8, Adam(), 1.3),
        (8, SGD(), 1.6),
        (1, Adagrad(), 4.2),
        (64, SGD(), 1.2),
    ],
)
def test_memory_is_at_most_so_many_times_the_payload(dim: int, rule: Rule, most: float) -> None:
    table = make(numba_kernels, dim=dim, rule=rule, initializer=Constant())
    payload = dim + rule.state_width(dim)
    for begin in range(0, 150_000, 5000):
        pulled(table, np.arange(begin, begin + 5000))
        if begin >= 80_000:
            assert 1 < table.nbytes / (len(table) * 4 * payload) <= most


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_the_rules_are_those_of_torch(engine: ModuleType, rule: Rule) -> None:
    ids, generator = random_ids(500), np.random.default_rng(0)
    table = make(engine, dim=6, rule=rule)
    # In double precision: in single, torch's own Adagrad is off by 3e-5 now and then, depending on
    # where its tensors lie.
    weight = torch.nn.Parameter(torch.from_numpy(pulled(table, ids)).double())
    cls = {"SGD": torch.optim.SGD, "Adagrad": torch.optim.Adagrad, "Adam": torch.optim.Adam}
    optimizer = cls[type(rule).__name__]([weight], lr=0.1)
    for _ in range(5):
        gradient = generator.standard_normal((len(ids), 6)).astype(np.float32)
        weight.grad = torch.from_numpy(gradient).double()
        optimizer.step()
        order = generator.permutation(len(ids))
        table.push(ids[order], np.ascontiguousarray(gradient[order]))
    np.testing.assert_allclose(pulled(table, ids), weight.detach(), rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_gradients_of_an_id_that_comes_twice_are_added_up(engine: ModuleType, rule: Rule) -> None:
    twice, once = make(engine, rule=rule), make(engine, rule=rule)
    gradients = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    twice.push(np.array([7, 8, 7, 9, 7, 8]), gradients)
    sums = [gradients[[0, 2, 4]].sum(0), gradients[[1, 5]].sum(0), gradients[3]]
    once.push(np.array([7, 8, 9]), np.array(sums, np.float32))
    np.testing.assert_allclose(pulled(twice, [7, 8, 9]), pulled(once, [7, 8, 9]), rtol=1e-6)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_empty_batches_are_fine(engine: ModuleType, rule: Rule) -> None:
    table = make(engine, rule=rule)
    nothing, none = np.empty(0, np.int64), np.empty((0, 4), np.float32)
    assert pulled(table, nothing).shape == (0, 4)
    table.push(nothing, none)
    table.add(nothing, none)
    assert (len(table), table.updates) == (0, 2)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["pull", "push", "add", "drop"]),
            st.lists(st.integers(-3, 3) | st.sampled_from(EXTREMES.tolist()), max_size=8),
        ),
        max_size=12,
    )
)
def test_it_is_a_dictionary(  # noqa: C901
    operations: list[tuple[str, list[int]]],
) -> None:
    # Halves are exact, so sums do not depend on their order.
    table, model = make(dim=2, rule=SGD(0.5), initializer=Constant(0.25)), {}
    for operation, listed in operations:
        ids = np.array(listed, np.int64)
        for i in listed:
            if operation != "drop" and i not in model:
                model[i] = table._first(np.array([i], np.int64))[0]
        ones = np.ones((len(ids), 2), np.float32)
        if operation == "pull":
            assert (pulled(table, ids) == np.reshape([model[i] for i in listed], (-1, 2))).all()
        elif operation == "drop":
            table.drop(ids)
            for i in listed:
                model.pop(i, None)
        else:
            sign = -0.5 if operation == "push" else 1.0
            table.push(ids, ones) if operation == "push" else table.add(ids, ones)
            for i in listed:
                model[i] = model[i] + np.float32(sign)
        assert len(table) == len(model)
    for i, row in model.items():
        np.testing.assert_allclose(pulled(table, [i], train=False)[0], row, rtol=1e-5)


@pytest.mark.parametrize("dim", [1, 5, 8, 16, 24, 48])
@pytest.mark.parametrize("count", [0, 1, 100])
def test_rows_of_any_width_are_found_and_added_up(engine: ModuleType, dim: int, count: int) -> None:
    draw = np.random.default_rng(0)
    rows = draw.random((40, dim), np.float32)
    slots = draw.integers(-1, 40, count)
    found = np.full((count, dim), 7, np.float32)
    engine.gather(rows, slots, found)
    engine.clear(slots, found)
    np.testing.assert_array_equal(found, np.where(slots[:, None] < 0, 0, rows[slots]))

    sources, targets = np.abs(slots), draw.integers(0, 3, count)
    total = np.ones((3, dim), np.float32)
    engine.pool_rows(rows, sources, targets, total)
    expected = [1 + rows[sources[targets == target]].sum(0) for target in range(3)]
    np.testing.assert_allclose(total, expected, rtol=1e-5)


@pytest.mark.parametrize("fullness", [ROOMY, DENSE])
def test_both_engines_find_the_same_in_one_index(fullness: Fullness) -> None:
    """Also in lines that are full, and the id that free places seem to hold."""
    ids = np.concatenate([np.arange(1, 20_000), EXTREMES])
    ids = np.unique(ids)
    for known in (ids, ids[ids != 0]):
        index = Index(numpy_kernels, fullness)
        for piece in np.array_split(known, 9):  # it grows meanwhile, and is as full as it may be
            index.insert(piece, np.flatnonzero(np.isin(known, piece)))
        asked = np.concatenate([known, np.array([0]), -known[known > 0] - 7])
        found = []
        for engine in (numpy_kernels, numba_kernels):
            slots = np.full(len(asked), 5)
            missing = engine.find(index._pairs, index._places, asked, slots, -1, 0)
            assert missing == (slots < 0).sum()
            found.append(slots)
        assert (found[0] == found[1]).all()
        assert (found[1][: len(known)] == np.arange(len(known))).all()
        assert (found[1][len(known)] >= 0) == (0 in known)
        places = np.flatnonzero(index._pairs[1::2] >= 0)
        homes = numpy_kernels.homes(mixed(index._pairs[0::2][places]), index._places)
        assert (places - homes >= numpy_kernels.PLACES).any(), "some are behind a full line"


@pytest.mark.parametrize("fullness", [ROOMY, DENSE])
@pytest.mark.parametrize("order", ["chance", "hashes"])
def test_an_index_grows_in_its_place_and_forgets_nothing(
    engine: ModuleType, fullness: Fullness, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba_index, "STEP", 64)  # so that pairs lie across two ranges
    ids = np.random.default_rng(0).permutation(random_ids(30_000))
    index = Index(engine, fullness)
    if order == "hashes":  # as in files, for which room is made first
        ids = ids[np.argsort(mixed(ids))]
        index.reserve(len(ids))
    for begin in range(0, len(ids), 3000):
        piece = ids[begin : begin + 3000]
        index.insert(piece, np.arange(begin, begin + len(piece)))
        seen = begin + len(piece)
        slots, missing = index.find(ids)
        assert missing == len(ids) - seen
        assert (slots[:seen] == np.arange(seen)).all()
        assert (slots[seen:] < 0).all()
    index.reserve(200_000)
    assert (index.find(ids)[0] == np.arange(len(ids))).all()
    assert sorted(index.words()[1]) == [*range(len(ids))]


@pytest.mark.parametrize("fullness", [ROOMY, DENSE])
@pytest.mark.parametrize(
    "order", ["chance", pytest.param("the end of the hash range", marks=pytest.mark.rare)]
)
def test_ids_are_found_or_added_in_one_pass(
    engine: ModuleType, fullness: Fullness, order: str
) -> None:
    known = random_ids(100_000)
    known = known[np.argsort(mixed(known))[-8000:]] if order != "chance" else known[:8000]
    index, pool, rows = Index(engine, fullness), SlotPool(), dict[int, int]()
    chance, most = np.random.default_rng(0), 0
    for turn in range(20):
        ids = known[chance.integers(0, 400 * (turn + 1), 1000)]  # many come twice
        slots, new = index.meet(ids, -1, 0, 0, pool)
        first = {int(i): place for place, i in reversed([*enumerate(ids)])}
        assert [*new] == sorted(place for i, place in first.items() if i not in rows)
        rows |= dict(zip(ids[new].tolist(), slots[new].tolist(), strict=True))
        assert [rows[int(i)] for i in ids] == [*slots]
        assert len({*rows.values()}) == len(rows) == index.size
        most = max(most, len(rows))
        gone = np.isin(index.part(0, 0)[0], known[: 100 * turn])
        for each in index.part(0, 0)[0][gone]:
            pool.give_back(np.array([rows.pop(int(each))]))
        index.prune(0, 0, gone)
    assert pool.used == most, "rows that were given back are used again"


@pytest.mark.parametrize("fullness", [ROOMY, DENSE])
def test_ids_that_are_removed_leave_the_others_where_they_are_found(
    engine: ModuleType, fullness: Fullness
) -> None:
    ids = np.unique(np.concatenate([random_ids(4000), EXTREMES]))  # EXTREMES hold the id 0
    index, chance = Index(engine, fullness), np.random.default_rng(0)
    index.insert(ids, np.arange(len(ids)))
    here = np.ones(len(ids), bool)
    for turn in range(6):
        gone = np.flatnonzero(here & (chance.random(len(ids)) < 0.4))
        index.remove(ids[gone])
        here[gone] = False
        slots, missing = index.find(ids)
        assert (slots == np.where(here, np.arange(len(ids)), -1)).all()
        assert (missing, index.size) == ((~here).sum(), here.sum())
        back = np.flatnonzero(~here)[turn::2]
        index.insert(ids[back], back)
        here[back] = True
    assert sorted(index.words()[0]) == sorted(ids[here])


def test_both_engines_sort_ids_alike() -> None:
    ids = np.random.default_rng(0).integers(-50, 50, 1000)
    for servers in (1, 3):
        for engine in (numpy_kernels, numba_kernels):
            once, begins, place = engine.dedupe(ids, servers)
            assert (once[place] == ids).all()
            assert sorted(once) == sorted(set(ids.tolist()))
            for server in range(servers):
                own = once[begins[server] : begins[server + 1]]
                assert (servers_of(own, servers) == server).all()


def test_a_count_filter_lets_ids_in_when_they_were_met_often_enough(engine: ModuleType) -> None:
    table = make(engine, entry=CountFilterEntry(3), initializer=Constant(1.0))
    assert (pulled(table, [5, 5, 6]) == 0).all()
    table.push(np.array([5]), np.ones((1, 4), np.float32))
    assert (len(table), pulled(table, [5], train=False).max()) == (0, 0)
    assert (pulled(table, [5, 6], np.array([1, 1])) == [[1] * 4, [0] * 4]).all()
    table.push(np.array([5, 6]), np.ones((2, 4), np.float32), 0.5)
    assert (pulled(table, [5, 6], train=False) == [[0.5] * 4, [0] * 4]).all()
    assert (pulled(table, [6], np.array([9])) == 1).all()


def test_a_probability_lets_a_share_of_ids_in_each_time() -> None:
    table = make(entry=ProbabilityEntry(0.25))
    ids = np.arange(20_000)
    for expected in (0.25, 1 - 0.75**2, 1 - 0.75**3):
        pulled(table, ids)
        assert abs(len(table) / len(ids) - expected) < 0.015
    again = make(entry=ProbabilityEntry(0.25))
    for _ in range(3):
        pulled(again, ids)
    assert (again.knows(ids) == table.knows(ids)).all()


def test_shrink_drops_what_was_not_met_for_days(engine: ModuleType) -> None:
    table = make(engine)
    pulled(table, [1, 2, 3])
    assert len(table.shrink(1)) == 0, "all of them were met on the day that ended"
    pulled(table, [2])
    assert sorted(table.shrink(1)) == [1, 3]
    assert table.knows(np.array([1, 2, 3])).tolist() == [False, True, False]
    before = table._rows.used
    pulled(table, [10, 11])
    assert table._rows.used == before, "dropped rows are used again"
    assert (pulled(table, [1]) == table._first(np.array([1]))).all()


def test_many_days_and_many_saves(engine: ModuleType) -> None:
    table = make(engine)
    pulled(table, [1, 2])
    for _ in range(9000):
        pulled(table, [1])
        table.begin_day(table.day + 1)
    assert table.shrink(30).tolist() == [2]
    for _ in range(70_000):
        table.begin_mark()
    table.push(np.array([1]), np.ones((1, 4), np.float32))
    assert len(table.part(0, 0, since=table.mark)) == 1


def test_shows_and_clicks_decide_what_is_worth_keeping(engine: ModuleType) -> None:
    table = make(engine, entry=ShowClickEntry(decay=0.5, lowest=0.8))
    stats = np.array([[4, 2], [4, 0], [1, 1]], np.float32)
    table.push(np.array([1, 2, 3]), np.zeros((3, 4), np.float32), stats=stats)
    # Halved, the scores are 0.1 * 1 + 1 = 1.1, 0.2 and 0.5.
    assert sorted(table.shrink(99)) == [2, 3]
    assert sorted(table.shrink(99)) == [1]


def test_parts_hold_every_row_once(engine: ModuleType) -> None:
    table, ids = make(engine, rule=Adagrad()), random_ids(30_000)
    pulled(table, ids)
    table.push(ids[:100], np.ones((100, 4), np.float32))
    for bits in (0, 3, 7):
        parts = [table.part(number, bits) for number in range(1 << bits)]
        assert sorted(np.concatenate([part.ids for part in parts])) == ids.tolist()
        other = make(engine, rule=Adagrad())
        other.reserve(len(ids))
        for part in parts:
            other.put(part)
        assert (pulled(other, ids) == pulled(table, ids)).all()
        other.push(ids, np.ones((len(ids), 4), np.float32))
    table.push(ids, np.ones((len(ids), 4), np.float32))
    assert (pulled(other, ids) == pulled(table, ids)).all(), "the rule's state came along"


def test_a_mark_tells_what_changed_after_it() -> None:
    table, ids = make(), np.arange(1000)
    pulled(table, ids)
    mark = table.begin_mark()
    table.push(ids[10:20], np.ones((10, 4), np.float32))
    pulled(table, np.array([5000, 3]))
    assert sorted(table.part(0, 0, since=mark).ids) == [*range(10, 20), 5000]


@pytest.mark.parametrize(
    ("make_it", "words"),
    [
        (lambda: CountFilterEntry(-1), "whole number of times"),
        (lambda: CountFilterEntry(True), "whole number of times"),
        (lambda: ProbabilityEntry(1), "between 0 and 1"),
        (lambda: ShowClickEntry(NO_NAME), "names of the two slots"),
        (lambda: SGD(float("nan")), "no number"),
        (lambda: Adam(beta1=1.0), "betas below 1"),
        (lambda: Uniform(1, 0), "is empty"),
        (lambda: SparseSpec(name="../x", dim=4), "cannot be called"),
        (lambda: SparseSpec(name="x", dim=0), "rows of 0 floats"),
    ],
)
def test_nonsense_is_refused(make_it: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_it()
