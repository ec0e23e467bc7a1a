"""Every option of a job without servers is in force, which is seen, or is refused in a sentence."""

from collections.abc import Iterator
from typing import Any

import pytest

import fleetx as fleet
from fleetx.config.switchboard import switches
from fleetx.testing import world
from tests.promise.answers import AUTO, WORKERS, Answer, Changes, Refused
from tests.promise.observed import Case, Seen, observe
from tests.promise.options import Option, every

OPTIONS = every()
ANSWERS: dict[str, Answer] = {n: a for n, a in WORKERS.items() if isinstance(a, Answer)}
KNOWN: dict[tuple[int, Case], list[Seen]] = {}
"""What all ranks saw, for the options that are held against the same run."""


def settings(option: Option, answer: Answer, *, on: bool) -> dict[str, Any]:
    """What is assigned, with the option or without it."""
    if not on and isinstance(answer, Changes) and answer.against is not None:
        return dict(answer.against)
    found: dict[str, Any] = dict(answer.company)
    if option.switch:
        found[option.switch] = True
    if not on:
        return found
    value = option.other() if answer.value is AUTO else answer.value
    if not option.block:
        return found | {option.key: value}
    return found | {option.block: {**found.get(option.block, {}), option.key: value}}


def case(name: str, *, on: bool) -> Case:
    answer = ANSWERS[name]
    return Case.of(settings(OPTIONS[name], answer, on=on), answer.model, adam=answer.adam)


def refusal(name: str) -> str | None:
    """What the assignment or the plan says; None when both are content."""
    try:
        case(name, on=True).strategy().explain(workers=ANSWERS[name].workers)
    except (TypeError, ValueError) as error:
        return str(error)
    return None


def cases(names: list[str]) -> Iterator[Case]:
    """What has to be run."""
    for name in names:
        if isinstance(ANSWERS[name], Changes):
            yield case(name, on=False)
        if isinstance(ANSWERS[name], Changes) or refusal(name) is None:
            yield case(name, on=True)


def run(workers: int, names: list[str]) -> None:
    """Train what these options ask for, unless it was trained already."""
    missing = [each for each in dict.fromkeys(cases(names)) if (workers, each) not in KNOWN]
    if missing:
        ranks = world(workers, timeout=280).run(observe, missing)
        for at, each in enumerate(missing):
            KNOWN[workers, each] = [rank[at] for rank in ranks]


def complaint(name: str) -> str | None:
    """What is wrong with the promise of an option."""
    answer = ANSWERS[name]
    if isinstance(answer, Refused):
        told = refusal(name) or str(KNOWN[answer.workers, case(name, on=True)][0].error)
        return None if answer.words in told else f"{name} is not refused, or for {told}"
    assert isinstance(answer, Changes)
    on, off = (KNOWN[answer.workers, case(name, on=value)] for value in (True, False))
    if on[0].error is not None:
        return f"{name} does not train: {on[0].error}"
    if off[0].error is not None and answer.what != "error":
        return f"{name} has nothing to be compared with: {off[0].error}"
    if [rank.of(answer.what) for rank in on] != [rank.of(answer.what) for rank in off]:
        return None
    others = [field for field in vars(on[0]) if on[0].of(field) != off[0].of(field)]
    return f"{name} leaves the {answer.what} as without it; what differs: {others}"


def families() -> dict[tuple[int, str], list[str]]:
    """Options by the number of workers that it takes to see them, and by their block."""
    found: dict[tuple[int, str], list[str]] = {}
    for name, answer in ANSWERS.items():
        option = OPTIONS[name]
        block = option.block or ("switches" if name in switches() else "options")
        found.setdefault((answer.workers, block), []).append(name)
    return found


@pytest.mark.parametrize(("workers", "block"), list(families()))
def test_every_option_does_something_or_is_refused(workers: int, block: str) -> None:
    names = families()[workers, block]
    run(workers, names)
    assert [found for name in names if (found := complaint(name))] == []


def test_what_is_seen_does_not_change_by_itself() -> None:
    """Else every option would be in force."""
    twice = [Case.of({"fuse_all_reduce_ops": False, "nccl_comm_num": 2})] * 2
    for first, second in world(2, timeout=280).run(observe, twice):
        assert first == second
        assert first.collectives
        assert first.weights


@pytest.mark.parametrize("name", [n for n, a in ANSWERS.items() if isinstance(a, Refused)])
def test_a_refusal_names_what_was_set(name: str) -> None:
    told = refusal(name)
    if told is not None:
        assert OPTIONS[name].key in told
        assert told.endswith(".")


def test_the_default_of_everything_is_legal_and_says_nothing() -> None:
    assert "At rest" not in fleet.DistributedStrategy().explain(workers=2)
