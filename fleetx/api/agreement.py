"""What workers must have in common, compared before it can lead them apart."""

import hashlib
import json
from functools import partial
from typing import Any

from fleetx.api.same_samples import SameSamples
from fleetx.api.same_weights import hold_replicas
from fleetx.engine.engine import Engine
from fleetx.plan.all_or_none import all_or_none
from fleetx.plan.error import PlanError
from fleetx.plan.facts import (
    ADVICE,
    SHOWN,
    Facts,
    differences,
    of_configs,
    of_groups,
    of_names,
    of_plan,
    short,
)
from fleetx.plan.strategy import Plan
from fleetx.roles.session import world
from fleetx.roles.world import World


def agree_on_plan(plan: Plan) -> None:
    """Refuse, on every worker, plans that differ; all workers must call it."""
    _compare("fleet.distributed_model()", of_plan(plan))


class Agreement:
    """Compares the update rule and its numbers at the first update, and again now and then.

    What schedulers and scripts change later is compared with growing distance, for the price of a
    few short messages to the store. They tell of all changes since the first update, so that a
    difference is noticed even when it is gone again.

    Args:
        model: which of the job's models it is, in the order in which all workers lay them out.
        replicas: whether what they hold is compared, too.
    """

    def __init__(self, model: int, *, replicas: bool = True) -> None:
        self._model, self._replicas = model, replicas
        self._samples = SameSamples(model)
        self._updates = 0
        self._numbers: list[Any] = []
        self._changes = hashlib.sha256()

    def __call__(self, engine: Engine) -> None:
        """Before an update; refuses it where workers have drifted apart."""
        self._updates += 1
        self._notice(engine)
        if self._updates == 1:
            _agree_on_update(engine)
            self._hold_replicas(engine)
        elif _is_compared(self._updates) and _is_shared(here := world("distributed_model")):
            all_or_none(partial(self._compare, engine))
            assert here.barrier is not None
            self._samples.compare(engine, here.barrier, self._updates)
            self._hold_replicas(engine)

    def _hold_replicas(self, engine: Engine) -> None:
        here = world("distributed_model")
        if not (self._replicas and _is_shared(here)):
            return
        assert here.barrier is not None
        before = _compared_before(self._updates) or None
        all_or_none(
            partial(hold_replicas, engine, here.barrier, self._model, self._updates, before)
        )

    def look(self, engine: Engine, batch: Any) -> None:
        """A batch is given, whose samples may be compared when it ends in an update."""
        if self._updates and _is_compared(self._updates + 1):
            self._samples.look(engine, batch, self._updates + 1)

    def _notice(self, engine: Engine) -> None:
        assert engine.job.optimizer is not None
        numbers = [
            (at, name, short(value))
            for at, group in enumerate(engine.job.optimizer.param_groups)
            for name, value in sorted(group.items())  # in one order, as sets may have made it
            if isinstance(value, float | tuple)
        ]
        if numbers != self._numbers and self._numbers:
            self._changes.update(repr((self._updates, numbers)).encode())
        self._numbers = numbers

    def _compare(self, engine: Engine) -> None:
        here = world("distributed_model")
        assert here.barrier is not None
        assert engine.job.optimizer is not None
        topics = (self._updates, _compared_before(self._updates))
        self._samples.say(engine, here.barrier, *topics)
        now, before = (f"numbers/{self._model}/{_part(engine)}/{update}" for update in topics)
        facts = of_groups(engine.job.optimizer.param_groups)
        own = json.dumps([here.identity.index, facts, self._changes.hexdigest()])
        worker, others, changes = json.loads(here.barrier.first_said(now, own, before))
        if (others, changes) != (facts, self._changes.hexdigest()):
            raise PlanError(_drifted(self._updates, worker, others, here.identity.index, facts))


def _drifted(update: int, first: int, others: Facts, own: int, facts: Facts) -> str:
    apart = [name for name in facts if facts[name] != others.get(name)]
    told = [f"{name} is {others.get(name)} there and {facts[name]} here" for name in apart[:SHOWN]]
    return (
        f"workers {first} and {own} have drifted apart: at update {update} "
        f"{'; '.join(told) or 'their numbers are the same, but were not at an earlier one'}. What "
        "changes them must be the same on every worker: step schedulers on all of them, and give "
        "ReduceLROnPlateau, or whatever decides by a measured number, the same number, such as "
        "fleet.all_reduce(loss.item()) / fleet.worker_num()."
    )


EVERY = 64
"""Updates between two comparisons, at the most."""


def _is_compared(update: int) -> bool:
    return update % EVERY == 0 or update & (update - 1) == 0


def _compared_before(update: int) -> int:
    return update - EVERY if update > EVERY else update // 2


def _part(engine: Engine) -> str:
    """Who has the same groups: the workers of a stage; for others strategies may make others."""
    return str(engine.job.mesh.get_local_rank("pp")) if engine.job.size("pp") > 1 else "0"


def _agree_on_update(engine: Engine) -> None:
    """The same for the update rule and its numbers, as they are at the first update."""
    optimizer = engine.job.optimizer
    assert optimizer is not None
    facts = {"the optimizer": type(optimizer).__name__}
    if engine.job.size("pp") == 1:
        facts |= of_groups(optimizer.param_groups)
        groups = optimizer.param_groups
        facts |= of_names([[engine.names[p] for p in group["params"]] for group in groups])
    elif engine.given is not None:
        # Stages hold others, of which strategies may make other groups: as the user gave them.
        facts |= of_groups([group.options for group in engine.given.groups])
    # Once more the plan, for a clipping that came with an optimizer.
    _compare("the first update", facts | of_configs(engine.plan))


def _compare(call: str, facts: Facts) -> None:
    """One small exchange; everybody sees what all said, so everybody complains or nobody does."""
    here = world("distributed_model")
    if not _is_shared(here):
        return
    assert here.barrier is not None
    said = [json.loads(own) for own in here.barrier.tell(call, json.dumps(facts))]
    if apart := differences({str(worker): own for worker, own in enumerate(said)}):
        raise PlanError(f"workers differ where they must agree: {apart}. {ADVICE}")


def _is_shared(here: World) -> bool:
    """Whether there are workers that take every step together.

    Those of a job with servers come and go: there each is held against the first one when it
    meets the servers (strategies/parameter_server/), and servers hold the rates of an update for
    which they wait against each other.
    """
    alone = here.barrier is None or here.identity.worker_num == 1
    return here.identity.is_collective and not alone
