"""Optimizers as Paddle's scripts use them: of a program, or stepping eagerly by themselves."""

import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch import optim as torch_optim
from typing_extensions import override

from fleetx.api.grad_clip import GradClip
from fleetx.api.optimizer import DistributedOptimizer
from fleetx.compat import modes
from fleetx.compat.after_updates import finished
from fleetx.compat.clipping import checked, clip_gradients, clip_of
from fleetx.compat.decays import Decays, add_hooks, decay_of
from fleetx.compat.groups import Group
from fleetx.compat.paddle.optimizer.lr import LRScheduler
from fleetx.compat.parameter_groups import in_one_list
from fleetx.compat.rate_by_name import offer
from fleetx.compat.slow_weights import COUNT, SLOW, SlowWeights
from fleetx.compat.tensors import wrap
from fleetx.record.variable import Variable
from fleetx.static.lr import NAME, Schedule
from fleetx.static.record.program import Program
from fleetx.static.run.optimizer import Optimizer as ProgramOptimizer

Rate = Callable[[int], float]


class GlobalRate(Schedule):
    """The learning rate of a program as scripts fetch it; attributes may be set on it."""

    persistable = False


def rate_of(given: Any) -> float | Rate:
    """What training takes of what a script gave as learning rate."""
    if isinstance(given, Variable):
        # Written with programs, which need the optimizers of this module in turn.
        found: Rate = importlib.import_module("fleetx.compat.rates").schedule_of(given)
        return found
    if isinstance(given, Tensor):
        return float(given)
    if callable(given):
        return cast(Rate, given)
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(
            "learning_rate is a number, a scheduler of paddle.optimizer.lr or a variable of the "
            f"program, got {given!r}"
        )
    return float(given)


class Optimizer(ProgramOptimizer):
    """Base of all: any rule of torch, with Paddle's calls for programs and for eager loops."""

    accumulators: ClassVar[Mapping[str, str]] = {}
    """State of torch -> how Paddle ends the name of the same."""
    powers: ClassVar[int] = 2
    """How many of its betas Paddle keeps powers of."""

    def __init__(
        self,
        rule: type[torch_optim.Optimizer],
        learning_rate: Any,
        *,
        parameters: Iterable[Any] | None = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(rule, lr=rate_of(learning_rate), **options)
        self._learning_rate = learning_rate
        self._name = name
        self._given_clip = grad_clip
        self.grad_clip = checked(grad_clip)
        self.regularization = decay_of(regularization)
        self._given, self._own_options = in_one_list(parameters)
        self._inner: torch_optim.Optimizer | None = None
        self._distributed: DistributedOptimizer | None = None
        self.norm_group: Group | None = None
        """The workers that hold other parts of the same layers."""
        self.after_steps: list[Callable[[], None]] = []
        """What is called after each update."""
        self._ticks = 0
        self._halves: Any = None
        self._slow: SlowWeights | None = None

    def look_ahead(self, slow: SlowWeights) -> None:
        """Let slow weights follow every update."""
        if self._slow is not None:
            raise ValueError(
                f"two Lookahead optimizers are around one {type(self).__name__}, and each would "
                "pull its weights back to its own; keep one of them."
            )
        self._slow = slow
        if self._inner is not None:
            slow.follow(self._inner)
        if self._distributed is not None:
            slow.check()

    @property
    def kept_names(self) -> dict[str, str]:
        """State of torch -> how the name of the same ends in files of Paddle."""
        slow = {} if self._slow is None else {SLOW: f"{SLOW}_0", COUNT: f"{COUNT}_0"}
        return {**self.accumulators, **slow}

    # ---- what a parameter is told

    def group_options(self, parameter: nn.Parameter) -> dict[str, Any]:
        """Options of one parameter that differ from the optimizer's."""
        return {}

    def decays(self, parameter: nn.Parameter) -> Decays:
        """What is added to the gradient of a parameter: its own regularizer, or the common one."""
        own = self._own_options.get(id(parameter), {})
        given = own.get("weight_decay", self.regularization)
        return Decays.of(decay_of(getattr(parameter, "regularizer", None)) or decay_of(given))

    def _scale(self, parameter: nn.Parameter) -> float:
        told = getattr(parameter, "optimize_attr", {}).get("learning_rate", 1.0)
        own = self._own_options.get(id(parameter), {}).get("learning_rate", 1.0)
        return float(told) * float(own)

    def _group(self, parameter: nn.Parameter) -> dict[str, Any]:
        made = {**self.decays(parameter).options(), **self.group_options(parameter)}
        scale = self._scale(parameter)
        if scale != 1.0:
            made |= {"lr": float(self.options.get("lr", 1e-3)) * scale, "lr_scale": scale}
        return made

    @override
    def build(self, parameters: Sequence[nn.Parameter], *, fused: bool = False) -> Any:
        self._check_limits(parameters)
        groups: dict[str, dict[str, Any]] = {}
        for parameter in parameters:
            options = self._group(parameter)
            key = repr(sorted(options.items()))
            groups.setdefault(key, {"params": [], **options})["params"].append(parameter)
        # The first group speaks for the learning rate of the program.
        listed = sorted(groups.values(), key=lambda group: "lr_scale" in group)
        made = super().build(cast(Sequence[nn.Parameter], listed), fused=fused)
        add_hooks(made)
        if self._slow is not None:
            self._slow.follow(made)
        made.register_step_post_hook(self._after)
        return made

    def _after(self, *_: Any) -> None:
        for call in self.after_steps:
            call()

    def _check_limits(self, parameters: Sequence[nn.Parameter]) -> None:
        left = [p for p in parameters if not getattr(p, "need_clip", True)]
        if left and self.grad_clip is not None and not self.eager:
            raise ValueError(
                f"ParamAttr(need_clip=False) of {getattr(left[0], 'paddle_name', 'a parameter')} "
                "leaves one gradient alone, and a program limits all of them together; leave it "
                "out, or train without grad_clip."
            )

    # ---- programs

    @override
    def minimize(
        self,
        loss: Tensor,
        startup_program: Program | None = None,
        parameter_list: Iterable[Any] | None = None,
        no_grad_set: Iterable[Any] | None = None,
        **old: Any,
    ) -> Any:
        """Let every run of a program end in an update; eagerly, use the gradients that are there.

        ``parameters`` is a newer name of ``parameter_list``; ``grad_clip`` is one of 1.7.
        """
        parameter_list = old.pop("parameters", None) or parameter_list
        if (clip := old.pop("grad_clip", None)) is not None:
            self._given_clip = self.grad_clip = checked(clip)
        if old:
            raise TypeError(f"minimize() has no argument {', '.join(old)}")
        if not isinstance(loss, Variable):
            self.step()
            return None, [(p, p.grad) for p in self._given or () if p.grad is not None]
        self.begin(loss)
        chosen = parameter_list or self._given
        several = importlib.import_module("fleetx.compat.several")  # of optimizers, in turn
        done, pairs = several.minimized(self, loss, startup_program, chosen, no_grad_set)
        return done, finished(loss, pairs)

    def begin(self, loss: Variable) -> GradClip | None:
        """Get ready to train; its own limit, or the one that the program was told meanwhile."""
        if self._slow is not None:
            self._slow.check()
        if not isinstance(self._learning_rate, Variable):
            offer(self)
        told = self._given_clip is None
        self.grad_clip = clip_of(loss.program) if told else self._given_clip
        return self.grad_clip

    def backward(
        self,
        loss: Tensor,
        startup_program: Program | None = None,
        parameter_list: Iterable[Any] | None = None,
        no_grad_set: Iterable[Any] | None = None,
        callbacks: Any = None,
        **old: Any,
    ) -> Any:
        """First half of ``minimize``: pairs of parameters and gradients."""
        if callbacks or old:
            raise TypeError(
                f"backward() was given {['callbacks', *old]!r}, and a program that is recorded has "
                "no operators that they could see; leave them out."
            )
        if not isinstance(loss, Variable):
            return [(p, p.grad) for p in self._given or () if p.grad is not None]
        halves = importlib.import_module("fleetx.compat.halves")  # written with programs
        chosen = parameter_list or self._given
        self._halves = halves.Halves.begin(loss, startup_program, chosen, no_grad_set)
        return list(self._halves.pairs)

    def apply_gradients(self, params_grads: Sequence[Any]) -> Any:
        """Second half of ``minimize``, with gradients that were changed in between or not."""
        if self._halves is None:
            self.step()
            return []
        loss, moved = self._halves.objective(params_grads)
        return self.minimize(loss, self._halves.startup, moved, self._halves.no_grad_set)[0]

    def apply_optimize(self, loss: Tensor, startup_program: Any, params_grads: Any) -> Any:
        """The name that Paddle 1 gave to the second half."""
        return self.apply_gradients(params_grads)

    def _global_learning_rate(self, program: Any = None) -> Any:
        """The learning rate as scripts fetch it."""
        if isinstance(self._learning_rate, Variable):
            return self._learning_rate
        if self.eager:  # what the last update took
            last = (
                self.get_lr() if self.schedule is None else self.schedule(max(self._ticks - 1, 0))
            )
            return wrap(torch.tensor([float(last)]))
        return GlobalRate(self.schedule or (lambda ticks: self.get_lr()), NAME)

    # ---- eager loops

    @property
    def parameters(self) -> list[Any]:
        """What it was given to train."""
        if self._given is None:
            raise AttributeError(
                f"{type(self).__name__} was made without parameters, which an eager loop needs; "
                "pass parameters=model.parameters() (parameter_list= in Paddle 1)."
            )
        return self._given

    _parameter_list = parameters

    @property
    def eager(self) -> bool:
        """Whether it trains tensors, and not a program."""
        return not modes.is_static() and self._given is not None

    def inner(self) -> torch_optim.Optimizer:
        """The optimizer of torch that steps."""
        if self._inner is None:
            self._inner = self.build(self.parameters)
        return self._inner

    def go_through(self, distributed: DistributedOptimizer) -> None:
        """Let its steps be those of a distributed optimizer."""
        if self._slow is not None:
            self._slow.check()
        self._distributed = distributed

    def _running(self) -> torch_optim.Optimizer:
        return self.inner() if self._distributed is None else self._distributed

    def step(self) -> None:
        """Move the parameters by their gradients."""
        running = self._running()
        self._set_rates(running)
        if self._distributed is None and self.grad_clip is not None:
            clip_gradients(self.grad_clip, self.parameters, self.norm_group)
        running.step()
        self._ticks += 1

    def _set_rates(self, running: torch_optim.Optimizer) -> None:
        rate = self.get_lr()
        for group in running.param_groups:
            group["lr"] = rate * group.get("lr_scale", 1.0)

    def clear_grad(self, set_to_zero: bool = True) -> None:
        """Forget the gradients."""
        self._running().zero_grad()

    clear_gradients = clear_grad

    # ---- learning rate and state

    @property
    def follows_scheduler(self) -> bool:
        """Whether something else than a number says the rate, whatever is set."""
        return callable(self._learning_rate) or isinstance(self._learning_rate, Variable)

    def get_lr(self) -> float:
        """The learning rate in force."""
        if self.schedule is not None:
            return float(self.schedule(self._ticks))
        return float(self.options["lr"])

    def current_step_lr(self) -> float:
        """The same, by its name in Paddle 1."""
        return self.get_lr()

    def set_lr(self, value: Any) -> None:
        """Set the learning rate by hand."""
        if isinstance(self._learning_rate, LRScheduler):
            raise RuntimeError(
                "set_lr() was called on an optimizer whose learning rate is a scheduler; move the "
                "scheduler, or call set_lr_scheduler()."
            )
        rate = float(value)
        self.options = {**self.options, "lr": rate}
        self.schedule = lambda ticks: rate

    def set_lr_scheduler(self, scheduler: LRScheduler) -> None:
        """Let another scheduler say the learning rate."""
        self._learning_rate, self.schedule = scheduler, scheduler

    def state_dict(self) -> dict[str, Any]:
        """State by the name of the parameter, and that of the scheduler."""
        found: dict[str, Any] = {}
        for number, parameter in enumerate(self._given or ()):
            name = getattr(parameter, "paddle_name", f"param_{number}")
            kept = self._running().state.get(parameter, {})
            found |= {f"{name}_{key}": value for key, value in self._named(kept).items()}
        if isinstance(self._learning_rate, LRScheduler):
            found["LR_Scheduler"] = self._learning_rate.state_dict()
        elif callable(self._learning_rate):
            found["global_step"] = torch.tensor([self._ticks])
        return found

    def _named(self, state: Mapping[str, Any]) -> dict[str, Any]:
        made = {there: state[here] for here, there in self.kept_names.items() if here in state}
        if "betas" in self.options and "step" in state:
            for number, beta in enumerate(self.options["betas"][: self.powers], start=1):
                power = float(beta) ** (float(state["step"]) + 1)
                made[f"beta{number}_pow_acc_0"] = torch.tensor([power])
        return made

    def set_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take back what ``state_dict`` returned."""
        if isinstance(self._learning_rate, LRScheduler) and "LR_Scheduler" in state_dict:
            self._learning_rate.set_state_dict(state_dict["LR_Scheduler"])
        elif callable(self._learning_rate) and "global_step" in state_dict:
            self._ticks = int(torch.as_tensor(state_dict["global_step"]).reshape(-1)[0])
        for number, parameter in enumerate(self._given or ()):
            name = getattr(parameter, "paddle_name", f"param_{number}")
            found = {
                here: torch.as_tensor(state_dict[f"{name}_{there}"]).clone().to(parameter.device)
                for here, there in self.kept_names.items()
                if f"{name}_{there}" in state_dict
            }
            if (power := state_dict.get(f"{name}_beta1_pow_acc_0")) is not None:
                power = float(torch.as_tensor(power).reshape(-1)[0])
                found["step"] = torch.tensor(_steps(power, self.options["betas"][0]))
            if found:
                self._running().state[parameter].update(found)

    set_dict = set_state_dict


def _steps(power: float, beta: float) -> float:
    return float(round(math.log(power) / math.log(beta)) - 1) if 0 < beta < 1 else 1.0
