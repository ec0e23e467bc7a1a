"""A misspelt name is answered with the name that was meant."""

import re
from collections.abc import Iterator

import pytest

import fleetx as fleet
from fleetx.config.old_spellings import ATTRIBUTES
from fleetx.config.switchboard import blocks, names
from fleetx.near_names import did_you_mean, near_names, nearest_names
from fleetx.plan.option import annotations, unknown


def misspelt(name: str) -> Iterator[str]:
    """Every swap of two neighbours, every letter dropped, every letter doubled."""
    for at in range(len(name)):
        yield name[:at] + name[at + 1 :]
        yield name[: at + 1] + name[at:]
        if at:
            yield name[: at - 1] + name[at] + name[at - 1] + name[at + 1 :]


VOCABULARIES = {
    "DistributedStrategy": [*names(), *ATTRIBUTES],
    **{label: [*annotations(config)] for label, config in blocks().items()},
    "fleet": fleet.__all__,
}


@pytest.mark.parametrize("owner", VOCABULARIES)
def test_one_slip_finds_the_name_that_was_meant(owner: str) -> None:
    known = VOCABULARIES[owner]
    but_for_case = {name.lower() for name in known}
    for name in known:
        # A slip may give another known name, written in other case: that one is nearer.
        for word in (w for w in {*misspelt(name)} if w.lower() not in {"", *but_for_case}):
            found = nearest_names(word, known, most=len(known))
            assert name in found, f"{word!r} suggests {found}, not {name!r}"
            assert all(len(other) - len(name) in range(-2, 3) for other in found)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("apm", "amp"),
        ("lras", "lars"),
        ("gradient_merg", "gradient_merge"),
        ("grad_merge", "gradient_merge"),
        ("local_sgd", "localsgd"),
        ("Amp", "amp"),
        ("AMP", "amp"),
        ("shardign", "sharding"),
        ("reCompute", "recompute"),
        ("fuse_grad_size_in_mb", "fuse_grad_size_in_MB"),
        ("sync_bn", "sync_batch_norm"),
        ("tensorparallel", "tensor_parallel"),
        ("use_amp_", "use_amp"),
    ],
)
def test_what_people_type(word: str, meant: str) -> None:
    with pytest.raises(AttributeError) as refused:
        setattr(fleet.DistributedStrategy(), word, True)
    assert str(refused.value) == f"DistributedStrategy has no {word!r}; did you mean {meant!r}?"


def test_names_that_are_as_near_are_all_named() -> None:
    strategy = fleet.DistributedStrategy()
    with pytest.raises(AttributeError, match=re.escape("did you mean 'amp' or 'asp'?")):
        strategy.ap = True  # type: ignore[attr-defined]
    layers = [f"layers.{at}" for at in range(8)]
    assert did_you_mean("layers.9", layers) == (
        "did you mean 'layers.0', 'layers.1' or 'layers.2'?"
    )


def test_what_is_near_to_nothing_is_answered_with_all_names() -> None:
    assert unknown("no", "zero_redundancy", ["lars", "amp"]) == "no; known: amp, lars."
    assert near_names("zero_redundancy", ["lars", "amp"]) == []


def test_a_misspelt_call_of_fleet_is_answered_as_well() -> None:
    with pytest.raises(AttributeError, match="did you mean 'distributed_model'"):
        _ = fleet.distribute_model
    with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
        _ = fleet.nonsense
