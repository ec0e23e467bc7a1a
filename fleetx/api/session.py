"""The calls of a user's script: ``init``, ``distributed_model`` and ``distributed_optimizer``."""

import gc
import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, overload, runtime_checkable

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import LBFGS, Optimizer

from fleetx import roles
from fleetx.api.agreement import Agreement, agree_on_plan
from fleetx.api.batches import give_batch_calls
from fleetx.api.grad_clip import GradClip
from fleetx.api.optimizer import DistributedOptimizer
from fleetx.api.returned_model import give_words
from fleetx.api.wrappers import refuse_wrapped
from fleetx.config.degrees import degrees_of_cuts
from fleetx.config.distributed_strategy import DistributedStrategy
from fleetx.config.transpiler import DistributeTranspilerConfig
from fleetx.engine.engine import Engine
from fleetx.expected import CRITERION, takes
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
    split: dict[str, Any] = field(default_factory=dict)
    """How a ``DistributeTranspilerConfig`` spreads parameters over servers."""
    stages: int = 1
    """Into how many stages the last program was cut."""
    unbegun: list[Callable[[], Engine | None]] = field(default_factory=list)
    """What begins programs, whose engines are made when they first train, or returns None."""

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


@runtime_checkable
class Described(Protocol):
    """An optimizer whose parameters are not known yet: a static program supplies them."""

    def distributed(self, grad_clip: GradClip | None) -> Any:
        """What ``distributed_optimizer`` returns for it."""


@dataclass(frozen=True)
class Watch:
    """Callbacks for tools that run a user's script and look at what it does."""

    change: Callable[[Request], Request] = lambda request: request
    """What is planned instead of what the script asked for."""

    given: Callable[[nn.Module], None] = lambda model: None
    """Called with a model before it is laid out."""

    attached: Callable[[Engine], None] = lambda engine: None
    """Called when a model has its optimizer, before the first update."""

    finished: Callable[[Engine, Tensor | None], None] = lambda engine, loss: None
    """Called after every batch, with its loss where that is known."""


# At most one; tools put it here before they start the script.
watches: list[Watch] = []


# One process takes part in one job, as it has one default process group.
_session: Session | None = None


def init(
    role_maker: roles.RoleMaker | None = None,
    is_collective: bool = False,
    strategy: DistributedStrategy | None = None,
) -> None:
    """Learn who this process is, meet the other workers, and keep the strategy for what follows.

    Args:
        role_maker: who is who; found in the environment when it is None.
        is_collective: train with collectives between workers, without parameter servers.
        strategy: which optimisations to switch on; none of them when it is None.
    """
    global _session  # noqa: PLW0603
    if strategy is not None:
        _is_strategy("init", strategy)
    again = roles.started()
    roles.start(role_maker, is_collective=is_collective)
    chosen = strategy or DistributedStrategy()
    if again and _session is not None:
        # A second call changes nothing but the strategy, if no model has been laid out under one.
        if strategy is not None:
            _replace_strategy(_session, strategy, "init")
    else:
        _session = Session(chosen)
        roles.at_stop(_forget)


def _forget() -> None:
    global _session  # noqa: PLW0603
    _session = None


@takes("fleet.distributed_model", criterion=CRITERION | None)
def distributed_model(
    model: Model,
    *,
    criterion: Callable[[Any, Any], Tensor] | None = None,
    sample: Any = None,
) -> Model:
    """Lay the model out over the workers and return it: the same module, with the same names.

    Args:
        model: any module; it is moved to this worker's device and starts equal on every worker.
        criterion: outputs and targets -> loss, for ``model.train_batch`` and ``model.eval_batch``.
        sample: inputs of one small batch, by which a pipeline is balanced when nobody says where
            to cut.
    """
    session = current("distributed_model")
    if not isinstance(model, nn.Module):
        raise TypeError(f"fleet.distributed_model() takes a torch.nn.Module, got {model!r}")
    if any(engine.job.model is model for engine in session.engines):
        raise PlanError(
            "fleet.distributed_model() was called twice with the same module, which is distributed "
            "already; use what the first call returned."
        )
    refuse_wrapped(model)
    for watch in watches:
        watch.given(model)
    laid_out = engine(plan(), model, criterion=criterion, sample=sample)
    session.laid_out.append(weakref.ref(laid_out))
    give_batch_calls(laid_out.job.model, laid_out)
    give_words(laid_out.job.model)
    for optimizer in [*session.waiting]:
        if _owns(laid_out, optimizer):
            optimizer.bind(laid_out)
            session.waiting.remove(optimizer)
    return laid_out.job.model  # type: ignore[return-value]


@overload
def distributed_optimizer(
    optimizer: Optimizer,
    strategy: DistributedStrategy | DistributeTranspilerConfig | None = None,
    *,
    grad_clip: GradClip | None = None,
) -> DistributedOptimizer: ...


@overload
def distributed_optimizer(
    optimizer: Described,
    strategy: DistributedStrategy | DistributeTranspilerConfig | None = None,
    *,
    grad_clip: GradClip | None = None,
) -> Any: ...


def distributed_optimizer(
    optimizer: Optimizer | Described,
    strategy: DistributedStrategy | DistributeTranspilerConfig | None = None,
    *,
    grad_clip: GradClip | None = None,
) -> Any:
    """Let the optimizer's step go through the plan; may come before or after its model.

    Args:
        optimizer: any torch optimizer over the parameters of one distributed model, or
            ``static.Optimizer`` for a static program.
        strategy: replaces the one given to ``init``, if no model is distributed yet; for a job with
            servers also a ``DistributeTranspilerConfig``.
        grad_clip: limits gradients before they are used, like the strategy ``clip``.
    """
    session = current("distributed_optimizer")
    if not isinstance(optimizer, Described):
        _is_optimizer(optimizer)
    if grad_clip is not None and not isinstance(grad_clip, GradClip):
        raise TypeError(
            "fleet.distributed_optimizer() takes grad_clip=fleet.ClipGradByGlobalNorm(1.0), "
            f"ClipGradByNorm or ClipGradByValue, got {grad_clip!r}"
        )
    if strategy is not None:
        _replace_strategy(session, strategy, "distributed_optimizer")
    if grad_clip is not None and not _watched(Request(strategies={"clip": {}})).strategies:
        grad_clip = None
    if isinstance(optimizer, Described):
        described = optimizer.distributed(grad_clip)
        session.latest = lambda: described
        return described
    wrapped = DistributedOptimizer(optimizer, grad_clip)
    session.latest = weakref.ref(wrapped)
    for owner in session.engines:
        if _owns(owner, wrapped):
            wrapped.bind(owner)
            return wrapped
    session.waiting.append(wrapped)
    return wrapped


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
    return _watched(current("distributed_optimizer").strategy.request())


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
    engine = Engine(plan, model, device=roles.device(), mesh=mesh(plan), **given)
    session.counted += 1
    engine.updating.append(Agreement(session.counted))
    engine.attached += [watch.attached for watch in watches]
    engine.finished += [watch.finished for watch in watches]
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


def _watched(request: Request) -> Request:
    for watch in watches:
        request = watch.change(request)
    return request


def sharers(plan: Plan) -> int:
    """Among how many workers the data is dealt."""
    return plan.mesh["dp"] * plan.mesh["sharding"]


def mesh(plan: Plan) -> DeviceMesh:
    """The mesh of a plan."""
    return (roles.mesh if roles.identity().is_collective else roles.alone)(plan.mesh)


def _owns(engine: Engine, optimizer: DistributedOptimizer) -> bool:
    """Whether some of the parameters are the model's; the engine then names a stray one."""
    return any(parameter in engine.names for parameter in optimizer.parameters)


def _replace_strategy(
    session: Session, given: DistributedStrategy | DistributeTranspilerConfig, call: str
) -> None:
    if isinstance(given, DistributeTranspilerConfig):
        session.split = given.split()
        given = given.strategy(session.strategy)
    strategy = _is_strategy(call, given)
    if strategy is session.strategy:
        return
    if strategy != session.strategy:
        if _has_models(session):
            raise PlanError(
                f"fleet.{call}() got a strategy that differs from the one under which the model "
                "was laid out; pass the strategy to the first fleet.init(), before the model, or "
                "let go of that model and its optimizer first (del model, optimizer)."
            )
        if session.strategy != DistributedStrategy():
            logger.warning(
                "the strategy given to fleet.%s() replaces the one that was given before", call
            )
    session.strategy = strategy


def _has_models(session: Session) -> bool:
    """Whether a model is in use, and not only waits for Python to find that nobody uses it."""
    if session.engines:
        gc.collect()
    return bool(session.engines)


def _is_strategy(call: str, strategy: object) -> DistributedStrategy:
    if not isinstance(strategy, DistributedStrategy):
        raise TypeError(
            f"fleet.{call}() takes strategy=fleet.DistributedStrategy(), got {strategy!r}"
        )
    return strategy


def _is_optimizer(optimizer: object) -> None:
    if not isinstance(optimizer, Optimizer) or isinstance(optimizer, DistributedOptimizer):
        raise TypeError(
            f"fleet.distributed_optimizer() takes a torch.optim optimizer, got {optimizer!r}"
        )
    if isinstance(optimizer, LBFGS):
        raise TypeError(
            "fleet.distributed_optimizer() got LBFGS, which runs forward and backward many times "
            "in one step, so workers cannot stay in step; use a first-order optimizer such as SGD "
            "or AdamW."
        )
