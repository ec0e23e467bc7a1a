"""What one ``init`` began: its strategy, its models, and what is planned for them."""

import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from fleetx import roles
from fleetx.api.agreement import Agreement, agree_on_plan
from fleetx.api.not_finite import stop_at_nan
from fleetx.api.optimizer import DistributedOptimizer
from fleetx.api.told_figures import ToldFigures
from fleetx.config.degrees import degrees_of_cuts
from fleetx.config.distributed_strategy import DistributedStrategy
from fleetx.engine.engine import Engine
from fleetx.plan.compose import Request, compose
from fleetx.plan.error import PlanError
from fleetx.plan.explain import at_rest
from fleetx.plan.strategy import Plan

logger = logging.getLogger(__name__)
Model = TypeVar("Model", bound=nn.Module)


@dataclass
class Session:
    """What one ``init`` began: the strategy, the models under it, optimizers without a model."""

    strategy: DistributedStrategy
    laid_out: list[weakref.ref[Engine]] = field(default_factory=list)
    """Weakly, because a model that nobody uses any more shall free its memory."""
    counted: int = 0
    """How many models were laid out, those that are gone included."""
    waiting: list[DistributedOptimizer] = field(default_factory=list)
    dealt: int | None = None
    """Among how many workers a loader has dealt the data already."""
    latest: Callable[[], Any] = lambda: None
    """The optimizer that was distributed last, for ``fleet.minimize``; weakly, like its model."""
    replaced: list[Callable[["Session"], None]] = field(default_factory=list)
    """Called when another strategy takes the place of the one that was given to ``init``."""
    asked: DistributedStrategy | None = None
    """The strategy in whose place another one was chosen."""
    portion: Fraction = Fraction(1)
    """The part of a script's batch that a worker takes, so that an update has its samples."""
    merged: int = 1
    """How many batches stand for one of the script's, for the same reason."""
    split: dict[str, Any] = field(default_factory=dict)
    """How a ``DistributeTranspilerConfig`` spreads parameters over servers."""
    stages: int = 1
    """Into how many stages the last program was cut."""
    unbegun: list[Callable[[], Engine | None]] = field(default_factory=list)
    """What begins programs, whose engines are made when they first train, or returns None."""

    follows: list[Callable[[Plan, nn.Module, Any, Any], Callable[[Engine], None]]] = field(
        default_factory=list
    )
    """Called with a plan, a model before it is laid out, its sample and its criterion; what they
    return is called with the engine."""

    tracked: bool = False
    """Whether trackers were named."""

    stops_at_nan: bool = False
    """Whether the job ends where something is not finite."""

    programs: Any = None
    """What the last ``minimize`` of a static program made."""

    said: set[str] = field(default_factory=set)
    """What users were told already; a job with several models says it once."""

    def say(self, lines: list[str]) -> None:
        """Tell the user, once: one worker speaks for all."""
        for line in lines if roles.is_first_worker() else ():
            if line not in self.said:
                logger.warning(line)
        self.said.update(lines)

    @property
    def engines(self) -> list[Engine]:
        """Those whose model is still in use."""
        found = (known() for known in self.laid_out)
        return [engine for engine in found if engine is not None]


@dataclass(frozen=True)
class Given:
    """What a script passes to ``distributed_model``."""

    model: nn.Module
    sample: Any = None
    criterion: Callable[[Any, Any], Tensor] | None = None
    targets: Any = None


@dataclass(frozen=True)
class Watch:
    """Callbacks for tools that run a user's script and look at what it does."""

    begins: Callable[[Session], None] = lambda session: None
    """Called when a job has begun, or got another strategy; it may choose one itself."""

    change: Callable[[Request], Request] = lambda request: request
    """What is planned instead of what the script asked for."""

    given: Callable[[Given], None] = lambda given: None
    """Called with a model before it is laid out."""

    lays_out: bool = True
    """Whether models are laid out at all."""

    optimizer: Callable[[Any], None] = lambda optimizer: None
    """Called with an optimizer before it is distributed."""

    attached: Callable[[Engine], None] = lambda engine: None
    """Called when a model has its optimizer, before the first update."""

    finished: Callable[[Engine, Tensor | None], None] = lambda engine, loss: None
    """Called after every batch, with its loss where that is known."""

    compares: bool = False
    """Whether it compares what workers hold, and tells in its own way where they have parted."""

    saves: bool = True
    """Whether checkpoints and models are written. A tool that stops a script after a few batches
    leaves those of longer runs alone."""


# At most one; tools put it here before they start the script.
watches: list[Watch] = []


# One process takes part in one job, as it has one default process group.
_session: Session | None = None


def begin(strategy: DistributedStrategy) -> None:
    """Let a job begin, in which this process takes part until it stops."""
    global _session  # noqa: PLW0603
    _session = Session(strategy)
    roles.at_stop(_forget)
    show_session(_session)


def show_session(session: Session) -> None:
    """Let tools see a job that has begun, or got another strategy."""
    for watch in watches:
        watch.begins(session)


def _forget() -> None:
    global _session  # noqa: PLW0603
    _session = None


def begun() -> bool:
    """Whether a job runs."""
    return _session is not None and roles.started()


def current(call: str) -> Session:
    """What the last ``init`` began; ``call`` is named in the complaint when there was none."""
    roles.identity(call)
    assert _session is not None, "roles are started by init() alone"
    return _session


def request() -> Request:
    """What the strategy of this job asks for."""
    return watched(current("distributed_optimizer").strategy.request())


def latest_optimizer(call: str) -> Any:
    """What ``distributed_optimizer`` returned last; None if it was not called."""
    return current(call).latest()


def plan(obeyed: frozenset[str] = frozenset(), stages: int | None = None) -> Plan:
    """What the strategy of this job makes of any model.

    Args:
        obeyed: options of the whole job that the caller acts upon, whatever the plan does.
        stages: into how many a program is cut already; degrees that nobody set are taken from
            there, now and in later calls.
    """
    identity, asked, here = roles.identity("distributed_model"), request(), current("plan")
    here.stages = stages or here.stages
    cut = degrees_of_cuts(asked.strategies, here.stages, "device_guard()")
    changed = {name: normal for name, normal in asked.changed.items() if name not in obeyed}
    asked = replace(asked, degrees={**cut, **asked.degrees}, changed=changed)
    if identity.is_collective:
        return compose(asked, identity.worker_num)
    roles.refuse_without_servers("training")
    # Workers meet at the servers and nowhere else, so each is a world of its own.
    return compose(_with_servers(asked, here), 1, workers=identity.worker_num)


def engine(plan: Plan, model: nn.Module, **given: Any) -> Engine:
    """The engine of a plan over all workers of this job, with what else the engine takes."""
    session = current("distributed_model")
    if session.dealt not in (None, sharers(plan)):
        raise PlanError(
            f"fleet.distributed_loader() dealt the data out among {session.dealt} workers before "
            f"the strategy was known, by which {sharers(plan)} share it; pass the strategy to "
            "fleet.init()."
        )
    session.strategy.lock()
    agree_on_plan(plan)
    session.say(at_rest(plan))
    shown = plan, model, given.get("sample"), given.get("criterion")
    joins = [follow(*shown) for follow in session.follows]
    engine = Engine(plan, model, device=roles.device(), mesh=mesh(plan), **given)
    session.counted += 1
    agreement = Agreement(session.counted, replicas=not any(watch.compares for watch in watches))
    engine.given_batch.append(agreement.look)
    engine.updating.append(agreement)
    engine.attached += [watch.attached for watch in watches]
    engine.finished += [watch.finished for watch in watches]
    if session.stops_at_nan:
        engine.updating.append(stop_at_nan)
    for join in joins:
        join(engine)
    ToldFigures().begin(engine)
    return engine


def _with_servers(request: Request, session: Session) -> Request:
    """The request of a job that has servers, which are its carrier."""
    chosen = dict(request.strategies)
    carrier = "a_sync" if "a_sync" in chosen else "parameter_server"
    chosen[carrier] = {**chosen.get(carrier, {}), **session.split}
    options = {**request.options, "mode": "ps"}
    return replace(request, strategies=chosen, options=options)


def engines() -> list[Engine]:
    """The models of this process."""
    return [] if _session is None else _session.engines


def begin_programs() -> list[Engine]:
    """Begin the programs that are initialised, now and not with their first batch."""
    waiting = [] if _session is None else _session.unbegun
    tried = [(begin, begin()) for begin in waiting]
    waiting[:] = [begin for begin, engine in tried if engine is None]
    return [engine for _, engine in tried if engine is not None]


def watched(request: Request) -> Request:
    """What is planned instead of a request, if a tool watches."""
    for watch in watches:
        request = watch.change(request)
    return request


def may_save() -> bool:
    """Whether checkpoints and models are written; what was saved before stays if not."""
    return all(watch.saves for watch in watches)


def sharers(plan: Plan) -> int:
    """Among how many workers the data is dealt."""
    return plan.mesh["dp"] * plan.mesh["sharding"]


def mesh(plan: Plan) -> DeviceMesh:
    """The mesh of a plan."""
    return (roles.mesh if roles.identity().is_collective else roles.alone)(plan.mesh)
