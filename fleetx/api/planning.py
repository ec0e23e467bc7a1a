"""``fleet.plan``: the best plans for a model, before anything is laid out."""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fleetx.api import session
from fleetx.api.automatic import machines_at_hand
from fleetx.auto.choose import COUNT, Plans, choose, subject_of
from fleetx.auto.clock import OperatorClock
from fleetx.auto.cluster import Cluster, load
from fleetx.auto.here import last_remembered, remember
from fleetx.auto.probe import probe
from fleetx.config.distributed_strategy import DistributedStrategy
from fleetx.expected import CRITERION, WHOLE, a, takes
from fleetx.plan.error import PlanError


@takes(
    "fleet.plan",
    model=a(nn.Module, "a torch.nn.Module"),
    optimizer=a(Optimizer, "a torch.optim optimizer") | None,
    criterion=CRITERION | None,
    strategy=a(DistributedStrategy, "fleet.DistributedStrategy()") | None,
    cluster=a(str | os.PathLike | Cluster, "the path of a cluster file") | None,
    count=WHOLE,
)
def plan(
    model: nn.Module,
    *,
    sample: Any,
    optimizer: Optimizer | None = None,
    criterion: Callable[[Any, Any], Tensor] | None = None,
    targets: Any = None,
    strategy: DistributedStrategy | None = None,
    cluster: str | os.PathLike[str] | Cluster | None = None,
    count: int = COUNT,
) -> Plans:
    """The best plans for a model on a cluster, the best one first; nothing of the model runs.

    Args:
        model: any module; it may be on the meta device.
        sample: inputs of one worker's batch; an update has as many for each worker.
        optimizer: of this model; AdamW is assumed where it is None.
        criterion: outputs and targets -> loss, which keeps activations, too.
        targets: those of the sample.
        strategy: what is set in it stays as it is; everything else is chosen.
        cluster: describes the machines; None takes those of this job, which are measured if
            nobody has before, by all workers together.
        count: how many plans are wanted.
    """
    if count < 1:
        raise ValueError(f"fleet.plan() takes as count at least 1; got {count}")
    given = DistributedStrategy() if strategy is None else strategy
    machines, here = _machines(cluster, given)
    device = torch.device(machines.device.kind)
    subject = subject_of(
        model,
        sample=sample,
        optimizer=optimizer,
        criterion=criterion,
        targets=targets,
        device=device,
        clock=OperatorClock(device, machines.device) if here else None,
    )
    return choose(subject, machines, given, count=count)


def _machines(given: Any, strategy: DistributedStrategy) -> tuple[Cluster, bool]:
    """The cluster, and whether its devices are here."""
    if isinstance(given, Cluster):
        return given, _is_here(given)
    if given is not None:
        return load(given), False
    if session.begun():
        return machines_at_hand(strategy), True
    return this_machine(1), True


def _is_here(cluster: Cluster) -> bool:
    """Whether it is what was measured on this machine."""
    device = _device()
    if device.type != cluster.device.kind:
        return False
    here = {"workers_here": cluster.devices_per_node, "nodes": cluster.nodes}
    return last_remembered(device, **here) == cluster


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def this_machine(workers: int) -> Cluster:
    """This machine with so many workers, measured now or before.

    Raises:
        PlanError: several workers were never measured here, which only they can do.
    """
    device = _device()
    known = last_remembered(device, workers_here=workers, nodes=1)
    if known is not None:
        return known
    if workers > 1:
        raise PlanError(
            f"the links between {workers} workers of this machine were never measured; run "
            f"`fleetx cluster probe --workers {workers}`, or give a cluster file."
        )
    found = probe(device)
    remember(found, device)
    return found
