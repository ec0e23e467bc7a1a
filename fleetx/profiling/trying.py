"""Which flag would shorten a step: each legal one is tried on copies of the model."""

import copy
import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fleetx import roles
from fleetx.api.session import Given, sharers
from fleetx.api.trials import Trial
from fleetx.auto.choose import subject_of, without_auto
from fleetx.auto.single_changes import Change, hindrance, single_changes
from fleetx.auto.units import seconds
from fleetx.config.distributed_strategy import DistributedStrategy
from fleetx.engine.engine import Engine
from fleetx.plan.accounts import Accounts
from fleetx.plan.compose import compose
from fleetx.plan.error import PlanError
from fleetx.plan.run import Run
from fleetx.plan.strategy import Plan
from fleetx.plan.subject import Subject
from fleetx.torch_internals import tree_leaves, tree_map

SECONDS = 60.0
"""After so many seconds no other flag is tried."""
ABOUT = 0.03
"""What a flag must save at least, as a share of an update, to be recommended."""


@dataclass(frozen=True, kw_only=True)
class Try:
    """A flag that was tried."""

    flag: str
    words: str
    seconds: float
    """Of an update on the slowest worker; infinite if it could not run."""
    same_update: bool
    """Whether the update stays what it is, but for rounding."""

    def row(self, base: float) -> list[str]:
        """Of a table, given the seconds of an update as it is."""
        remark = "" if self.same_update else "changes the numbers of an update"
        if not math.isfinite(self.seconds):
            return [self.words, "cannot run", "", remark]
        return [self.words, seconds(self.seconds), f"{self.seconds / base - 1:+.0%}", remark]


@dataclass(frozen=True, kw_only=True)
class Tries:
    """What came of trying flags."""

    before: Sequence[float] = ()
    """Seconds of an update as the script has it, before the tries and after them."""
    tried: Sequence[Try] = ()
    why_not: str = ""
    """Why nothing was tried, or not everything."""

    @property
    def base(self) -> float:
        """Seconds of an update as the script has it."""
        return min(self.before)

    @property
    def best(self) -> Try | None:
        """The flag that helps most; None if none helps for sure."""
        if not self.before:
            return None
        least = min(self.tried, key=lambda one: one.seconds, default=None)
        # What two runs of the same differ by is no gain.
        doubt = max(ABOUT, (max(self.before) - self.base) / self.base)
        helps = least is not None and least.seconds < self.base * (1 - doubt)
        return least if helps else None

    def rows(self) -> list[list[str]]:
        """A table: the flag, an update, its change, a remark; the fastest first."""
        ordered = sorted(self.tried, key=lambda one: one.seconds)
        return [one.row(self.base) for one in ordered]

    def to_json(self) -> dict[str, Any]:
        """As plain values; what could not run has no time."""
        tried = [asdict(one) for one in self.tried]
        for one in tried:
            one["seconds"] = one["seconds"] if math.isfinite(one["seconds"]) else None
        return {"before": [*self.before], "tried": tried, "why_not": self.why_not}

    @staticmethod
    def of_json(told: Mapping[str, Any]) -> "Tries":
        """What `to_json` made."""
        tried = tuple(
            Try(**{**one, "seconds": math.inf if one["seconds"] is None else one["seconds"]})
            for one in told["tried"]
        )
        return Tries(before=tuple(told["before"]), tried=tried, why_not=told["why_not"])


@dataclass
class Batch:
    """One batch of the script, and how its model was given it."""

    sample: Any = None
    targets: Any = None
    driven: bool = False

    def called(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The script calls its model; the loss is its own."""
        self.sample = _kept(as_inputs(model, args, kwargs))

    def given(self, batch: Any) -> None:
        """The script gives inputs and targets to train."""
        inputs, targets = batch
        self.sample, self.targets, self.driven = _kept(inputs), _kept(targets), True


@dataclass(kw_only=True)
class Trier:
    """Tries flags; all workers run it, and find the same.

    Args:
        model: a copy of the script's model, as it was before it was laid out.
        engine: of the script's model.
        strategy: of the job.
        batch: one of the script's.
        named: only these flags.
        seconds: after which no other flag is tried.
        say: is told what is tried.
        keep: is given what is known so far.
    """

    model: nn.Module
    engine: Engine
    strategy: DistributedStrategy
    batch: Batch
    named: Sequence[str] = ()
    seconds: float = SECONDS
    say: Callable[[str], None] = lambda said: None
    keep: Callable[[Tries], None] = lambda tries: None
    _tried: list[Try] = field(default_factory=list)

    def run(self) -> Tries:
        """Try all that is legal."""
        shown = Given(
            self.model,
            self.batch.sample,
            self.engine.criterion if self.batch.driven else None,
            self.batch.targets,
        )
        assert self.engine.given is not None, "a model that trains has an optimizer"
        trial = Trial(shown, self.engine.given, "fleetx profile")
        if found := self._hindrance(trial):
            return Tries(why_not=found)
        workers = roles.worker_num()
        now = compose(without_auto(self.strategy).request(), workers)
        changes, left_out = self._changes(shown, now)
        if left_out and not changes:
            return Tries(why_not=left_out)
        count = f"{len(changes)} flag{'s' * (len(changes) != 1)}"
        self.say(f"trying {count} on copies of the model, at most {self.seconds:g} s")
        began = time.monotonic()
        first = self._took(trial, now, now)
        if not math.isfinite(first):
            return Tries(why_not="a copy of the model does not train by itself; its log says why")
        why_not = [left_out] if left_out else []
        for at, change in enumerate(changes, 1):
            if max(roles.util.all_gather(time.monotonic() - began)) > self.seconds:
                left = ", ".join(one.words for one in changes[at - 1 :])
                why_not.append(f"{left} (--try-seconds: {self.seconds:g} s were over)")
                break
            self.say(f"trying {change.words} ({at} of {len(changes)})")
            self._tried.append(_outcome(change, self._took(trial, change.plan, now)))
            self.keep(Tries(before=(first,), tried=tuple(self._tried)))
        again = self._took(trial, now, now) if self._tried else first
        return Tries(before=(first, again), tried=tuple(self._tried), why_not="; ".join(why_not))

    def _hindrance(self, trial: Trial) -> str:
        if self.batch.sample is None:
            return "no batch of the script was seen"
        found = trial.why_not
        return f"the model is such that {found}" if found else ""

    def _changes(self, shown: Given, now: Plan) -> tuple[list[Change], str]:
        """What can run with this model and as many samples, and why what was named cannot."""
        subject = subject_of(
            shown.model,
            sample=shown.sample,
            criterion=shown.criterion,
            targets=shown.targets,
            device=roles.device(),
        )
        workers = roles.worker_num()
        given, driven = self.strategy, self.batch.driven
        found = single_changes(given, subject, workers, named=self.named, driven=driven)
        followed = _can_be_followed(subject)
        refusals = [self._refusal(one, subject, now, followed=followed) for one in found]
        reasons = {one.flag: why for one, why in zip(found, refusals, strict=True)}
        legal = [one for one, why in zip(found, refusals, strict=True) if not why]
        missing = [flag for flag in self.named if flag not in {one.flag for one in legal}]
        for flag in (flag for flag in missing if flag not in reasons):
            reasons[flag] = hindrance(flag, given, subject, workers, driven=driven)
        return legal, "; ".join(f"{flag} ({reasons[flag].rstrip('.')})" for flag in missing)

    def _refusal(self, change: Change, subject: Subject, now: Plan, *, followed: bool) -> str:
        """Found out without running it: a plan that one worker refuses leaves others waiting."""
        batch = self._batch(change.plan, now)
        if not batch:
            return "an update cannot have as many samples with it as now"
        if not followed:  # then nothing is known of how a layout would cut it
            alike = change.plan.mesh == now.mesh
            return "" if alike else "the forward of the model cannot be followed, to cut it"
        try:
            Accounts(change.plan, subject.with_samples(batch))[0]
        except PlanError as error:
            return str(error)
        return ""

    def _batch(self, plan: Plan, now: Plan) -> int:
        """Samples of a batch of one share, so that an update has as many as now; 0 if none does."""
        samples = _samples(self.batch.sample) * sharers(now) * _merged(now)
        batch, left = divmod(samples, sharers(plan) * _merged(plan))
        return 0 if left else batch

    def _took(self, trial: Trial, plan: Plan, now: Plan) -> float:
        """Seconds of an update on the slowest worker."""
        took = trial.took(plan, self._batch(plan, now), _merged(plan))
        return max(map(float, roles.util.all_gather(took)))


def _can_be_followed(subject: Subject) -> bool:
    try:
        subject.trace(Run())
    except PlanError:
        return False
    return True


def _outcome(change: Change, took: float) -> Try:
    return Try(flag=change.flag, words=change.words, seconds=took, same_update=change.same_update)


def _merged(plan: Plan) -> int:
    """Batches of an update."""
    told = (strategy.batch().get("batches", 1) for strategy in plan.strategies)
    return max(told, default=1)


def _samples(sample: Any) -> int:
    leaves = (leaf for leaf in tree_leaves(sample) if isinstance(leaf, Tensor) and leaf.ndim)
    first = next(leaves, None)
    return 1 if first is None else int(first.shape[0])


def as_inputs(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """One value with which a plan calls the model as the script did."""
    if not kwargs:
        return args
    bound = inspect.signature(type(model).forward).bind(model, *args, **kwargs)
    named = dict([*bound.arguments.items()][1:])  # without the model itself
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            named |= named.pop(name, {})
        elif parameter.kind is parameter.VAR_POSITIONAL and named.pop(name, ()):
            raise PlanError(f"its forward takes *{name} beside arguments by name")
    return named


def _kept(tree: Any) -> Any:
    """As it is now, whatever the script does with it later."""
    return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, tree)


def copied(model: nn.Module) -> nn.Module | None:
    """The model as it is now, on the host; None if it cannot be copied."""
    if any(parameter.is_meta for parameter in model.parameters()):
        return None
    try:
        return copy.deepcopy(model).to(torch.device("cpu"))
    except Exception:  # whatever a user's module has that cannot be copied
        return None
