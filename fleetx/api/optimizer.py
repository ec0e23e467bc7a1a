"""What ``distributed_optimizer`` returns: an optimizer whose step goes through the plan."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, NoReturn, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from fleetx.api.given_optimizer import goes_through, own_calls
from fleetx.api.grad_clip import GradClip
from fleetx.api.moved_numbers import MovedNumbers, put_back
from fleetx.api.saved_layout import WHOLE, check_fits, check_order, check_same, layout_of
from fleetx.comm.held_gradients import forget_gradients
from fleetx.engine.engine import ONE_LOSS, Engine
from fleetx.expected import FUNCTION, MAPPING, a, expect
from fleetx.plan.compose import extend
from fleetx.plan.plain_step import ready_for
from fleetx.plan.strategy import REGISTRY

_BASE = a(Optimizer, "a torch.optim optimizer")
_LOSS = a(Tensor, "the loss, a tensor that the model computed")
_STATE = MAPPING.such_as("a dict that state_dict() returned")


class DistributedOptimizer(Optimizer):
    """A torch optimizer for the user's loop and for learning-rate schedulers.

    ``minimize(loss)`` is a whole update. ``backward(loss)``, ``step()`` and ``zero_grad()`` are the
    same in three lines, for loops that look at gradients in between, or limit them.
    """

    _step_supports_amp_scaling = False
    """A fused optimizer would divide by the scale of the user's own GradScaler, which it is told
    past ``step()``; here the scaler divides and skips itself, as it does for plain optimizers."""

    def __init__(self, optimizer: Optimizer, grad_clip: GradClip | None = None) -> None:
        # The base constructor would make groups and state of its own; everything is the inner's.
        expect("DistributedOptimizer", "optimizer", optimizer, _BASE)
        self._inner = optimizer
        self._own = own_calls(optimizer)
        """Calls of the inner optimizer itself; the user's are led here once it is bound."""
        self._grad_clip = grad_clip
        self._engine: Engine | None = None
        self._loss: Tensor | None = None
        """The loss of the open batch, once it went backward through the plan."""
        self._fresh: dict[str, dict[str, Any]] = {}
        """The state of each strategy before the first batch."""
        self._layout: dict[str, Any] = {}
        self._numbers = MovedNumbers(optimizer.param_groups)

    def bind(self, engine: Engine) -> None:
        """Join the model whose parameters the optimizer moves."""
        if self._grad_clip is not None:
            engine.plan = extend(engine.plan, "clip", self._grad_clip.options())
        given, self._inner = self._inner, engine.attach(self._inner)
        self._own = own_calls(self._inner)
        goes_through(given, self)
        self._engine, engine.steered_by = engine, self
        self._fresh = {s.name: s.state_dict() for s in engine.plan.strategies}
        self._layout = layout_of(engine, self._inner)
        self._numbers = MovedNumbers(self._inner.param_groups)

    def steers(self, engine: Engine) -> bool:
        """Whether it moves that engine's model."""
        return self._engine is engine

    @property
    def inner(self) -> Optimizer:
        """The optimizer as it was given, or the one that runs instead of it."""
        return self._inner

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
                f"loss.backward(), or optimizer.minimize(loss) for both. {ONE_LOSS}"
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
                f"optimizer.{verb}() was called before its model was distributed: no distributed "
                "model has the parameters of this optimizer. Call model = "
                "fleet.distributed_model(model) first; if that was done, make the optimizer from "
                "model.parameters() of what it returned, not from those of a copy or of another "
                "model."
            )
        return self._engine

    @override
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, unless they still wait for an update to come."""
        if self._engine is not None and self._engine.holding:
            return
        self._own["zero_grad"](set_to_none=set_to_none)
        if self._engine is not None:
            self._engine.cleared()

    clear_grad = zero_grad
    """The name that Fleet's early releases gave it."""

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
        """The inner optimizer's state, that of the strategies, and how both lie over workers.

        The latter two are under ``"strategies"``, if there is any, and ``"layout"``.
        """
        strategies = {s.name: s.state_dict() for s in self._bound("state_dict").plan.strategies}
        state = {**self._own["state_dict"](), "layout": copy.deepcopy(self._layout)}
        if kept := {name: value for name, value in strategies.items() if value}:
            state["strategies"] = kept
        return state

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take back what ``state_dict`` returned, here or in a run without fleetx.

        Strategies begin anew with the state of a run that had none. Anything else must be complete
        and of the same layout; workers along the axis dp may be more or fewer. All workers must
        call it: what does not fit one of them is refused by all, before anything changes.
        """
        job = self._bound("load_state_dict").job
        job.together(partial(self._check, state_dict))  # one may have the file of another
        job.together(partial(self._load, state_dict))

    def take(self, state_dict: Mapping[str, Any]) -> None:
        """The same on this worker alone, for whoever hears how the others fare."""
        self._check(state_dict)
        self._load(state_dict)

    def moved_numbers(self) -> list[dict[str, Any]]:
        """The numbers of each group that schedules or the script have changed in this run."""
        return self._numbers.of(self._inner.param_groups)

    def take_numbers(self, moved: Sequence[Mapping[str, Any]]) -> None:
        """Take back what ``moved_numbers`` returned."""
        put_back(self._inner.param_groups, moved)

    def take_moved(self, state_dict: Mapping[str, Any]) -> None:
        """Take on this worker what was put together for its layout, whichever layout saved it."""
        check_fits(self._inner, state_dict)
        self._load(state_dict)

    def _check(self, state_dict: Mapping[str, Any]) -> None:
        expect("optimizer.load_state_dict", "state_dict", state_dict, _STATE)
        if "layout" in state_dict:
            check_same(state_dict["layout"], self._layout)
            check_order(state_dict["layout"], self._layout)
            self.check_strategies(state_dict.get("strategies", {}))
        check_fits(self._inner, state_dict)

    def _load(self, state_dict: Mapping[str, Any]) -> None:
        engine = self._bound("load_state_dict")
        self._own["load_state_dict"](cast(dict[str, Any], dict(state_dict)))
        # Gradients of batches that the state does not know must not get into its next update.
        forget_gradients(engine.job.model)
        engine.waiting.forget()
        kept = state_dict.get("strategies", {})
        for strategy in engine.plan.strategies:
            state = kept.get(strategy.name, self._fresh[strategy.name])
            if state or strategy.state_dict():
                strategy.load_state_dict(state)
        # What waits was saved as it could be seen.
        engine.holding = engine.shown = any(s.waiting() for s in engine.plan.strategies)

    def check_strategies(self, kept: Mapping[str, Any], *, moved: bool = False) -> None:
        """Refuse a state of strategies that lacks one of this plan, or has one of another.

        Args:
            kept: the states by names of strategies.
            moved: whether strategies whose state means nothing in another layout may come and go.
        """
        plan = self._bound("load_state_dict").plan
        free = {name for name, kind in REGISTRY.items() if moved and kind.leaves_state}
        for strategy in plan.strategies:
            if self._fresh[strategy.name] and strategy.name not in kept.keys() | free:
                raise ValueError(
                    f"the checkpoint has no state of {strategy.name}, which was not in force when "
                    f"it was saved; load it under the strategy that saved it. {WHOLE}"
                )
        if left := sorted(kept.keys() - {strategy.name for strategy in plan.strategies} - free):
            raise ValueError(
                f"the checkpoint has a state of {left[0]}, which is not in this plan and would be "
                f"lost; set strategy.{left[0]} = True, as it was when it was saved. {WHOLE}"
            )

    def __getattr__(self, name: str) -> Any:
        """Everything else, such as the hooks that torch keeps in an optimizer, is the inner's."""
        if name == "_inner":
            raise AttributeError(name)
        found = getattr(self._inner, name)
        is_own = inspect.ismethod(found) and found.__self__ is self._inner
        return self._ready(found) if is_own else found

    def _ready(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method that only this rule has, as SAM's ``first_step()``."""

        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            with ready_for(self._inner):
                return method(*args, **kwargs)

        return call

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
