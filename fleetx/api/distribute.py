"""The calls of a user's script: ``init``, ``distributed_model`` and ``distributed_optimizer``."""

import gc
import logging
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, Protocol, overload, runtime_checkable

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from fleetx import roles
from fleetx.api.batches import give_batch_calls
from fleetx.api.distributed_model import DistributedModel, Model
from fleetx.api.grad_clip import GradClip
from fleetx.api.not_finite import STOP
from fleetx.api.optimizer import DistributedOptimizer
from fleetx.api.parts_of_parameters import PartsOfParameters
from fleetx.api.promised import promised_to
from fleetx.api.returned_model import give_words
from fleetx.api.session import (
    Given,
    Session,
    begin,
    begun,
    current,
    engine,
    plan,
    show_session,
    watched,
    watches,
)
from fleetx.api.wrappers import refuse_wrapped
from fleetx.config.distributed_strategy import DistributedStrategy
from fleetx.config.transpiler import DistributeTranspilerConfig
from fleetx.engine.engine import Engine
from fleetx.expected import CRITERION, WHOLE, Kind, expect, takes
from fleetx.launch import parting
from fleetx.plan.compose import Request
from fleetx.plan.error import PlanError
from fleetx.roles.freed_memory import return_freed_memory
from fleetx.tracking.log import begin_trackers, checked_trackers
from fleetx.tracking.tracker import Tracker

logger = logging.getLogger(__name__)
_EVERY = Kind("a whole number above 0", lambda value: WHOLE.fits(value) and value > 0)
_ON_NAN = Kind('"stop", or None', lambda value: value is None or value == STOP)


@runtime_checkable
class Described(Protocol):
    """An optimizer whose parameters are not known yet: a static program supplies them."""

    def distributed(self, grad_clip: GradClip | None) -> Any:
        """What ``distributed_optimizer`` returns for it."""


def init(
    role_maker: roles.RoleMaker | None = None,
    is_collective: bool = False,
    strategy: DistributedStrategy | None = None,
    *,
    trackers: Sequence[str | Tracker] = (),
    log_every: int = 10,
    on_nan: Literal["stop"] | None = None,
) -> None:
    """Learn who this process is, meet the other workers, and keep the strategy for what follows.

    Args:
        role_maker: who is who; found in the environment when it is None.
        is_collective: train with collectives between workers, without parameter servers.
        strategy: which optimisations to switch on; none of them when it is None.
        trackers: where ``fleet.log`` writes: "tensorboard", "wandb", "mlflow", or objects with a
            method ``log(values, step)``.
        log_every: updates between two reports of what is logged by itself (docs/trackers.md).
        on_nan: "stop" ends the job, on all workers and before the update, when a loss or a
            gradient is not finite, and names it; costs one exchanged number for each update.
    """
    if strategy is not None:
        _is_strategy("init", strategy)
    opened = checked_trackers(trackers)
    expect("fleet.init", "log_every", log_every, _EVERY)
    expect("fleet.init", "on_nan", on_nan, _ON_NAN)
    again = roles.started()
    roles.start(role_maker, is_collective=is_collective)
    if not again:
        parting.explain()
    if not again or not begun():
        begin(strategy or DistributedStrategy())
    elif strategy is not None:
        # A second call changes nothing but the strategy, if no model has been laid out under one.
        _replace_strategy(current("init"), strategy, "init")
    _track(current("init"), opened, log_every)
    current("init").stops_at_nan |= on_nan is not None


def _track(session: Session, trackers: list[Any], every: int) -> None:
    """Begin the trackers; tools that run a script again and again look at it themselves."""
    if session.tracked or not trackers or watches:
        return
    session.tracked = True
    follow = begin_trackers(trackers, every)
    if follow is not None:
        session.follows.append(follow)


@overload
def distributed_model(
    model: Model, *, criterion: None = None, sample: Any = None, targets: Any = None
) -> Model: ...


@overload
def distributed_model(
    model: Model,
    *,
    criterion: Callable[[Any, Any], Tensor],
    sample: Any = None,
    targets: Any = None,
) -> DistributedModel[Model]: ...


@takes("fleet.distributed_model", criterion=CRITERION | None)
def distributed_model(
    model: nn.Module,
    *,
    criterion: Callable[[Any, Any], Tensor] | None = None,
    sample: Any = None,
    targets: Any = None,
) -> Any:
    """Lay the model out over the workers and return it: the same module, with the same names.

    Args:
        model: any module; it is moved to this worker's device and starts equal on every worker.
        criterion: outputs and targets -> loss, for ``model.train_batch`` and ``model.eval_batch``.
        sample: inputs of one worker's batch, by which ``strategy.auto`` compares plans, and for
            which a pipeline follows the code of the model; chains of layers it cuts without.
        targets: those of the sample, so that ``strategy.auto`` counts what the criterion keeps.
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
    given = Given(model, sample, criterion, targets)
    for watch in watches:
        watch.given(given)
    if not all(watch.lays_out for watch in watches):
        return model
    look = _decide(session, given)
    coming = promised_to(model)
    names = coming.names if coming else ()
    laid_out = engine(plan(), model, criterion=criterion, sample=sample, promised=names)
    return_freed_memory()  # of the whole model, where this worker holds a part of it
    look(laid_out)
    if coming:
        laid_out.job.together(partial(coming.keep, laid_out))
    session.laid_out.append(weakref.ref(laid_out))
    give_batch_calls(laid_out.job.model, laid_out)
    give_words(laid_out.job.model, laid_out.saved_names, PartsOfParameters(laid_out))
    _bind_waiting(session, laid_out)
    return laid_out.job.model


def _decide(session: Session, given: Given) -> Callable[[Engine], None]:
    """Let the strategy be chosen, if that is asked for; what to do with the engine then."""
    if not session.strategy.auto:
        return lambda engine: None
    from fleetx.api.automatic import decide  # loads what compares plans

    return decide(session, given)


def _bind_waiting(session: Session, engine: Engine) -> None:
    """Give the model the optimizer that was distributed before it."""
    for optimizer in [*session.waiting]:
        if _owns(engine, optimizer):
            optimizer.bind(engine)
            session.waiting.remove(optimizer)


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
    _show_optimizer(optimizer)
    if grad_clip is not None and not isinstance(grad_clip, GradClip):
        raise TypeError(
            "fleet.distributed_optimizer() takes grad_clip=fleet.ClipGradByGlobalNorm(1.0), "
            f"ClipGradByNorm or ClipGradByValue, got {grad_clip!r}"
        )
    if strategy is not None:
        _replace_strategy(session, strategy, "distributed_optimizer")
    if grad_clip is not None and not watched(Request(strategies={"clip": {}})).strategies:
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


def _show_optimizer(optimizer: Optimizer | Described) -> None:
    """Refuse what is none, and let tools see it."""
    if not isinstance(optimizer, Described):
        _is_optimizer(optimizer)
    for watch in watches:
        watch.optimizer(optimizer)


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
    if strategy is session.strategy or strategy is session.asked:
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
    for heed in session.replaced:
        heed(session)
    show_session(session)


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
