"""``strategy.auto``: worker 0 looks for the best plan of the model, and all workers take it."""

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import count
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from fleetx import roles
from fleetx.api.chores import slowest, with_chores
from fleetx.api.session import Given, Session
from fleetx.api.trials import Trial, as_it_was
from fleetx.auto.choose import Plans, allowed, choose, subject_of, without_auto
from fleetx.auto.clock import OperatorClock
from fleetx.auto.cluster import Cluster, load
from fleetx.auto.here import remember, remembered
from fleetx.auto.probe import probe
from fleetx.auto.proposals import Proposal
from fleetx.auto.report import in_words, switched_on
from fleetx.auto.tries import Candidate, Tries
from fleetx.auto.units import seconds, size
from fleetx.auto.verdict import shortage
from fleetx.config.distributed_strategy import DistributedStrategy
from fleetx.engine.engine import Engine
from fleetx.plan.compose import compose
from fleetx.plan.error import PlanError
from fleetx.plan.optimizer_spec import OptimizerSpec
from fleetx.plan.strategy import REGISTRY
from fleetx.plan.subject import Subject
from fleetx.roles import activity
from fleetx.roles.session import world
from fleetx.torch_internals import tree_leaves

CALL = "strategy.auto"
CONSIDERED = 200
"""Plans of which some are tried."""
LONGEST = 60.0
"""Seconds after which no other plan is tried."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decision:
    """What worker 0 has chosen, in values that can be sent."""

    explicit: dict[str, Any]
    """What the chosen strategy sets."""
    batch: int
    """Samples that a share of the data takes at once."""
    merged: int
    """Batches of an update."""
    said: str
    is_try: bool = False
    """Whether it is run for a few updates first, before anything is chosen."""

    def strategy(self) -> DistributedStrategy:
        """As a script would have written it."""
        made = DistributedStrategy()
        for name, value in self.explicit.items():
            setattr(made, name, value)
        return made


def decide(session: Session, shown: Given) -> Callable[[Engine], None]:
    """Put the best strategy in the place of the one that asks for it; all workers call it.

    Returns:
        What is to be done with the engine of the model: let it look at the first batch.
    """
    given = session.strategy
    _refuse_too_late(session)
    allowed(given)  # a name that is none is refused before anything is measured
    subject = subject_of(
        shown.model,
        sample=shown.sample,
        optimizer=_optimizer(session, shown.model),
        criterion=shown.criterion,
        targets=shown.targets,
        device=roles.device(),
    )
    with as_it_was():
        found = _decision(session, subject, shown)
    session.asked, session.strategy = given, found.strategy()
    given.lock()
    asked = int(given.gradient_merge_configs["k_steps"]) if given.gradient_merge else 1
    session.portion = Fraction(found.batch, subject.samples())
    session.merged = found.merged // asked if found.merged % asked == 0 else 1
    session.say([found.said])
    if session.portion == 1 and found.merged == asked:
        return lambda engine: None
    return FirstBatch(found.batch).watch


def _decision(session: Session, subject: Subject, shown: Given) -> Decision:
    given = session.strategy
    machines = machines_at_hand(given)
    if not given.auto_configs["cluster"]:
        tries = int(given.auto_configs["trials"]) > 0
        subject.clock = OperatorClock(roles.device(), machines.device, calls_models=tries)
    open_to = given if shown.criterion is not None else _without_drives(given)
    topics = (f"{CALL}/{session.counted}/{number}" for number in count())
    return _found(Chooser(subject, machines, open_to), Trial(shown, _rule(subject)), topics)


def _refuse_too_late(session: Session) -> None:
    if not roles.identity().is_collective:
        raise PlanError(
            "strategy.auto = True cannot be in force in a job with servers: it compares layouts of "
            "collective jobs. Set strategy.auto = False."
        )
    if session.dealt is not None:
        raise PlanError(
            "strategy.auto = True cannot be in force: fleet.distributed_loader() dealt the data "
            "out before the layout was known. Call fleet.distributed_model() first."
        )
    if session.replaced:
        raise PlanError(
            "strategy.auto = True cannot be in force in a job that keeps the samples of an update "
            "on any number of workers (fleet.CheckpointManager): it would choose another layout "
            "for each. Let `fleetx plan train.py` choose once, and load the file that it writes."
        )


def _optimizer(session: Session, model: nn.Module) -> Optimizer | None:
    """The one that was distributed before its model."""
    own = {*model.parameters()}
    found = (one for one in session.waiting if own.intersection(one.parameters))
    return next((one.inner for one in found), None)


def _without_drives(given: DistributedStrategy) -> DistributedStrategy:
    """What was set, and nothing that runs batches in its own way: the script has its own loop."""
    made = without_auto(given)
    made.auto_configs = given.auto_configs
    for name, cls in REGISTRY.items():
        if "drive" in cls.contract.touches and not cls.internal and name not in given.explicit():
            setattr(made, name, False)
    return made


def machines_at_hand(given: DistributedStrategy) -> Cluster:
    """The machines of this job, as they were described or measured; all workers call it."""
    identity, device = roles.identity(), roles.device()
    if file := str(given.auto_configs["cluster"]):
        return _described(file, identity.worker_num)
    nodes = roles.node_num()
    here = identity.worker_num // nodes
    known = remembered(device, workers_here=here, nodes=nodes)
    if _everywhere(known is not None) and known is not None:
        return known
    logger.info(
        "strategy.auto measures this job's machines, which takes a minute, and remembers it"
    )
    with activity.during("measuring the machines"):
        found = with_chores(probe(device, workers_here=here, nodes=nodes))
    remember(found, device)
    return found


def _described(file: str, workers: int) -> Cluster:
    found = load(file)
    if found.workers != workers:
        raise PlanError(
            f"strategy.auto_configs['cluster'] = {file!r} describes {found.workers} devices, and "
            f"{workers} workers are here. Start as many workers, or leave it empty: then the "
            "machines at hand are measured."
        )
    return found


def _everywhere(here: bool) -> bool:
    """Whether it is so on all workers: links are measured by all of them or by none."""
    barrier = world(CALL).barrier
    if barrier is None or barrier.size == 1:
        return here
    return all(said == "known" for said in barrier.tell(CALL, "known" if here else "unknown"))


def _of_first(find: Callable[[], Decision], topic: str) -> Decision:
    """What worker 0 finds, on all workers; if it finds nothing, its reason on all of them."""
    barrier = world(CALL).barrier
    if barrier is None or barrier.size == 1:
        return find()
    said = ""
    if barrier.index == 0:
        try:
            with activity.during("looking for the best plan"):
                said = json.dumps(vars(find()))
        except Exception as error:
            barrier.from_first(CALL, topic, json.dumps({"error": str(error)}))
            raise
    heard = json.loads(barrier.from_first(CALL, topic, said))
    if "error" in heard:
        raise PlanError(heard["error"])
    return Decision(**heard)


def _rule(subject: Subject) -> OptimizerSpec:
    rule = subject.rule()
    assert rule is not None, "an optimizer that is not known counts as AdamW"
    return rule


def _found(chooser: "Chooser", trial: Trial, topics: Iterator[str]) -> Decision:
    """What is chosen; all workers run what worker 0 wants to try before."""
    if chooser.trials:
        chooser.keep_from_trying(trial.why_not)
    while (found := _of_first(chooser, next(topics))).is_try:
        plan = compose(found.strategy().request(), roles.identity().worker_num)
        with activity.during("trying plans for strategy.auto"):
            chooser.hear(slowest(trial.took(plan, found.batch, found.merged)))
    return found


class Chooser:
    """What worker 0 does: look for plans, have some of them tried, and choose.

    Args:
        subject: the model, its optimizer and one worker's batch.
        machines: where it trains.
        given: what the user set.
    """

    def __init__(self, subject: Subject, machines: Cluster, given: DistributedStrategy) -> None:
        self._search = partial(choose, subject, machines, given, explained=False)
        described = bool(given.auto_configs["cluster"])  # machines that may not be these
        self.trials = 0 if described else int(given.auto_configs["trials"])
        """How many plans are run before one is chosen."""
        self._plans: Plans | None = None
        self._fitting: list[Proposal] = []
        self._tries = Tries(())
        self._running, self._until = 0, 0.0

    def keep_from_trying(self, why: str) -> None:
        """Choose by what is expected alone, if there is a reason."""
        if why:
            logger.warning(
                "strategy.auto chooses without trying plans: the model is such that %s", why
            )
            self.trials = 0

    def __call__(self) -> Decision:
        """The plan to try next, or the chosen one."""
        if self._plans is None:
            self._plans = self._search(count=CONSIDERED if self.trials else 1)
            if missing := shortage([self._plans.best.planned]):
                raise PlanError(f"strategy.auto = True cannot be in force. {missing}")
            self._fitting = [one for one in self._plans if one.expected.fits]
            self._tries = Tries([_candidate(one) for one in self._fitting])
            self._until = time.monotonic() + LONGEST
        at = self._tries.next() if self._goes_on() else None
        if at is None:
            return self._chosen(self._plans)
        self._running = at
        one = self._fitting[at]
        return Decision(one.strategy.explicit(), one.batch, one.merged, "", is_try=True)

    def hear(self, took: float) -> None:
        """What an update of the plan took that was tried, on the slowest worker."""
        self._tries.took[self._running] = took

    def _goes_on(self) -> bool:
        tried = len(self._tries.took)
        is_choice = len(self._fitting) > 1
        return is_choice and tried < self.trials and (not tried or time.monotonic() < self._until)

    def _chosen(self, plans: Plans) -> Decision:
        best = self._fitting[self._tries.best]
        found, tried = best.expected, len(self._tries.took)
        how = f"fastest of {tried} that it tried, of" if tried else "best of"
        took = self._tries.took.get(self._tries.best, found.seconds)
        said = (
            f"strategy.auto chose the {how} {plans.looked_at} plans: {in_words(best)}. "
            f"{'Measured' if tried else 'Expected'}: {seconds(took)} for an update of "
            f"{plans.samples} samples; expected: {size(found.memory)} of "
            f"{size(found.available)} a rank"
        )
        return Decision(best.strategy.explicit(), best.batch, best.merged, said)


def _candidate(one: Proposal) -> Candidate:
    spread = ((axis, ranks) for axis, ranks in one.planned.plan.mesh.items() if ranks > 1)
    flags = frozenset(switched_on(one.strategy))
    return Candidate(flags, frozenset(spread), one.expected.seconds)


class FirstBatch:
    """Refuses a first batch of another size than the plan was made for.

    Loaders of ours deal the data out as the plan wants it. Those of others do not know of it, and
    an update would take other samples than the script asked for.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._seen = False

    def watch(self, engine: Engine) -> None:
        """Look at the first batch that trains."""
        engine.given_batch.append(self._look)

    def _look(self, engine: Engine, batch: Any) -> None:
        if self._seen:
            return
        self._seen = True
        leaves = (leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim)
        found = next((len(leaf) for leaf in leaves), self._samples)
        if found != self._samples:
            raise PlanError(
                f"strategy.auto chose batches of {self._samples} samples, so that an update has as "
                f"many as the script asked for, and the first batch has {found}. Give the loader "
                "to fleet.distributed_loader(), which deals them out so, or keep your batches: set "
                "strategy.gradient_merge, pipeline and tensor_parallel to False."
            )
