"""Optimizers of Paddle's spelling, given to the workers of a job."""

import copy
from collections.abc import Mapping
from typing import Any

import torch

import fleetx
from fleetx import roles
from fleetx.api import session
from fleetx.compat import scopes
from fleetx.compat.after_updates import finished
from fleetx.compat.fleet_strategies import chosen_by_auto, native, with_strategies
from fleetx.compat.halves import Halves
from fleetx.compat.made_optimizers import DGCMomentum
from fleetx.compat.notes import note
from fleetx.compat.optimizers import Optimizer
from fleetx.compat.parameters import current_scope
from fleetx.compat.scopes import ScopeName
from fleetx.compat.several import minimized
from fleetx.config.transpiler import DistributeTranspilerConfig
from fleetx.record.variable import Variable

COMPRESSED = 16384
"""Gradients of fewer numbers are not compressed."""
_BEFORE = "_before_wrappers"
"""What a strategy was before an optimizer added its own: the next optimizer begins from there."""


class DistributedOptimizer:
    """What ``fleet.distributed_optimizer`` returns; everything else is the optimizer's own."""

    def __init__(self, optimizer: Optimizer, made: Any, given: Any = None) -> None:
        self._optimizer, self._made = optimizer, made
        self._inner_opt = optimizer if given is None else given
        self._halves: Halves | None = None

    @property
    def distributed(self) -> Any:
        """The optimizer of fleetx."""
        return self._made

    def minimize(
        self,
        loss: Any,
        startup_program: Any = None,
        parameter_list: Any = None,
        no_grad_set: Any = None,
        **old: Any,
    ) -> Any:
        """Let every run of a program be one update of all workers; eagerly, end the batch."""
        if isinstance(_first(startup_program), scopes.Scope):  # pslib has one more at its place
            startup_program, parameter_list, no_grad_set = parameter_list, no_grad_set, None
        loss, startup_program = _first(loss), _first(old.pop("startup_programs", startup_program))
        parameter_list = old.pop("parameters", None) or parameter_list
        for idle in ("scopes", "program_mode", "auc_runner_mode"):
            old.pop(idle, None)
        if old:
            raise TypeError(f"minimize() has no argument {', '.join(old)}")
        if not isinstance(loss, Variable):
            return self._optimizer.minimize(loss)
        chosen = parameter_list or self._optimizer._given
        if (told := self._optimizer.begin(loss)) is not None:
            self._made.grad_clip = told
        done, pairs = minimized(
            self._optimizer, loss, startup_program, chosen, no_grad_set, self._made
        )
        self.get_loss_scaling()  # scripts fetch it by its name
        return done, finished(loss, pairs)

    def backward(
        self,
        loss: Any,
        startup_program: Any = None,
        parameter_list: Any = None,
        no_grad_set: Any = None,
        callbacks: Any = None,
    ) -> Any:
        """First half of ``minimize``: pairs of parameters and gradients."""
        if not isinstance(loss, Variable):
            return self._optimizer.backward(loss)
        if callbacks:
            raise TypeError(
                "backward(callbacks=...) names functions that Paddle calls for each operator of "
                "its backward pass, and torch makes that in a run; leave it out."
            )
        chosen = parameter_list or self._optimizer._given
        many = roles.worker_num() if roles.identity("backward").is_collective else 1
        self._halves = Halves.begin(loss, startup_program, chosen, no_grad_set, many)
        return list(self._halves.pairs)

    def apply_gradients(self, params_grads: Any) -> Any:
        """Second half of ``minimize``, with gradients that were changed in between or not."""
        if self._halves is None:
            return self._optimizer.apply_gradients(params_grads)
        loss, moved = self._halves.objective(params_grads)
        return self.minimize(loss, self._halves.startup, moved, self._halves.no_grad_set)[0]

    def apply_optimize(self, loss: Any, startup_program: Any, params_grads: Any) -> Any:
        """The name that Paddle 1 gave to the second half."""
        return self.apply_gradients(params_grads)

    def amp_init(
        self, place: Any = None, scope: Any = None, test_program: Any = None, **_: Any
    ) -> None:
        """Nothing to do: copies in half precision are made when they are used."""

    def get_loss_scaling(self) -> ScopeName:
        """The scale of the loss, to fetch; 1 where ``strategy.amp`` scales nothing."""
        return scopes.named("loss_scaling_0", self._scale)

    def _scale(self) -> Any:
        training = getattr(self._made, "_training", None)
        plan = training.plan if training is not None else None
        for strategy in plan.strategies if plan is not None else ():
            if strategy.name == "amp":
                options, kept = strategy.config, strategy.state_dict()
                fixed = not options.use_dynamic_loss_scaling and options.dtype == "float16"
                still = options.init_loss_scaling if fixed else 1.0
                return torch.as_tensor(kept.get("scale", still)).reshape(1)
        return torch.ones(1)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in {"_optimizer", "_made"}:
            raise AttributeError(name)
        return getattr(self._optimizer, name)


def _first(given: Any) -> Any:
    """The one of a list of one, as scripts of pslib write it."""
    if isinstance(given, list | tuple):
        if len(given) != 1:
            raise ValueError(f"minimize() trains one program at a time, got {len(given)}")
        return given[0]
    return given


def asked_by(optimizer: Any) -> dict[str, dict[str, Any]]:
    """The strategies that an optimizer, or what wraps it, asks for."""
    found = getattr(optimizer, "strategies", None)
    made: dict[str, dict[str, Any]] = found() if callable(found) else {}
    inner = innermost(optimizer)
    if isinstance(inner, DGCMomentum):
        made = {**made, "dgc": dict(inner.dgc)}
    return made


def innermost(optimizer: Any) -> Optimizer:
    """The optimizer inside of all that wraps it."""
    while not isinstance(optimizer, Optimizer):
        inner = getattr(optimizer, "_optimizer", None)
        if inner is None:
            raise TypeError(
                "fleet.distributed_optimizer() takes an optimizer of paddle.optimizer or "
                f"fluid.optimizer, got {optimizer!r}"
            )
        optimizer = inner
    return optimizer


def distribute(optimizer: Any, strategy: Any = None) -> DistributedOptimizer:
    """Give an optimizer to all workers of the job."""
    inner = innermost(optimizer)
    chosen = _strategy(optimizer, native(strategy))
    if not inner.eager:
        return DistributedOptimizer(
            inner, fleetx.distributed_optimizer(inner, chosen, grad_clip=inner.grad_clip)
        )
    made = fleetx.distributed_optimizer(inner.inner(), chosen, grad_clip=inner.grad_clip)
    inner.go_through(made)
    return DistributedOptimizer(inner, made, optimizer)


def without_idle(strategy: Any) -> Any:
    """Without what would have no effect, which fleetx refuses and Paddle let pass."""
    known = current_scope().parameters
    if not isinstance(strategy, fleetx.DistributedStrategy) or not known:
        return strategy
    strategy = copy.deepcopy(strategy)
    vars(strategy).pop("_auto", None)  # it was asked, and chose
    for rule in ("lars", "lamb"):
        given = getattr(strategy, f"{rule}_configs")["exclude_from_weight_decay"]
        idle = [pattern for pattern in given if not any(pattern in name for name in known)]
        if getattr(strategy, rule) and idle:
            note(f"{rule}_configs['exclude_from_weight_decay']", f"{idle} name no parameter.")
            kept = [pattern for pattern in given if pattern not in idle]
            setattr(strategy, f"{rule}_configs", {"exclude_from_weight_decay": kept})
    sizes = [initial.module.get_parameter("value").numel() for initial in known.values()]
    if strategy.dgc and max(sizes) < COMPRESSED:
        note("strategy.dgc", f"no parameter has {COMPRESSED} numbers, so all travel whole.")
        strategy.dgc = False
    return strategy


def _strategy(optimizer: Any, given: Any) -> Any:
    asked: Mapping[str, Mapping[str, Any]] = asked_by(optimizer)
    current = session.current("distributed_optimizer").strategy
    before = vars(current).get(_BEFORE, current)
    auto = bool(getattr(before if given is None else given, "auto", False))
    if auto:
        kept = (before if given is None else given).explicit()
        if kept:
            note("strategy.auto", f"it chooses where nothing else is set: {', '.join(kept)}.")
        else:
            asked = {**chosen_by_auto(type(innermost(optimizer)).__name__), **asked}
    if not asked:
        return without_idle(before if given is None and before is not current else given)
    if isinstance(given, DistributeTranspilerConfig):
        raise ValueError(
            f"{', '.join(asked)} came with the optimizer, and servers of a "
            "DistributeTranspilerConfig do not train so; pass the plain optimizer."
        )
    base = before if given is None else given
    made = without_idle(with_strategies(base, asked))
    vars(made)[_BEFORE] = base  # copies of a strategy do not have it
    return made


def alone(optimizer: Any) -> DistributedOptimizer:
    """The same without ``fleet.init``: a job of those workers that there are."""
    if not roles.started():
        fleetx.init(is_collective=True)
    return distribute(optimizer)
