"""The calls of a user's script: ``init``, ``distributed_model`` and ``distributed_optimizer``."""

import logging
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import LBFGS, Optimizer

from fleetx import roles
from fleetx.config.distributed_strategy import DistributedStrategy
from fleetx.engine.batches import give_batch_calls
from fleetx.engine.engine import Engine
from fleetx.engine.grad_clip import GradClip
from fleetx.engine.optimizer import DistributedOptimizer
from fleetx.engine.weights import load_whole_state, whole_state
from fleetx.plan.compose import Request, compose
from fleetx.plan.error import PlanError
from fleetx.plan.mesh import data_place
from fleetx.plan.plan import Plan
from fleetx.roles import subgroups

logger = logging.getLogger(__name__)
Model = TypeVar("Model", bound=nn.Module)


@dataclass
class Session:
    """What one ``init`` began: the strategy, the models under it, optimizers without a model."""

    strategy: DistributedStrategy
    laid_out: list[weakref.ref[Engine]] = field(default_factory=list)
    """Weakly, because a model that nobody uses any more shall free its memory."""
    waiting: list[DistributedOptimizer] = field(default_factory=list)
    meshes: dict[tuple[tuple[str, int], ...], DeviceMesh] = field(default_factory=dict)
    """Axes -> mesh, so that equal plans share their process groups."""
    dealt: int | None = None
    """Among how many workers a loader has dealt the data already."""

    @property
    def engines(self) -> list[Engine]:
        """Those whose model is still in use."""
        found = (known() for known in self.laid_out)
        return [engine for engine in found if engine is not None]


@dataclass(frozen=True)
class Watch:
    """An onlooker, for tools that run a user's script and look at what it does."""

    change: Callable[[Request], Request] = lambda request: request
    """What is planned instead of what the script asked for."""

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
        # A second call changes nothing but the strategy of models that are still to come.
        chosen = _session.strategy if strategy is None else strategy
        _session = replace(_session, strategy=chosen)
    else:
        _session = Session(chosen)


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
    session = _current("distributed_model")
    if not isinstance(model, nn.Module):
        raise TypeError(f"fleet.distributed_model() takes a torch.nn.Module, got {model!r}")
    if any(engine.job.model is model for engine in session.engines):
        raise PlanError(
            "fleet.distributed_model() was called twice with the same module, which is distributed "
            "already; use what the first call returned."
        )
    engine = _engine(session, model, criterion=criterion, sample=sample)
    session.laid_out.append(weakref.ref(engine))
    give_batch_calls(engine.job.model, engine)
    for optimizer in [*session.waiting]:
        if _owns(engine, optimizer):
            optimizer.bind(engine)
            session.waiting.remove(optimizer)
    return engine.job.model  # type: ignore[return-value]


def distributed_optimizer(
    optimizer: Optimizer,
    strategy: DistributedStrategy | None = None,
    *,
    grad_clip: GradClip | None = None,
) -> DistributedOptimizer:
    """Let the optimizer's step go through the plan; may come before or after its model.

    Args:
        optimizer: any torch optimizer over the parameters of one distributed model.
        strategy: replaces the one given to ``init``, if no model is distributed yet.
        grad_clip: limits gradients before they are used, like the strategy ``clip``.
    """
    session = _current("distributed_optimizer")
    _is_optimizer(optimizer)
    if grad_clip is not None and not isinstance(grad_clip, GradClip):
        raise TypeError(
            "fleet.distributed_optimizer() takes grad_clip=fleet.ClipGradByGlobalNorm(1.0), "
            f"ClipGradByNorm or ClipGradByValue, got {grad_clip!r}"
        )
    if strategy is not None:
        _replace_strategy(session, _is_strategy("distributed_optimizer", strategy))
    if grad_clip is not None and not _watched(Request(strategies={"clip": {}})).strategies:
        grad_clip = None
    wrapped = DistributedOptimizer(optimizer, grad_clip)
    for engine in session.engines:
        if _owns(engine, wrapped):
            wrapped.bind(engine)
            return wrapped
    session.waiting.append(wrapped)
    return wrapped


def _current(call: str) -> Session:
    roles.identity(call)
    assert _session is not None, "roles are started by init() alone"
    return _session


def data_index() -> int:
    """Which share of the data this worker works on; workers of one pipeline have the same."""
    return data_place(_plan("data_index").mesh, roles.worker_index())[0]


def data_num() -> int:
    """How many shares the data is dealt into: the axes dp and sharding."""
    return data_place(_plan("data_num").mesh, roles.worker_index())[1]


def _plan(call: str) -> Plan:
    return compose(_watched(_current(call).strategy.request()), roles.worker_num())


def full_state_dict(model: nn.Module, *, everywhere: bool = False) -> dict[str, Tensor]:
    """Every parameter and buffer of a distributed model, complete and on the host.

    The names are those of the plain model, whatever the layout. All workers must call it; worker 0
    gets the state and can save it, the others an empty dict.

    Args:
        model: what ``distributed_model`` returned.
        everywhere: every worker gets the state.
    """
    return whole_state(_engine_of(model, "full_state_dict"), everywhere=everywhere)


def load_full_state_dict(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give a distributed model the weights of the plain one; each worker keeps its part.

    Args:
        model: what ``distributed_model`` returned.
        state: that of the plain model, or what ``full_state_dict`` returned, on all workers.
    """
    load_whole_state(_engine_of(model, "load_full_state_dict"), state)


def _engine_of(model: nn.Module, call: str) -> Engine:
    for engine in _current(call).engines:
        if engine.job.model is model:
            return engine
    raise PlanError(
        f"fleet.{call}() got a module that is not distributed; pass what "
        "fleet.distributed_model() returned."
    )


def data_group() -> ProcessGroup | None:
    """The workers that share the data of a job that is planned already; None before that.

    Ranks of one pipeline, and of one tensor-parallel group, see the same samples.
    """
    if _session is None or not roles.started() or not roles.identity().is_collective:
        return None
    plan = _plan("distributed_loader")
    _session.dealt = _sharers(plan)
    if plan.mesh["pp"] * plan.mesh["tp"] == 1:
        return None
    return subgroups.data_group(_mesh(_session, plan))


def _sharers(plan: Plan) -> int:
    return plan.mesh["dp"] * plan.mesh["sharding"]


def _mesh(session: Session, plan: Plan) -> DeviceMesh:
    axes = tuple(plan.mesh.items())
    if axes not in session.meshes:
        session.meshes[axes] = roles.mesh(plan.mesh)
    return session.meshes[axes]


def _engine(session: Session, model: nn.Module, **given: Any) -> Engine:
    identity = roles.identity()
    if not identity.is_collective:
        raise PlanError(
            "this is a parameter-server job, and this version of fleetx trains only collective "
            "jobs; call fleet.init(is_collective=True) and start without servers."
        )
    plan = compose(_watched(session.strategy.request()), identity.worker_num)
    if session.dealt not in (None, _sharers(plan)):
        raise PlanError(
            f"fleet.distributed_loader() dealt the data out among {session.dealt} workers before "
            f"the strategy was known, by which {_sharers(plan)} share it; pass the strategy to "
            "fleet.init()."
        )
    session.strategy.lock()
    mesh = _mesh(session, plan)
    engine = Engine(plan, model, device=roles.device(), mesh=mesh, **given)
    engine.attached += [watch.attached for watch in watches]
    engine.finished += [watch.finished for watch in watches]
    return engine


def _watched(request: Request) -> Request:
    for watch in watches:
        request = watch.change(request)
    return request


def _owns(engine: Engine, optimizer: DistributedOptimizer) -> bool:
    """Whether some of the parameters are the model's; the engine then names a stray one."""
    return any(parameter in engine.names for parameter in optimizer.parameters)


def _replace_strategy(session: Session, strategy: DistributedStrategy) -> None:
    if strategy is session.strategy:
        return
    if session.engines and strategy != session.strategy:
        raise PlanError(
            "fleet.distributed_optimizer() got a strategy that differs from the one under which "
            "the model was laid out; pass the strategy to fleet.init(), before the model."
        )
    if session.strategy != DistributedStrategy() and strategy != session.strategy:
        logger.warning(
            "the strategy given to distributed_optimizer() replaces the one given to init()"
        )
    session.strategy = strategy


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
