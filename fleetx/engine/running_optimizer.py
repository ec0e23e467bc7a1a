"""The optimizer that runs: the user's own, or another that a plan makes out of it."""

from collections.abc import Mapping

from torch import nn
from torch.optim import Optimizer

from fleetx.plan.error import PlanError
from fleetx.plan.folding import changed_optimizer
from fleetx.plan.job import Job
from fleetx.plan.optimizer_spec import OptimizerSpec
from fleetx.plan.strategy import Plan


def running_optimizer(
    given: Optimizer,
    described: OptimizerSpec,
    plan: Plan,
    job: Job,
    parameters: Mapping[str, nn.Parameter],
) -> Optimizer:
    """Fold a plan over an optimizer.

    Args:
        given: what the user made; it runs if neither rule nor parameters change.
        described: the same as a description.
        plan: whose strategies may change the description.
        job: what strategies may look at.
        parameters: those that this rank holds, by their names.
    """
    spec = described
    for strategy in plan.strategies:
        spec = changed_optimizer(strategy, spec, job)
    held = {id(p) for p in parameters.values()}
    kept = all(id(p) in held for group in given.param_groups for p in group["params"])
    if spec is described and kept:
        return given
    if _has_stepped(given):
        raise PlanError(
            f"the {type(given).__name__} has state already, and this plan replaces it by "
            f"{spec.cls.__name__}, which cannot use it; load the state after "
            "fleet.distributed_optimizer()."
        )
    built = spec.build(parameters, given)
    _steered_by(given, built)
    return built


def _has_stepped(optimizer: Optimizer) -> bool:
    """Whether there is state that an update left; Adagrad makes an empty one when it is built."""
    return any(state and float(state.get("step", 1)) > 0 for state in optimizer.state.values())


def _steered_by(given: Optimizer, running: Optimizer) -> None:
    """Let a scheduler that holds the user's optimizer go on steering the one that runs."""

    # The same list and dictionaries, so that a rate which a scheduler writes into the one is that
    # of the other. Whoever assigns a new list, as loading does, has to be followed.
    def share(loaded: Optimizer) -> None:
        given.param_groups, given.state = loaded.param_groups, loaded.state

    share(running)
    # Loading replaces the groups.
    running.register_load_state_dict_post_hook(share)
