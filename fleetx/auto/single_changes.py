"""What may be changed in a strategy by itself: one flag at a time, with the same samples."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleetx.auto.choose import without_auto
from fleetx.auto.search import DEGREES, alternatives
from fleetx.config.distributed_strategy import DistributedStrategy
from fleetx.near_names import did_you_mean
from fleetx.plan.compose import compose
from fleetx.plan.contract import Phase
from fleetx.plan.error import PlanError
from fleetx.plan.strategy import REGISTRY, Plan, Strategy
from fleetx.plan.subject import Subject

FOR_MEMORY = (Phase.MEMORY, Phase.CADENCE)
"""Strategies of these phases save memory, and no time."""
ROUNDING = 1e-4
"""How far weights may move otherwise where the same numbers are added up in another order."""
BUCKETS = "fuse_grad_size_in_MB"
TIMES = (0.25, 4)
"""Other sizes of buckets, in times of the one that is set."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A strategy that differs from the given one in one flag."""

    flag: str
    words: str
    """As a script would write it."""
    strategy: DistributedStrategy
    plan: Plan
    same_update: bool
    """Whether the update stays what it is, but for rounding."""


def single_changes(
    given: DistributedStrategy,
    subject: Subject,
    workers: int,
    *,
    named: Sequence[str] = (),
    driven: bool = False,
) -> list[Change]:
    """All legal changes of one flag.

    Args:
        given: the strategy as it is.
        subject: the model, its optimizer and one worker's batch.
        workers: their number.
        named: only these flags; those that save memory, or change the update, only if named here.
        driven: whether the script gives whole batches to train, as some strategies want it.

    Raises:
        PlanError: a name is no flag.
    """
    refuse_unknown(named)
    found: list[Change] = []
    for flag, words, settings in _settings(given, subject, workers, named, driven):
        made = _with(given, settings)
        try:
            plan = compose(made.request(), workers)
        except PlanError:
            continue
        cls = REGISTRY.get(flag)
        # What the planner may switch on by itself leaves the update as it is, too.
        same = cls is None or _only_rounds(cls) or getattr(given, flag)
        same = same or bool(alternatives(flag, subject, workers, ()))
        change = Change(flag=flag, words=words, strategy=made, plan=plan, same_update=same)
        found.append(change)
    return found


def hindrance(
    flag: str, given: DistributedStrategy, subject: Subject, workers: int, *, driven: bool
) -> str:
    """Why there is no legal change of a flag that was named, as the end of a sentence."""
    if flag == BUCKETS:
        return "one worker exchanges nothing" if workers == 1 else "buckets would be the same"
    contract = REGISTRY[flag].contract
    if "drive" in contract.touches and not driven:
        return (
            "it runs whole batches: give fleet.distributed_model() a criterion, and train with "
            "model.train_batch()"
        )
    if contract.axis is not None and workers == 1:
        return "it spreads the model over workers, and there is one"
    for _, _, settings in _settings(given, subject, workers, [flag], driven):
        try:
            compose(_with(given, settings).request(), workers)
        except PlanError as error:
            return str(error)
    return "nothing of it can be set for this model"


def _only_rounds(cls: type[Strategy]) -> bool:
    tolerance = cls.contract.tolerance
    return tolerance is not None and tolerance <= ROUNDING


def _with(given: DistributedStrategy, settings: Mapping[str, Any]) -> DistributedStrategy:
    made = without_auto(given)
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def refuse_unknown(named: Sequence[str]) -> None:
    """Refuse names of flags that are none."""
    known = [BUCKETS, *(name for name, cls in REGISTRY.items() if not cls.internal)]
    for name in named:
        if name not in known:
            raise PlanError(f"there is no flag {name!r} to try; {did_you_mean(name, known)}")


def _settings(
    given: DistributedStrategy,
    subject: Subject,
    workers: int,
    named: Sequence[str],
    driven: bool,
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Flag, its words, and what is set for it."""
    for name, cls in REGISTRY.items():
        if cls.internal or (named and name not in named):
            continue
        if getattr(given, name):
            if cls.contract.tolerance is not None or name in named:
                yield name, f"strategy.{name} = False", {name: False}
        elif _may_be_on(cls, workers, wanted=name in named, driven=driven):
            yield from _on(name, subject, workers, named)
    if workers > 1 and (not named or BUCKETS in named):
        yield from _buckets(given, subject)


def _may_be_on(cls: type[Strategy], workers: int, *, wanted: bool, driven: bool) -> bool:
    """Whether there is a point in switching a strategy on."""
    contract = cls.contract
    if "drive" in contract.touches and not driven:
        return False
    if contract.axis is not None and workers == 1:
        return False
    return wanted or contract.phase not in FOR_MEMORY


def _on(
    name: str, subject: Subject, workers: int, named: Sequence[str]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    axis = REGISTRY[name].contract.axis
    for options in alternatives(name, subject, 1 if axis is None else workers, named):
        settings: dict[str, Any] = {name: True}
        if axis is not None:
            settings["hybrid_configs"] = {DEGREES[axis]: workers}
        if options:
            settings[f"{name}_configs"] = dict(options)
        yield name, _words(name, options), settings


def _buckets(
    given: DistributedStrategy, subject: Subject
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Other buckets of gradients, where there would be other ones."""
    now = int(given.fuse_grad_size_in_MB)
    whole = sum(piece.size for piece in subject.parameters().values() if piece.trained) / 2**20
    for times in TIMES:
        other = max(1, int(now * times))
        if other != now and min(other, now) < whole:
            yield BUCKETS, f"strategy.{BUCKETS} = {other}", {BUCKETS: other}


def _words(name: str, options: Mapping[str, Any]) -> str:
    set_so = f"strategy.{name} = True"
    return f"{set_so}, {name}_configs = {dict(options)}" if options else set_so
