"""The best plans for a model on a cluster, as a user gets them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer
from typing_extensions import override

from fleetx.auto.cluster import Cluster
from fleetx.auto.pictures import save
from fleetx.auto.proposals import Proposal, Proposals
from fleetx.auto.report import report
from fleetx.auto.search import Planned, Search
from fleetx.auto.verdict import what_would_change
from fleetx.config.distributed_strategy import DistributedStrategy
from fleetx.near_names import did_you_mean
from fleetx.plan.error import PlanError
from fleetx.plan.run import Run
from fleetx.plan.strategy import REGISTRY
from fleetx.plan.subject import Subject

OWN = ("auto", "auto_configs")
"""What a strategy says to the planner, and to nobody else."""
COUNT = 10


@dataclass(frozen=True, kw_only=True)
class Plans(Proposals):
    """The best plans, the best one first; prints as a table."""

    @override
    def __str__(self) -> str:
        return report(self)

    def save(self, folder: str | Path) -> list[Path]:
        """Write the strategy of the best plan, the table, and pictures; where each is."""
        return save(self, Path(folder))


def choose(
    subject: Subject,
    cluster: Cluster,
    given: DistributedStrategy,
    *,
    count: int = COUNT,
    explained: bool = True,
) -> Plans:
    """Look for the best plans.

    Args:
        subject: the model, its optimizer and one worker's batch.
        cluster: where it shall train.
        given: what the user set, which stays.
        count: how many plans are wanted.
        explained: find out what would change the choice, too.

    Raises:
        PlanError: the model cannot be followed, or there is no legal plan; it says why.
    """
    allow = allowed(given)
    subject.trace(Run())  # a model that cannot be followed is refused now
    search = Search(subject=subject, cluster=cluster, given=without_auto(given), allow=allow)
    found = search.best(count)
    proposals = (Proposal(strategy=search.strategy(one.choice), planned=one) for one in found)
    return Plans(
        proposals=tuple(proposals),
        cluster=cluster,
        subject=subject,
        samples=search.global_batch,
        looked_at=sum(one is not None for one in search.looked_at.values()),
        refused=search.refused,
        changes=_changes(search, found[0]) if explained else (),
    )


def _changes(search: Search, best: Planned) -> tuple[str, ...]:
    """Sentences for what would lead to another choice."""
    if not best.estimate.fits:
        return ()
    return tuple(str(change) for change in what_would_change(search, best) if change.is_other)


def allowed(given: DistributedStrategy) -> tuple[str, ...]:
    """Strategies that change the mathematics and may be chosen; a name that is none is refused."""
    known = [name for name, cls in REGISTRY.items() if not cls.internal]
    for name in given.auto_configs["allow"]:
        if name not in known:
            raise PlanError(
                f"strategy.auto_configs['allow'] names {name!r}, and there is no such strategy; "
                f"{did_you_mean(name, known)}"
            )
    return tuple(given.auto_configs["allow"])


def without_auto(given: DistributedStrategy) -> DistributedStrategy:
    """What was set besides `auto`."""
    made = DistributedStrategy()
    for name, value in given.explicit().items():
        if name not in OWN:
            setattr(made, name, value)
    return made


def subject_of(
    model: nn.Module,
    *,
    sample: Any,
    optimizer: Optimizer | None = None,
    criterion: Callable[[Any, Any], Any] | None = None,
    targets: Any = None,
    **more: Any,
) -> Subject:
    """What is planned for; an optimizer that nobody knows yet counts as one with much state."""
    if sample is None:
        raise PlanError(
            "strategy.auto = True cannot be in force: nothing is known of a batch, by which plans "
            "are compared. Call fleet.distributed_model(model, sample=inputs) with the inputs of "
            "one worker's batch, and before fleet.distributed_loader()."
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise PlanError(
            f"strategy.auto = True cannot be in force: the {type(model).__name__} has no parameter "
            "that is trained. Set strategy.auto = False."
        )
    return Subject(
        model=model,
        optimizer=AdamW(model.parameters()) if optimizer is None else optimizer,
        sample=sample,
        criterion=criterion if targets is not None else None,
        targets=targets if criterion is not None else None,
        **more,
    )
