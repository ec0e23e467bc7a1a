"""What ``distributed_optimizer`` returns: an optimizer whose step goes through the plan."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from fleetx.comm.held_gradients import forget_gradients
from fleetx.engine.engine import Engine
from fleetx.engine.grad_clip import GradClip
from fleetx.expected import FUNCTION, MAPPING, a, expect
from fleetx.plan.compose import extend

logger = logging.getLogger(__name__)

_BASE = a(Optimizer, "a torch.optim optimizer")
_LOSS = a(Tensor, "the loss, a tensor that the model computed")
_STATE = MAPPING.such_as("a dict that state_dict() returned")


class DistributedOptimizer(Optimizer):
    """A torch optimizer for the user's loop and for learning-rate schedulers.

    ``minimize(loss)`` is a whole update. ``backward(loss)``, ``step()`` and ``zero_grad()`` are the
    same in three lines, for loops that look at gradients in between. Those are scaled under amp;
    limit them with ``grad_clip`` or the strategy ``clip``, which know that.
    """

    _step_supports_amp_scaling = False
    """A fused optimizer would divide by the scale of the user's own GradScaler, which it is told
    past ``step()``; here the scaler divides and skips itself, as it does for plain optimizers."""

    def __init__(self, optimizer: Optimizer, grad_clip: GradClip | None = None) -> None:
        # The base constructor would make groups and state of its own; everything is the inner's.
        expect("DistributedOptimizer", "optimizer", optimizer, _BASE)
        self._inner = optimizer
        self._grad_clip = grad_clip
        self._engine: Engine | None = None
        self._loss: Tensor | None = None
        """The loss of the open batch, once it went backward through the plan."""
        self._fresh: dict[str, dict[str, Any]] = {}
        """The state of each strategy before the first batch."""

    def bind(self, engine: Engine) -> None:
        """Join the model whose parameters the optimizer moves."""
        if self._grad_clip is not None:
            engine.plan = extend(engine.plan, "clip", self._grad_clip.options())
        self._inner = engine.attach(self._inner)
        self._engine = engine
        self._fresh = {s.name: s.state_dict() for s in engine.plan.strategies}

    def steers(self, engine: Engine) -> bool:
        """Whether it moves that engine's model."""
        return self._engine is engine

    @property
    def parameters(self) -> list[Tensor]:
        """Every parameter of every group."""
        return [p for group in self._inner.param_groups for p in group["params"]]

    def minimize(self, loss: Tensor, *program: Any, **options: Any) -> Any:
        """Backward, update when one is due, and clear the gradients.

        The loss of a static program is not computed yet: there, the rest of the arguments are
        those of ``static.minimize``, and every run of the program is such an update.
        """
        if recorded := getattr(type(loss), "minimized", None):
            return recorded(loss, self, *program, **options)
        if program or options:
            raise TypeError("optimizer.minimize(loss) takes nothing else unless loss is static")
        self.backward(loss)
        self.step()
        self.zero_grad()
        return None

    def backward(self, loss: Tensor) -> None:
        """Differentiate the loss the way the plan wants it."""
        engine = self._running("backward")
        _check_loss(loss)
        engine.refuse_strays()
        engine.backward(loss)
        self._loss = loss.detach()

    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """End the batch: move the parameters when an update is due."""
        loss = None
        if closure is not None:
            expect("optimizer.step", "closure", closure, FUNCTION)
            with torch.enable_grad():
                loss = closure()
        engine = self._running("step")
        if engine.scaled and self._loss is None:
            raise RuntimeError(
                "optimizer.step() came after loss.backward(), but this plan changes the loss "
                "before it is differentiated; call optimizer.backward(loss) instead of "
                "loss.backward(), or optimizer.minimize(loss) for both."
            )
        engine.refuse_strays()
        last, self._loss = self._loss, None
        engine.finish(last)
        return loss

    def _running(self, verb: str) -> Engine:
        engine = self._bound(verb)
        if not engine.open:
            raise RuntimeError(
                f"optimizer.{verb}() was called, but the model was not: gradients of a forward "
                "that goes past it are not exchanged between workers. Call the module that "
                "fleet.distributed_model() returned, in training mode, not one of its methods or "
                "submodules, nor what torch.compile() made of it earlier (strategy.compile does "
                "that)."
            )
        return engine

    def _bound(self, verb: str) -> Engine:
        if self._engine is None:
            raise RuntimeError(
                f"optimizer.{verb}() was called before its model was distributed; "
                "call model = fleet.distributed_model(model) first."
            )
        return self._engine

    @override
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, unless they still wait for an update to come."""
        if self._engine is not None and self._engine.holding:
            return
        self._inner.zero_grad(set_to_none=set_to_none)
        if self._engine is not None:
            self._engine.cleared()

    clear_grad = zero_grad
    """The name of document 004's time."""

    @property
    @override
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of the optimizer that runs."""
        return self._inner.param_groups

    @property
    @override
    def state(self) -> Any:  # type: ignore[override]
        """The state of the optimizer that runs."""
        return self._inner.state

    @property
    @override
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The defaults of the optimizer that runs."""
        return self._inner.defaults

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        raise ValueError(
            "a group cannot be added to a distributed optimizer, whose parameters are laid out "
            "already; give the optimizer all groups before fleet.distributed_optimizer()."
        )

    @override
    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's state, and that of the strategies under ``"strategies"``."""
        state = dict(self._inner.state_dict())
        strategies = {s.name: s.state_dict() for s in self._bound("state_dict").plan.strategies}
        if kept := {name: value for name, value in strategies.items() if value}:
            state["strategies"] = kept
        return state

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take back what ``state_dict`` returned, here or in a run without fleetx."""
        engine = self._bound("load_state_dict")
        expect("optimizer.load_state_dict", "state_dict", state_dict, _STATE)
        _check_layout(self._inner, state_dict)
        self._inner.load_state_dict(cast(dict[str, Any], dict(state_dict)))
        # Gradients of batches that the state does not know must not get into its next update.
        forget_gradients(engine.job.model)
        kept = dict(state_dict.get("strategies", {}))
        for strategy in engine.plan.strategies:
            if strategy.name in kept:
                strategy.load_state_dict(kept.pop(strategy.name))
            elif strategy.state_dict():
                logger.warning(
                    "the checkpoint has no state of %s, which begins anew", strategy.name
                )
                if fresh := self._fresh[strategy.name]:
                    strategy.load_state_dict(fresh)
        for name in kept:
            logger.warning("the checkpoint has a state of %s, which is not in this plan", name)
        engine.holding = any(strategy.waiting() for strategy in engine.plan.strategies)

    def __getattr__(self, name: str) -> Any:
        """Everything else, such as the hooks that torch keeps in an optimizer, is the inner's."""
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)

    @override
    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a distributed optimizer belongs to its job and cannot be copied or pickled; copy its "
            "state_dict() instead."
        )

    @override
    def __repr__(self) -> str:
        return f"DistributedOptimizer({self._inner!r})"


def _check_loss(loss: Tensor) -> None:
    """Refuse what torch cannot differentiate, in words that name the call."""
    expect("optimizer.backward", "loss", loss, _LOSS)
    if loss.numel() != 1:
        raise ValueError(
            f"optimizer.backward() takes one number as loss, got a tensor of shape "
            f"{list(loss.shape)}; take its mean()."
        )
    if not loss.requires_grad:
        raise ValueError(
            "optimizer.backward() got a loss that depends on no parameter that is trained: it was "
            "computed under torch.no_grad(), or went through detach(), item() or numpy."
        )


def _check_layout(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Refuse the state of another layout, which would be assigned to the wrong numbers."""
    groups = zip(optimizer.param_groups, state["param_groups"], strict=False)
    counts = [(len(ours["params"]), len(theirs["params"])) for ours, theirs in groups]
    other = "it was saved under another layout; load it under the strategy that saved it"
    for ours, theirs in counts:
        if ours != theirs:
            raise ValueError(
                f"the optimizer state speaks of {theirs} parameters, and this rank holds {ours}: "
                f"{other}, on the same rank."
            )
    held = [p for group in optimizer.param_groups for p in group["params"]]
    keys = [key for group in state["param_groups"] for key in group["params"]]
    for parameter, key in zip(held, keys, strict=False):
        for name, value in state["state"].get(key, {}).items():
            if isinstance(value, Tensor) and _is_spread(parameter) != _is_spread(value):
                if value.dim() == 0:
                    continue  # a count of steps
                which = ("whole", "spread") if _is_spread(parameter) else ("spread", "whole")
                raise ValueError(
                    f"the optimizer state {name!r} is {which[0]}, and its parameter is {which[1]} "
                    f"over ranks here: {other}. The weights alone fit every layout "
                    "(fleet.full_state_dict, fleet.load_full_state_dict)."
                )


def _is_spread(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local")
