"""One strategy applied to a model, an optimizer or a step, held against its contract."""

from dataclasses import fields

from torch import nn

from fleetx.plan.error import PlanError
from fleetx.plan.job import Job
from fleetx.plan.optimizer_spec import OptimizerSpec
from fleetx.plan.step import Step
from fleetx.plan.strategy import Strategy
from fleetx.torch_internals import has_gradient_hooks


def changed_model(strategy: Strategy, job: Job) -> nn.Module:
    """Let a strategy change the model; it may drop parameters but never rename one."""
    old, before, wire = job.model, vars(job.model).get("forward"), job.wire
    names = every_name(old)
    new = strategy.model(old, job)
    held = every_name(new)
    if renamed := held.keys() - names.keys():
        raise PlanError(
            f"{strategy.name} renamed parameters, which breaks checkpoints: {sorted(renamed)[:3]}"
        )
    for name, parameter in names.items():
        if has_gradient_hooks(parameter) and held.get(name, parameter) is not parameter:
            raise PlanError(
                f"the parameter {name!r} has a gradient hook, and {strategy.name} replaces the "
                "parameter, so the hook would never be called; register it after "
                "fleet.distributed_model(), with register_post_accumulate_grad_hook(), which finds "
                "in .grad what this worker holds of the gradient."
            )
    changed = new is not old or vars(new).get("forward") is not before
    changes = {"model"} if changed else set()
    if job.wire is not wire:
        changes.add("wire")
    if undeclared := changes - strategy.contract.touches:
        raise PlanError(_undeclared(strategy, undeclared))
    return new


def changed_optimizer(strategy: Strategy, old: OptimizerSpec, job: Job) -> OptimizerSpec:
    """Let a strategy change the update rule, if its contract says that it does."""
    new = strategy.optimizer(old, job)
    if new is not old and "optimizer" not in strategy.contract.touches:
        raise PlanError(_undeclared(strategy, {"optimizer"}))
    return new


def changed_step(strategy: Strategy, old: Step, job: Job) -> Step:
    """Let a strategy change verbs of the step, those that its contract names."""
    new = strategy.step(old, job)
    changed = {f.name for f in fields(Step) if getattr(old, f.name) is not getattr(new, f.name)}
    if undeclared := changed - strategy.contract.touches:
        raise PlanError(_undeclared(strategy, undeclared))
    return new


def every_name(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter under each of its names; those of a tied one are several."""
    return dict(model.named_parameters(remove_duplicate=False))


def _undeclared(strategy: Strategy, changes: set[str]) -> str:
    return f"{strategy.name} changed {sorted(changes)}, which its contract does not name"
