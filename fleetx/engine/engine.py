"""Fold a plan over a model and run it: begin, drive, finish. No feature is named here."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer
from typing_extensions import override

from fleetx.engine.laid_out import LaidOut
from fleetx.engine.parameter_names import ParameterNames
from fleetx.engine.strangers import plan_at_work, watch_over
from fleetx.plan.error import PlanError
from fleetx.plan.forward import Forward, replace_forward
from fleetx.plan.job import Job
from fleetx.plan.optimizer_spec import OptimizerSpec
from fleetx.plan.plan import Plan
from fleetx.plan.step import Step
from fleetx.plan.strategy import Strategy


class Engine:
    """The same few lines whatever the plan; a batch goes begin -> drive -> finish."""

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        *,
        device: torch.device,
        mesh: DeviceMesh,
        criterion: Callable[[Any, Any], Tensor] | None = None,
        sample: Any = None,
    ) -> None:
        _refuse_meta(model)
        self.plan = plan
        self.names = ParameterNames(dict(model.named_parameters()))
        """Parameters, the user's and those that run -> the first name of each."""
        self.saved_names = list(model.state_dict())
        """What the plain model saves, in its order."""
        self._first = {name: self.names[p] for name, p in _names(model).items()}
        self.job = Job(
            device=device,
            mesh=mesh,
            model=model,
            options=plan.options,
            criterion=criterion,
            sample=sample,
        )
        for strategy in plan.strategies:
            self.job.model = self.job.together(partial(_laid_out, strategy, self.job))
        # Whoever could not afford the whole model on one device has cut it by now.
        self.job.model.to(device)
        self.names.run(self._held())
        if self.job.contexts:
            replace_forward(self.job.model, self._under_contexts)
        self.job.model.register_forward_pre_hook(_BeforeForward(self))
        self._laid_out = LaidOut(self.job.model)
        self.open = False
        """Whether a batch has begun and not been finished."""
        self.holding = False
        """Whether gradients of earlier batches wait for the batch that ends in an update."""
        self.attached: list[Callable[[Engine], None]] = []
        self.updating: list[Callable[[Engine], None]] = []
        self.finished: list[Callable[[Engine, Tensor | None], None]] = []
        """Onlookers: when there is an optimizer, before every update, after every batch."""
        self.given: OptimizerSpec | None = None
        """The optimizer as the user described it."""
        self.steered_by: Any = None
        """What ``distributed_optimizer`` returned, which scripts may drop while the model lives."""
        self.updates = 0
        """Batches that ended in an update, a skipped one included: what schedules count."""
        self._due = True
        self._ready = False
        """Whether the gradients of the open batch are ready for its end."""
        self.shown = False
        """Whether a backward must resume the step before it adds to gradients."""
        self._reached: list[Tensor] = []
        """Parameters that got gradients since the last backward through the plan, if it scales."""
        watch_over(self)

    @property
    def parameter_names(self) -> list[str]:
        """The first names of all parameters of the whole model, in its order."""
        return list(dict.fromkeys(self._first.values()))

    def attach(self, optimizer: Optimizer) -> Optimizer:
        """Fold the plan over the optimizer and the step; return the optimizer that will run."""
        if self.step is not None:
            raise PlanError(
                "this model already has a distributed optimizer, and a step moves all parameters "
                "at once; pass all parameters to one optimizer, as groups if they differ."
            )
        self._laid_out.check()
        self.job.optimizer = self.job.together(partial(self._built, optimizer))
        step = plain_step(self.job)
        for strategy in self.plan.strategies:
            step = self.job.together(partial(_folded, strategy, step, self.job))
        self.job.step = step
        if self.scaled:
            for parameter in self.job.model.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(self._reached.append)
        for look in self.attached:
            look(self)
        return self.job.optimizer

    def _under_contexts(self, forward: Forward) -> Forward:
        def run(*args: Any, **kwargs: Any) -> Any:
            with ExitStack() as stack:
                for context in self.job.contexts:
                    stack.enter_context(context())
                return forward(*args, **kwargs)

        return run

    @property
    def step(self) -> Step | None:
        """The finished step; None before an optimizer is attached."""
        return self.job.step

    def _built(self, optimizer: Optimizer) -> Optimizer:
        spec = described = self.given = OptimizerSpec.describe(optimizer, self.names)
        for strategy in self.plan.strategies:
            changed = strategy.optimizer(spec, self.job)
            if changed is not spec and "optimizer" not in strategy.contract.touches:
                raise PlanError(_undeclared(strategy, {"optimizer"}))
            spec = changed
        parameters = self._held()
        held = {id(p) for p in parameters.values()}
        kept = all(id(p) in held for group in optimizer.param_groups for p in group["params"])
        if spec is described and kept:
            return optimizer
        if _has_stepped(optimizer):
            raise PlanError(
                f"the {type(optimizer).__name__} has state already, and this plan replaces it by "
                f"{spec.cls.__name__}, which cannot use it; load the state after "
                "fleet.distributed_optimizer()."
            )
        built = spec.build(parameters, optimizer)
        _steered_by(optimizer, built)
        return built

    def _held(self) -> dict[str, nn.Parameter]:
        """What this rank holds, by first names: of a tied parameter it may hold a later place."""
        return {self._first[name]: p for name, p in reversed(_names(self.job.model).items())}

    @property
    def scaled(self) -> bool:
        """Whether the plan differentiates something else than the loss itself."""
        return self.step is not None and self.step.scale is not unscaled

    def begin(self) -> None:
        """Count a batch and arm or hold its reduction; nothing when it has begun already."""
        if self.open:
            return
        self._laid_out.check()
        if self.step is None:
            return
        self._due, self._ready = self.step.due(), False
        self.step.sync(self._due)
        self.open = True

    def drive(self, batch: Any) -> Tensor:
        """Forward and backward of a whole batch the plan's own way; returns the plain loss."""
        assert self.step is not None, "attach() comes before drive()"
        self.begin()
        self.refuse_strays()
        self._resume()
        with plan_at_work():  # which may take the update with it
            loss = self.step.drive(self.step, batch)
        self._show()
        return loss

    def backward(self, loss: Tensor) -> None:
        """Differentiate what the plan makes of the loss."""
        assert self.step is not None, "attach() comes before backward()"
        self._resume()
        try:
            self.step.scale(loss).backward()
        finally:
            self._reached.clear()
        self._show()

    def _resume(self) -> None:
        assert self.step is not None
        if self.shown:
            self.step.resume()
        self.shown = self._ready = False

    def _show(self) -> None:
        """Let a user who looks at gradients between backward and update see true ones."""
        assert self.step is not None
        self.shown = self._ready = self.step.ready(self._due)

    def refuse_strays(self) -> None:
        """Complain of gradients of a backward that went past a plan which scales the loss."""
        if self._reached:
            name = self.names.get(self._reached[0], "a parameter")
            self._reached.clear()
            raise RuntimeError(
                f"loss.backward() gave {name} a gradient, but this plan changes the loss before it "
                "is differentiated, so gradients of that backward would count for more or less "
                "than those of others; call optimizer.backward(loss) for every loss, or add the "
                "losses up."
            )

    def cleared(self) -> None:
        """All gradients were cleared, those of strays too."""
        self._reached.clear()
        self._ready = False

    def finish(self, loss: Tensor | None = None) -> bool:
        """End the batch; True when the parameters moved."""
        assert self.step is not None, "attach() comes before finish()"
        self.open, self.holding = False, not self._due
        self._reached.clear()  # by a drive, which scales what it differentiates
        if not self._ready:  # after a backward of the user's own, or several that reach parts
            self._show()
        moved = False
        if self._due:
            for look in self.updating:
                look(self)
            with plan_at_work():
                moved = self.step.update()
                self.updates += 1
                self.step.settle(loss)
        for watch in self.finished:
            watch(self, loss)
        return moved

    def train_batch(self, batch: Any) -> Tensor:
        """One whole batch through the plan's own drive; returns the plain loss."""
        assert self.step is not None, "attach() comes before train_batch()"
        assert self.job.optimizer is not None
        loss = self.drive(batch)
        self.finish(loss)
        if not self.holding:
            self.job.optimizer.zero_grad()
        return loss

    @torch.no_grad()
    def eval_batch(self, inputs: Any) -> Any:
        """The outputs for a whole batch, on every rank, in evaluation mode."""
        assert self.step is not None, "attach() comes before eval_batch()"
        training = [module for module in self.job.model.modules() if module.training]
        self.job.model.eval()
        try:
            return self.step.evaluate(inputs)
        finally:
            for module in training:
                module.training = True


def _refuse_meta(model: nn.Module) -> None:
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta:
            raise PlanError(
                f"{name!r} is on the meta device: it has a shape and no numbers, so there is "
                "nothing to lay out or to train. Make the model without torch.device('meta'), or "
                "call model.to_empty(device='cpu') and give it its weights, before "
                "fleet.distributed_model()."
            )


class _BeforeForward:
    """Begins a batch when the model is called with gradients on; copies of it lose the hook."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __call__(self, module: nn.Module, args: Any) -> None:
        # Not only in training mode: fine-tuning with frozen statistics runs in eval mode.
        if torch.is_grad_enabled():
            self._engine.begin()

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _idle_hook, ()


def _idle_hook() -> Callable[[nn.Module, Any], None]:
    return _do_nothing


def _do_nothing(module: nn.Module, args: Any) -> None:
    pass


def _has_stepped(optimizer: Optimizer) -> bool:
    """Whether there is state that an update left; Adagrad makes an empty one when it is built."""
    return any(state and float(state.get("step", 1)) > 0 for state in optimizer.state.values())


def _steered_by(given: Optimizer, running: Optimizer) -> None:
    """Let a scheduler that holds the user's optimizer go on steering the one that runs."""

    def share(loaded: Optimizer) -> None:
        given.param_groups, given.state = loaded.param_groups, loaded.state

    share(running)
    # Loading replaces the groups.
    running.register_load_state_dict_post_hook(share)


def unscaled(loss: Tensor) -> Tensor:
    """The scale of a job in which nothing scales."""
    return loss


def plain_step(job: Job) -> Step:
    """The step of a job with no strategy at all."""

    def drive(step: Step, batch: Any) -> Tensor:
        raise AssertionError("a plan always has one provider of drive")

    def update() -> bool:
        assert job.optimizer is not None
        job.optimizer.step()
        return True

    def unless(flag: Tensor, update: Callable[[], bool]) -> bool:
        # The one place where the host must know what the device found.
        return False if flag.item() else update()

    def evaluate(inputs: Any) -> Any:
        raise AssertionError("a plan always has one provider of drive")

    return Step(
        scale=unscaled,
        drive=drive,
        evaluate=evaluate,
        due=lambda: True,
        sync=lambda armed: None,
        reduce=None,
        ready=lambda due: True,
        resume=lambda: None,
        agree=lambda flag: flag,
        total=lambda number: number,
        unless=unless,
        update=update,
        settle=lambda loss: None,
    )


def _laid_out(strategy: Strategy, job: Job) -> nn.Module:
    """Let a strategy change the model; it may drop parameters but never rename one."""
    old, before, wire = job.model, vars(job.model).get("forward"), job.wire
    names = _names(old)
    new = strategy.model(old, job)
    held = _names(new)
    if renamed := held.keys() - names.keys():
        raise PlanError(
            f"{strategy.name} renamed parameters, which breaks checkpoints: {sorted(renamed)[:3]}"
        )
    for name, parameter in names.items():
        if _is_hooked(parameter) and held.get(name, parameter) is not parameter:
            raise PlanError(
                f"the parameter {name!r} has a gradient hook, and {strategy.name} replaces the "
                "parameter, so the hook would never be called; register it after "
                "fleet.distributed_model(), with register_post_accumulate_grad_hook(), which finds "
                "in .grad what this worker holds of the gradient."
            )
    changed = new is not old or vars(new).get("forward") is not before
    deeds = {"model"} if changed else set()
    if job.wire is not wire:
        deeds.add("wire")
    if undeclared := deeds - strategy.contract.touches:
        raise PlanError(_undeclared(strategy, undeclared))
    return new


def _is_hooked(parameter: Tensor) -> bool:
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def _names(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter under each of its names; those of a tied one are several."""
    return dict(model.named_parameters(remove_duplicate=False))


def _folded(strategy: Strategy, old: Step, job: Job) -> Step:
    new = strategy.step(old, job)
    changed = {f.name for f in fields(Step) if getattr(old, f.name) is not getattr(new, f.name)}
    if undeclared := changed - strategy.contract.touches:
        raise PlanError(_undeclared(strategy, undeclared))
    return new


def _undeclared(strategy: Strategy, deeds: set[str]) -> str:
    return f"{strategy.name} changed {sorted(deeds)}, which its contract does not name"
