"""Every legal set of two and three flags trains on two processes, and larger ones at random.

Ranks agree, a flag that must not change the result does not, one that changes it by design does,
and nothing is dropped.
"""

import collections
import functools
import itertools
import random
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fleetx as fleet
from fleetx import roles
from fleetx.checking.eager import Trial
from fleetx.checking.outcome import Outcome
from fleetx.checking.report import Verdict, judge
from fleetx.config.composition import DOCUMENTED, flags, page, refusal
from fleetx.plan.compose import compose
from fleetx.plan.mesh import data_place
from fleetx.testing import world
from tests.rotation import rotating
from tests.strategies.fp8.stand_in import device_is_allowed

SETTINGS: dict[str, dict[str, Any]] = {
    "adaptive_localsgd": {"init_k_steps": 3, "begin_step": 3},
    "amp": {"init_loss_scaling": 1024.0},
    "clip": {"limit": 0.2},
    "dgc": {"rampup_begin_step": 1, "sparsity": [0.5]},
    "fp16_allreduce": {},
    "gradient_merge": {"k_steps": 2},
    "lamb": {},
    "lars": {"lars_coeff": 0.1},
    "localsgd": {"k_steps": 3, "begin_step": 3},
    "recompute": {"checkpoints": ["body"]},
    "sharding": {"segment_broadcast_MB": 0.05},
    "sync_batch_norm": {},
}
COMPILED: dict[str, dict[str, Any]] = {"compile": {"backend": "aot_eager"}}
"""Trained in pairs: what is compiled is the same in larger sets, and takes its time."""
FLOAT8: dict[str, dict[str, Any]] = {"fp8": {}}
"""Trained in pairs, by CPUs that are taken for a GPU which can."""
CAPTURED = {"cuda_graph"}
"""Trained in tests/strategies/test_cuda_graph.py, and in test_captured_*.py next to it."""
SPREAD: dict[str, dict[str, Any]] = {
    # One micro-batch, because batch norm would see the difference.
    "pipeline": {"split": ["mlp"], "micro_batch_size": 8, "schedule_mode": "F-then-B"},
    "tensor_parallel": {"tensor_parallel_degree": 2, "column": ["mlp.0"], "row": ["mlp.2"]},
}
"""Flags under which several workers share a batch."""
BATCHES = 6
"""Workers that train alone meet at the third and the sixth update; both may be the last one."""


def job(names: frozenset[str], place: int) -> Trial:
    """A model with something for every flag: wide layers, batch norm, dropout, a named part."""
    torch.manual_seed(0)
    # Ranks that share a batch draw other numbers than a rank alone.
    dropped = 0.0 if names & SPREAD.keys() else 0.1
    # Without a bias: before a batch norm its gradient is nothing but rounding errors, which rules
    # that normalise the update blow up.
    linear = nn.Linear(128, 128, bias=False)
    body = nn.Sequential(linear, nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(dropped))
    # Too small for dgc, which would look for the largest entries of each part of a cut layer.
    mlp = nn.Sequential(nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 128))
    parts = {"stem": nn.Linear(8, 128), "body": body, "mlp": mlp, "head": nn.Linear(128, 4)}
    if not names & SPREAD.keys():
        del parts["mlp"]
    model = nn.Sequential(OrderedDict(parts))
    generator = torch.Generator().manual_seed(1 + place)
    batches = [
        (
            torch.randn(8, 8, generator=generator),
            torch.randint(0, 4, (8,), generator=generator),
        )
        for _ in range(BATCHES)
    ]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Trial(model, optimizer, batches, nn.functional.cross_entropy, seed=3)


def request(names: Iterable[str]) -> Any:
    strategy = fleet.DistributedStrategy()
    settings = SETTINGS | SPREAD | COMPILED | FLOAT8
    for name in names:
        setattr(strategy, name, True)
        if settings[name]:
            setattr(strategy, f"{name}_configs", settings[name])
    return strategy.request()


Key = tuple[frozenset[str], bool, frozenset[str]]
"""Flags, whether it is Adam's rule, and the flags under which workers share batches."""


def keys(names: tuple[str, ...]) -> dict[str, Key]:
    """What to train for one set: everything under "", and everything but each flag."""
    shared = frozenset(names).intersection(SPREAD)
    return {
        left_out: (frozenset(names) - {left_out}, "lamb" in names, shared)
        for left_out in ("", *names)
    }


def outcomes(wanted: list[Key]) -> list[Outcome]:
    roles.start(is_collective=True)
    return [train(*key) for key in wanted]


def train(names: frozenset[str], adam: bool, shared: frozenset[str]) -> Outcome:
    # Who shares a batch in the whole set does so in every part of it.
    mesh = compose(request(sorted(shared)), roles.worker_num()).mesh
    trial = job(shared, data_place(mesh, roles.worker_index())[0])
    if adam:
        optimizer = torch.optim.Adam(trial.model.parameters(), lr=0.002)
        trial = Trial(trial.model, optimizer, trial.batches, trial.criterion, trial.seed)
    with device_is_allowed():
        outcome = trial.run(request(sorted(names)))
    assert set(outcome.tolerances) == names, "nothing is dropped"
    return outcome


KNOWN: dict[int, dict[Key, Outcome]] = collections.defaultdict(dict)
"""By the number of workers: what was trained, for every test that holds something against it."""


def trained(sets: list[tuple[str, ...]], workers: int) -> dict[Key, Outcome]:
    """Every set and every set with one flag less, each trained once."""
    known = KNOWN[workers]
    wanted = dict.fromkeys(key for names in sets for key in keys(names).values())
    missing = [key for key in wanted if key not in known]
    found = world(workers, timeout=280).run(outcomes, missing)[0]
    known.update(zip(missing, found, strict=True))
    return known


def faults(sets: list[tuple[str, ...]], workers: int = 2) -> list[str]:
    found = trained(sets, workers)
    complaints = []
    for names in sets:
        without = {left_out: found[key] for left_out, key in keys(names).items()}
        everything = without.pop("")
        report = judge(everything, without, workers=workers)
        idle = [f.subject for f in report.findings if f.verdict is Verdict.NO_EFFECT]
        apart = [f.subject for f in report.findings if f.verdict is Verdict.APART]
        if not report.ok or idle or apart or everything.moved < 0.01:
            complaints.append(str(report))
    return complaints


def legal(size: int, among: Iterable[str] = SETTINGS) -> list[tuple[str, ...]]:
    return [names for names in itertools.combinations(sorted(among), size) if composes(*names)]


@functools.cache
def composes(*names: str) -> bool:
    """A pair that is refused is not asked about again in the thousands of sets that hold it."""
    pairs = itertools.combinations(names, 2) if len(names) > 2 else ()
    return all(composes(*pair) for pair in pairs) and refusal(*names) is None


def test_every_flag_of_this_version_takes_part() -> None:
    assert flags() == sorted([*SETTINGS, *SPREAD, *COMPILED, *FLOAT8, *CAPTURED])


def test_at_least_55_pairs_train_and_those_of_the_document_are_among_them() -> None:
    assert len(list(itertools.combinations(DOCUMENTED, 2))) == 66
    assert len(legal(2, DOCUMENTED)) >= 55
    document = (
        ("amp", "recompute"),
        ("dgc", "recompute"),
        ("lars", "recompute"),
        ("lamb", "recompute"),
        ("amp", "localsgd"),
        ("adaptive_localsgd", "amp"),
        ("amp", "lars"),
        ("amp", "lamb"),
        ("amp", "lars", "recompute"),
        ("amp", "lamb", "recompute"),
    )
    for names in document:
        assert refusal(*names) is None, names


def test_pairs() -> None:
    assert faults(legal(2)) == []


def test_pairs_of_which_one_is_compiled() -> None:
    pairs = [names for names in legal(2, SETTINGS | COMPILED) if "compile" in names]
    assert len(pairs) == len(SETTINGS)
    assert faults(pairs) == []


@pytest.mark.rare
def test_pairs_of_which_one_multiplies_in_float8() -> None:
    pairs = [names for names in legal(2, SETTINGS | COMPILED | FLOAT8) if "fp8" in names]
    assert len(pairs) == len(SETTINGS) + 1
    assert faults(pairs) == []


@pytest.mark.rare
def test_float8_where_workers_share_batches() -> None:
    pairs = [names for names in legal(2, SPREAD | FLOAT8) if "fp8" in names]
    assert len(pairs) == len(SPREAD)
    assert faults(pairs, workers=4) == []


@pytest.mark.parametrize("spread", rotating(sorted(SPREAD), 2))
def test_pairs_of_which_one_is_compiled_where_workers_share_batches(spread: str) -> None:
    assert composes("compile", spread)
    assert faults([("compile", spread)]) == []


@pytest.mark.parametrize("spread", sorted(SPREAD))
def test_pairs_in_which_workers_share_batches(spread: str) -> None:
    pairs = [names for names in legal(2, SETTINGS | SPREAD) if spread in names]
    assert len(pairs) == len(SETTINGS) + 1
    assert faults(pairs, workers=4) == []


@pytest.mark.parametrize("number", rotating(range(3), 3))
def test_larger_sets_in_which_workers_share_batches_at_random(number: int) -> None:
    both = set(SPREAD)
    larger = [names for names in legal(4, SETTINGS | SPREAD) if both <= set(names)]
    chosen = random.Random(0).sample(larger, 3)
    assert faults([chosen[number]], workers=8) == []


@pytest.mark.parametrize("part", rotating(range(6), 6))
def test_triples(part: int) -> None:
    triples = legal(3)
    assert len(triples) > 80
    assert faults(triples[part::6]) == []


@pytest.mark.parametrize("part", rotating(range(4), 4))
def test_larger_sets_at_random(part: int) -> None:
    larger = [names for size in range(4, 9) for names in legal(size)]
    chosen = random.Random(0).sample(larger, 24)
    assert faults(chosen[part::4]) == []


def test_a_refusal_gives_its_reason_and_does_not_depend_on_the_order() -> None:
    for pair in itertools.combinations(flags(), 2):
        reason = refusal(*pair)
        assert (reason is None) == (refusal(*reversed(pair)) is None)
        if reason is not None:
            assert all(name in reason for name in pair), reason
            assert reason.endswith("off."), reason


def test_the_page_is_true() -> None:
    path = Path(__file__).parent.parent / "docs" / "composition.md"
    assert path.read_text(encoding="utf-8") == page(), (
        "run `python -m fleetx.config.composition > docs/composition.md`"
    )
