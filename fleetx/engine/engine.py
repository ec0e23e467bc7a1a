"""Fold a plan over a model and run it: begin, drive, finish. No feature is named here."""

from collections.abc import Callable, Collection
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from fleetx.comm.reached import Reached
from fleetx.engine.by_hand import ByHand
from fleetx.engine.laid_out import LaidOut
from fleetx.engine.parameter_names import ParameterNames
from fleetx.engine.running_optimizer import running_optimizer
from fleetx.engine.saved_names import saved_names
from fleetx.engine.strangers import plan_at_work, watch_over
from fleetx.engine.waiting import Waiting
from fleetx.plan.error import PlanError
from fleetx.plan.folding import changed_model, changed_step, every_name
from fleetx.plan.forward import Forward, replace_forward
from fleetx.plan.forward_hook import BeforeForward
from fleetx.plan.job import Job
from fleetx.plan.optimizer_spec import OptimizerSpec
from fleetx.plan.plain_step import plain_step, unscaled
from fleetx.plan.step import Driven, Step
from fleetx.plan.strategy import Plan
from fleetx.plan.unmade import unmade
from fleetx.roles import activity

ONE_LOSS = (
    "Two distributed models with one loss are one here: put both into an nn.Module whose forward "
    "calls them, and distribute that, with one optimizer."
)
"""What to do where the optimizer of one model differentiates a loss of two."""


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
        keep_outputs: bool = False,
        promised: Collection[str] = (),
    ) -> None:
        self.plan, self.criterion = plan, criterion
        self.names = ParameterNames(dict(model.named_parameters()))
        """Parameters, the user's and those that run -> the first name of each."""
        self.saved_names = saved_names(model)
        """What the plain model saves, in its order."""
        self._first = {name: self.names[p] for name, p in every_name(model).items()}
        self.job = Job(
            device=device,
            mesh=mesh,
            model=model,
            options=plan.options,
            criterion=criterion,
            sample=sample,
            keep_outputs=keep_outputs,
            unmade=unmade(model, promised),
        )
        self._name_groups()
        with plan.laying_out(device):
            for strategy in plan.strategies:
                self.job.model = self.job.together(partial(changed_model, strategy, self.job))
            # Whoever could not afford the whole model on one device has cut it by now.
            self.job.together(partial(self.job.place, self.job.model))
        self.names.run(self.held())
        if self.job.contexts:
            replace_forward(self.job.model, self._under_contexts)
        self.job.model.register_forward_pre_hook(BeforeForward(self._called), with_kwargs=True)
        self._laid_out = LaidOut(self.job.model)
        self.open = False
        """Whether a batch has begun and not been finished."""
        self.holding = False
        """Whether gradients of earlier batches wait for the batch that ends in an update."""
        self.waiting = Waiting()
        """Those gradients."""
        self.attached: list[Callable[[Engine], None]] = []
        self.given_batch: list[Callable[[Engine, Any], None]] = []
        self.updating: list[Callable[[Engine], None]] = []
        self.finished: list[Callable[[Engine, Tensor | None], None]] = []
        """Callbacks: when there is an optimizer, when the model is called or given a whole batch,
        before every update, after every batch."""
        self.given: OptimizerSpec | None = None
        """The optimizer as the user described it."""
        self.steered_by: Any = None
        """What ``distributed_optimizer`` returned, which scripts may drop while the model lives."""
        self.updates = 0
        """Batches that ended in an update, a skipped one included: what schedules count."""
        self.loss: Tensor | None = None
        """Of the batch that is being finished, where it is known."""
        self._due = True
        self._driving = False
        """Whether the plan itself calls the model, as often as it likes."""
        self._ready = False
        """Whether the gradients of the open batch are ready for its end."""
        self.shown = False
        """Whether a backward must resume the step before it adds to gradients."""
        self._reached = Reached(())
        """Parameters that got gradients since the last backward through the plan, if it scales."""
        self._by_hand = ByHand()
        self._at_update = [word for s in plan.strategies for word in s.at_update(self.job)]
        """What is lost with updates that go past the plan."""
        watch_over(self)

    def first_name(self, name: str) -> str:
        """The first name of a parameter of the whole model that has several."""
        return self._first.get(name, name)

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
        with self.plan.laying_out(self.job.device):
            self.job.optimizer = self.job.together(partial(self._built, optimizer))
            step = plain_step(self.job)
            for strategy in self.plan.strategies:
                step = self.job.together(partial(changed_step, strategy, step, self.job))
        self.job.step = step
        if self.scaled:
            self._reached = Reached(self.job.model.parameters())
        for look in self.attached:
            look(self)
        return self.job.optimizer

    def _name_groups(self) -> None:
        """Let whoever asks why a rank waits know who exchanges along each axis."""
        for strategy in sorted(self.plan.strategies, key=lambda s: s.contract.phase):
            for axis in strategy.contract.between:
                if self.job.size(axis) > 1:
                    activity.own(self.job.mesh[axis].get_group().group_name, strategy.name)

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
        self.given = OptimizerSpec.describe(optimizer, self.names)
        return running_optimizer(optimizer, self.given, self.plan, self.job, self.held())

    def held(self) -> dict[str, nn.Parameter]:
        """What this rank holds, by first names: of a tied parameter it may hold a later place.

        Without what a script has added since, which nobody trains.
        """
        every = reversed(every_name(self.job.model).items())
        return {self._first[name]: p for name, p in every if name in self._first}

    @property
    def scaled(self) -> bool:
        """Whether the plan differentiates something else than the loss itself."""
        return self.step is not None and self.step.scale is not unscaled

    @property
    def driving(self) -> bool:
        """Whether the plan itself runs forward and backward of a batch now."""
        return self._driving

    def _called(self, arguments: Any) -> None:
        """The model is called with gradients on."""
        if not self._driving and not torch.compiler.is_compiling():
            self._count_call(arguments)
        self.begin()

    def _count_call(self, given: Any) -> None:
        activity.call()
        for look in self.given_batch:
            look(self, given)

    def begin(self) -> None:
        """Count a batch and arm or hold its reduction; nothing when it has begun already."""
        if self.open:
            return
        self._laid_out.check()
        if self.job.unmade is not None:
            self.job.unmade.check()
        if self.step is None:
            self._by_hand.look(self.job.model, self._at_update)
            return
        activity.begin_batch()
        self._due, self._ready = self.step.due(), False
        self.step.sync(self._due)
        self.open = True

    def drive(self, batch: Any) -> Driven:
        """Forward and backward of a whole batch the plan's own way."""
        assert self.step is not None, "attach() comes before drive()"
        self.begin()
        self.refuse_strays()
        self._resume()
        self._count_call(batch)
        activity.enter(activity.DRIVING)
        self._driving = True
        try:
            with plan_at_work():  # which may take the update with it
                driven = self.step.drive(self.step, batch)
        finally:
            self._driving = False
        self._show()
        return driven

    def backward(self, loss: Tensor) -> None:
        """Differentiate what the plan makes of the loss."""
        assert self.step is not None, "attach() comes before backward()"
        self._resume()
        activity.enter("in backward")
        try:
            self.step.scale(loss).backward()
        finally:
            self._reached.forget()
        self._show()

    def _resume(self) -> None:
        assert self.step is not None
        self.waiting.check(self.job.model)
        if self.shown:
            self.step.resume()
        self.shown = self._ready = False

    def _show(self) -> None:
        """Let a user who looks at gradients between backward and update see true ones."""
        assert self.step is not None
        self.shown = self._ready = self.step.ready(self._due)
        if not self._due:
            self.waiting.show(self.job.model)

    def refuse_strays(self) -> None:
        """Complain of gradients of a backward that went past a plan which scales the loss."""
        if self._reached:
            name = self.names.get(self._reached.first(), "a parameter")
            self._reached.forget()
            raise RuntimeError(
                f"loss.backward() gave {name} a gradient, but this plan changes the loss before it "
                "is differentiated, so gradients of that backward would count for more or less "
                "than those of others; call optimizer.backward(loss) for every loss, or add the "
                f"losses up. {ONE_LOSS}"
            )

    def cleared(self) -> None:
        """All gradients were cleared, those of strays too."""
        self._reached.forget()
        self._ready = False

    def finish(self, loss: Tensor | None = None) -> bool:
        """End the batch; True when the parameters moved."""
        assert self.step is not None, "attach() comes before finish()"
        activity.enter(activity.UPDATING)
        self.open, self.holding = False, not self._due
        self._reached.forget()  # by a drive, which scales what it differentiates
        if not self._ready:  # after a backward of the user's own, or several that reach parts
            self._show()
        moved = False
        self.loss = loss
        if self._due:
            for look in self.updating:
                look(self)
            with plan_at_work():
                moved = self._updated(self.step)
                self.updates += 1
                self.step.settle(loss)
            self.waiting.forget()
        else:
            self.waiting.note(self.job.model)
        self.loss = None
        for watch in self.finished:
            watch(self, loss)
        activity.end_batch(self._due)
        return moved

    def _updated(self, step: Step) -> bool:
        try:
            return step.update()
        except PlanError:
            # A forward that converts a parameter is the reason, and not what it leads to.
            self._laid_out.check()
            raise

    def train_batch(
        self, batch: Any, *, before_update: Callable[[Driven], None] = lambda driven: None
    ) -> Tensor:
        """One whole batch through the plan's own drive; returns the plain loss.

        Args:
            batch: inputs and targets.
            before_update: is shown what came out, when gradients are ready and not used yet.
        """
        assert self.job.optimizer is not None, "attach() comes before train_batch()"
        driven = self.drive(batch)
        before_update(driven)
        loss = driven.loss
        del driven  # outputs, if there are any, are let go of before the update takes memory
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
            with activity.during("evaluating"):
                return self.step.evaluate(inputs)
        finally:
            for module in training:
                module.training = True
