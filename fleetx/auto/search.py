"""The plans that are legal for a model on a cluster, and the best of them."""

import copy
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations, product
from math import inf, prod
from typing import Any

from fleetx.auto.cluster import Cluster
from fleetx.auto.estimate import Estimate, estimate
from fleetx.config.distributed_strategy import DistributedStrategy
from fleetx.plan.accounts import Accounts
from fleetx.plan.compose import Request, compose
from fleetx.plan.error import PlanError
from fleetx.plan.mesh import AXES, Degree
from fleetx.plan.run import Run
from fleetx.plan.strategy import REGISTRY, Plan
from fleetx.plan.subject import Subject

Setting = Mapping[str, Mapping[str, Any]]
"""Strategy that is switched on -> its options."""
EXHAUSTIVE = 600
"""So many plans are all looked at; of more, those that come from the best by one change."""
REASONS = 3
"""So many reasons are told where there is no plan."""
ABOUT = 1.03
"""Plans that differ by less are about as fast as each other: an estimate knows no better."""
Mesh = tuple[int, ...]
"""Ranks along each of `AXES`."""
_PP, _TP = AXES.index("pp"), AXES.index("tp")
DEGREES = {"pp": "pp_degree", "sharding": "sharding_degree", "tp": "mp_degree", "dp": "dp_degree"}


def alternatives(
    name: str, subject: Subject, ranks: int, allow: Sequence[str]
) -> Sequence[Mapping[str, Any]]:
    """Options with which a strategy may be switched on by others than the user.

    Args:
        name: of the strategy.
        subject: the model, its optimizer and one worker's batch.
        ranks: along the axis of the strategy, 1 if it has none.
        allow: strategies that may be used although they change the mathematics.
    """
    kind = REGISTRY[name]
    key = "alternatives", name, ranks
    found = subject.once(key, lambda: tuple(kind.alternatives(subject, ranks)))
    return found or ([{}] if name in allow else ())


@dataclass(frozen=True)
class Choice:
    """What is chosen: degrees of the mesh, and strategies with their options."""

    mesh: Mesh
    """Ranks along each of `AXES`."""
    options: tuple[tuple[str, int], ...]
    """Strategy -> which of its alternatives."""

    def changed(self, name: str, alternative: int | None) -> "Choice":
        """With another alternative of one strategy; None switches it off."""
        kept = tuple(pair for pair in self.options if pair[0] != name)
        more = () if alternative is None else ((name, alternative),)
        return Choice(self.mesh, tuple(sorted((*kept, *more))))


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan that is legal, and what it is expected to take."""

    choice: Choice
    plan: Plan
    estimate: Estimate
    batch: int
    """Samples of one share of the data that run together."""


@dataclass(kw_only=True)
class Search:
    """Looks for the best plan of one subject on one cluster.

    Args:
        subject: the model, its optimizer and one worker's batch.
        cluster: where it shall train.
        given: what the user set, which stays as it is.
        allow: strategies that change the mathematics and may be used all the same.
        correction: what a measured step took, in times of what was counted.
    """

    subject: Subject
    cluster: Cluster
    given: DistributedStrategy
    allow: Sequence[str] = ()
    correction: float = 1.0
    refused: dict[str, int] = field(default_factory=dict)
    """Why plans were left out -> how many."""
    looked_at: dict[Choice, Planned | None] = field(default_factory=dict)

    def best(self, count: int = 10) -> list[Planned]:
        """The plans that are expected to be fastest of those that fit, the best one first.

        Of those that are about as fast as the fastest, the simplest is the best one. If none fits,
        those that need least memory come first.

        Raises:
            PlanError: the forward cannot be followed, or there is no legal plan; it says why.
        """
        self._check_known()
        meshes = list(self._meshes())
        if sum(self._count(mesh) for mesh in meshes) <= EXHAUSTIVE:
            for choice in self._all(meshes):
                self._look(choice)
        else:
            self._climb(meshes)
        found = [planned for planned in self.looked_at.values() if planned is not None]
        if not found:
            raise PlanError(nothing(self.refused, self.cluster.workers))
        return ordered(found)[:count]

    def _check_known(self) -> None:
        """Refuse what no plan can help, before any is looked at."""
        if self.subject.sample is None:
            raise PlanError(
                "how long a step takes depends on the batch, and none is known; give inputs of one "
                "worker's batch (sample=)."
            )
        self.subject.trace(Run())

    def accounts(self, planned: Planned) -> Accounts:
        """What every rank holds and sends under a plan."""
        return Accounts(planned.plan, self.subject.with_samples(planned.batch))

    @cached_property
    def _asked(self) -> Request:
        given = copy.deepcopy(self.given)
        given.auto = False
        return given.request()

    @cached_property
    def _set(self) -> set[str]:
        return {*self.given.explicit()}

    @cached_property
    def global_batch(self) -> int:
        """Samples of one update: what all workers get when each has the batch of the script."""
        merged = self.given.gradient_merge_configs["k_steps"] if self.given.gradient_merge else 1
        return self.subject.samples() * self.cluster.workers * int(merged)

    def _free(self, mesh: Mesh) -> list[list[tuple[str, int] | None]]:
        """For each strategy about which there is something to choose: its alternatives."""
        ranks = dict(zip(AXES, mesh, strict=True))
        return [self._numbered(name, ranks) for name in self._names(ranks)]

    def _count(self, mesh: Mesh) -> int:
        return prod(map(len, self._free(mesh)))

    def _all(self, meshes: Sequence[Mesh]) -> Iterator[Choice]:
        for mesh in meshes:
            for options in product(*self._free(mesh)):
                yield Choice(mesh, tuple(sorted(pair for pair in options if pair is not None)))

    def _refuse(self, error: PlanError) -> None:
        said = str(error)
        self.refused[said] = self.refused.get(said, 0) + 1

    def _meshes(self) -> Iterator[Mesh]:
        """All ways to deal the workers out, as far as degrees are free."""
        workers = self.cluster.workers
        asked = {axis: degree.ranks for axis, degree in self._asked.degrees.items()}
        sizes = [self._sizes(axis, workers, asked) for axis in AXES if axis != "dp"]
        for pp, sharding, tp in product(*sizes):
            rest, left = divmod(workers, pp * sharding * tp)
            if left or tp > self.cluster.devices_per_node or asked.get("dp", rest) != rest:
                continue
            yield pp, rest, sharding, tp

    def _sizes(self, axis: str, workers: int, asked: Mapping[str, int]) -> list[int]:
        if axis in asked:
            return [asked[axis]]
        owner = _owner(axis)
        if self._is_fixed(owner) and not getattr(self.given, owner):
            return [1]
        most = self.cluster.devices_per_node if axis == "tp" else workers
        sizes = (n for n in _divisors(workers) if n <= most)
        return [n for n in sizes if n == 1 or self._alternatives(owner, n)]

    def _names(self, ranks: Mapping[str, int]) -> list[str]:
        """Strategies about which there is something to choose on this mesh."""
        return [
            name
            for name, cls in REGISTRY.items()
            if not cls.internal
            and not self._is_fixed(name)
            and (cls.contract.axis is None or ranks[cls.contract.axis] > 1)
        ]

    def _is_fixed(self, name: str) -> bool:
        """Whether the user has set the switch, on or off."""
        return name in self._set

    def _numbered(self, name: str, ranks: Mapping[str, int]) -> list[tuple[str, int] | None]:
        axis = REGISTRY[name].contract.axis
        found = self._alternatives(name, 1 if axis is None else ranks[axis])
        numbers: list[tuple[str, int] | None] = [(name, at) for at in range(len(found))]
        return numbers if axis is not None else [None, *numbers]

    def _alternatives(self, name: str, ranks: int) -> Sequence[Mapping[str, Any]]:
        return alternatives(name, self.subject, ranks, self.allow)

    def _look(self, choice: Choice) -> Planned | None:
        if choice not in self.looked_at:
            try:
                self.looked_at[choice] = self._planned(choice)
            except PlanError as error:
                self._refuse(error)
                self.looked_at[choice] = None
        return self.looked_at[choice]

    def _planned(self, choice: Choice) -> Planned:
        request = self._request(choice)
        plan = compose(request, self.cluster.workers)
        shares = plan.mesh["dp"] * plan.mesh["sharding"]
        merged = request.strategies.get("gradient_merge", {}).get("k_steps", 1)
        batch, left = divmod(self.global_batch, shares * merged)
        if left or not batch:
            raise PlanError(
                f"{self.global_batch} samples of an update cannot be dealt out to {shares} shares "
                f"of the data in {merged} batches"
            )
        accounts = Accounts(plan, self.subject.with_samples(batch))
        found = estimate(accounts, self.cluster, correction=self.correction)
        return Planned(choice=choice, plan=plan, estimate=found, batch=batch)

    def _request(self, choice: Choice) -> Request:
        """What `strategy` would ask for, found without one: there may be thousands."""
        asked = self._asked
        chosen = {name: self._options(choice, name, at) for name, at in choice.options}
        degrees = {
            axis: Degree(ranks, f"hybrid_configs[{DEGREES[axis]!r}]")
            for axis, ranks in zip(AXES, choice.mesh, strict=True)
            if ranks > 1
        }
        return replace(
            asked,
            strategies={**asked.strategies, **chosen},
            degrees={**degrees, **asked.degrees},
        )

    def _options(self, choice: Choice, name: str, at: int) -> Mapping[str, Any]:
        ranks, axis = dict(zip(AXES, choice.mesh, strict=True)), REGISTRY[name].contract.axis
        return self._alternatives(name, 1 if axis is None else ranks[axis])[at]

    def strategy(self, choice: Choice) -> DistributedStrategy:
        """What a user would write for the choice; what was set stays."""
        made = copy.deepcopy(self.given)
        made.auto = False
        ranks = dict(zip(AXES, choice.mesh, strict=True))
        for name, at in choice.options:
            options = self._options(choice, name, at)
            setattr(made, name, True)
            if options:
                setattr(made, f"{name}_configs", dict(options))
        asked = self._asked.degrees
        free = {DEGREES[axis]: n for axis, n in ranks.items() if axis not in asked and n > 1}
        if free:
            setattr(made, "hybrid_configs", free)  # noqa: B010  (typed as what it reads back)
        return made

    def _climb(self, meshes: Sequence[Mesh]) -> None:
        """One change after the other, as long as it helps, from bare layouts of several kinds."""
        legal = {*meshes}
        for some in self._kinds(meshes):
            tried = ((self._look(one), one) for one in map(self._bare, some))
            found = [(planned, one) for planned, one in tried if planned is not None]
            if found:
                _, at = min(found, key=lambda pair: _price(pair[0]))
                self._uphill(at, legal)

    def _kinds(self, meshes: Sequence[Mesh]) -> Iterator[Sequence[Mesh]]:
        """Meshes from the best of which a way uphill begins.

        Without stages and with a few, each with whole layers and with layers that are cut as far
        as a machine has devices. How the rest is dealt out costs little to try.
        """
        stages = sorted({mesh[_PP] for mesh in meshes})
        parts = sorted({mesh[_TP] for mesh in meshes})
        for pp in sorted({stages[0], *stages[2:3]}):
            for tp in sorted({parts[0], parts[-1]}):
                if some := [mesh for mesh in meshes if (mesh[_PP], mesh[_TP]) == (pp, tp)]:
                    yield some

    def _bare(self, mesh: Mesh) -> Choice:
        """With nothing but what spreads along an axis."""
        first = (one[0] for one in self._free(mesh))
        return Choice(mesh, tuple(sorted(pair for pair in first if pair is not None)))

    def _uphill(self, at: Choice, legal: Set[Mesh]) -> None:
        """To the best of all changes of one kind, kind after kind, until none of them helps."""
        price = self._worth(at)
        while True:
            before = price
            for name in (*REGISTRY, None):  # layouts last: what saves memory decides them
                near = self._moved(at, legal) if name is None else self._switched(at, name)
                best = min(near, key=self._worth, default=at)
                if (found := self._worth(best)) < price:
                    at, price = best, found
            if price >= before:
                return

    def _worth(self, choice: Choice) -> float:
        planned = self._look(choice)
        return inf if planned is None else _price(planned)

    def _switched(self, at: Choice, name: str) -> Iterator[Choice]:
        ranks = dict(zip(AXES, at.mesh, strict=True))
        if name in self._names(ranks):
            for pair in self._numbered(name, ranks):
                yield at.changed(name, None if pair is None else pair[1])

    def _moved(self, at: Choice, legal: Set[Mesh]) -> Iterator[Choice]:
        """Fewer ranks along one axis, and as many times more along another."""
        for less, more in permutations(range(len(AXES)), 2):
            for times in _primes(at.mesh[less]):
                mesh = tuple(
                    n // times if axis == less else n * times if axis == more else n
                    for axis, n in enumerate(at.mesh)
                )
                if mesh in legal:
                    yield from self._with_mesh(at, mesh)

    def _with_mesh(self, at: Choice, mesh: Mesh) -> Iterator[Choice]:
        """The same strategies on another mesh; for an axis that is new, all of its alternatives."""
        ranks, free = dict(zip(AXES, mesh, strict=True)), self._names
        names, known = {*free(ranks)}, dict(at.options)
        before = {*free(dict(zip(AXES, at.mesh, strict=True)))}
        axes = {cls.contract.axis: name for name, cls in REGISTRY.items()}
        along = {axes[axis] for axis, count in ranks.items() if count > 1 and axis in axes}
        kept = [
            (name, number)
            for name, number in at.options
            if name in names and not any(_conflict(name, other) for other in along)
        ]
        new = [
            self._numbered(name, ranks)
            for name in names - before
            if REGISTRY[name].contract.axis is not None and name not in known
        ]
        for more in product(*new):
            yield Choice(mesh, tuple(sorted((*kept, *(pair for pair in more if pair)))))


def _conflict(one: str, other: str) -> bool:
    first, second = REGISTRY[one].contract, REGISTRY[other].contract
    return other in first.conflicts or one in second.conflicts


def _price(planned: Planned) -> float:
    """Seconds of a sample; dearer the more memory is missing, so that the way leads to room."""
    found = planned.estimate
    missing = max(1.0, found.memory / found.available)
    return _speed(planned) * missing**2


def ordered(found: Sequence[Planned]) -> list[Planned]:
    """The fastest that fits comes first; of those that do not fit, the one that needs least."""
    fitting = sorted((one for one in found if one.estimate.fits), key=_speed)
    others = sorted(
        (one for one in found if not one.estimate.fits), key=lambda p: p.estimate.memory
    )
    limit = _speed(fitting[0]) * ABOUT if fitting else 0.0
    alike = sum(1 for one in fitting if _speed(one) <= limit)
    return [*sorted(fitting[:alike], key=_complexity), *fitting[alike:], *others]


def nothing(refused: Mapping[str, int], workers: int) -> str:
    """Why there is no plan, by the commonest reasons."""
    commonest = sorted(refused.items(), key=lambda pair: -pair[1])[:REASONS]
    number, total = len(refused), sum(refused.values())
    told = "; ".join(f"{count} of {total}: {reason.rstrip('.')}" for reason, count in commonest)
    rest = f"; and {number - REASONS} other reasons" if number > REASONS else ""
    return f"no plan is possible for {workers} workers, because all were refused: {told}{rest}."


def _speed(planned: Planned) -> float:
    """Seconds of a sample."""
    return planned.estimate.seconds / planned.estimate.samples


def _complexity(planned: Planned) -> tuple[int, int, float]:
    """Strategies, ranks that work on the same samples, and then time."""
    mesh, strategies = planned.plan.mesh, planned.plan.strategies
    chosen = sum(1 for strategy in strategies if not strategy.internal)
    return chosen, mesh["pp"] * mesh["tp"], _speed(planned)


def _owner(axis: str) -> str:
    return next(name for name, cls in REGISTRY.items() if cls.contract.axis == axis)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _primes(number: int) -> list[int]:
    """The prime factors, each once."""
    return [n for n in _divisors(number) if n > 1 and len(_divisors(n)) == 2]
