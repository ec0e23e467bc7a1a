"""``fleet.check``: a strategy on the user's own model and batches, before the long run."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fleetx import roles
from fleetx.api.optimizer import DistributedOptimizer
from fleetx.checking.outcome import Outcome, differing, flat_weights, tolerances, weights
from fleetx.checking.report import Report, judge
from fleetx.comm.transfer import to_device
from fleetx.config.distributed_strategy import DistributedStrategy
from fleetx.engine.engine import Engine
from fleetx.expected import CRITERION, ITERABLE, WHOLE, takes
from fleetx.plan.compose import Request, compose

Criterion = Callable[[Any, Any], Tensor]


@takes(
    "fleet.check",
    batches=ITERABLE.such_as("a list of pairs of inputs and targets"),
    criterion=CRITERION,
    seed=WHOLE,
)
def check(
    model: nn.Module,
    optimizer: Optimizer,
    strategy: DistributedStrategy,
    batches: Iterable[tuple[Any, Any]],
    *,
    criterion: Criterion = nn.functional.cross_entropy,
    seed: int = 0,
) -> Report:
    """Train copies of the model with the strategy and with each of its flags left out.

    Every worker calls it with its own share of the batches. Neither the model nor the optimizer is
    changed. Print the report; ``report.ok`` is False when a flag does what it must not do.

    Args:
        model: a module that is not distributed.
        optimizer: the optimizer over its parameters.
        strategy: what to check.
        batches: pairs of inputs and targets; a handful is enough.
        criterion: outputs and targets -> loss.
        seed: what every run starts from, so that dropout is the same in all of them.
    """
    _check_arguments(model, optimizer, strategy)
    identity = roles.start(is_collective=True)
    trial = Trial(model, optimizer, list(batches), criterion, seed)
    if not trial.batches or any(len(batch) != 2 for batch in trial.batches):
        raise ValueError("fleet.check() takes batches that are pairs of inputs and targets.")
    request = strategy.request()
    everything, again = trial.run(request), trial.run(request)
    without = {name: trial.run(request.without(name)) for name in request.strategies}
    return judge(everything, without, identity.worker_num, again=again)


def _check_arguments(model: object, optimizer: object, strategy: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"fleet.check() takes a torch.nn.Module first, got {model!r}")
    if not isinstance(optimizer, Optimizer) or isinstance(optimizer, DistributedOptimizer):
        raise TypeError(f"fleet.check() takes a torch.optim optimizer second, got {optimizer!r}")
    if not isinstance(strategy, DistributedStrategy):
        raise TypeError(f"fleet.check() takes a DistributedStrategy third, got {strategy!r}")


@dataclass(frozen=True)
class Trial:
    """What all runs of a check have in common."""

    model: nn.Module
    optimizer: Optimizer
    batches: list[tuple[Any, Any]]
    criterion: Criterion
    seed: int

    def run(self, request: Request) -> Outcome:
        """Train a copy of the model under what the request asks for."""
        plan = compose(request, roles.worker_num())
        model, optimizer = copy.deepcopy((self.model, self.optimizer))
        device, mesh = roles.device(), roles.mesh(plan.mesh)
        with torch.random.fork_rng():
            torch.manual_seed(self.seed + roles.worker_index())
            engine = Engine(
                plan,
                model,
                device=device,
                mesh=mesh,
                criterion=self.criterion,
                sample=to_device(self.batches[0][0], device),
            )
            engine.attach(optimizer)
            start = flat_weights(engine)
            losses: list[float | None] = [
                float(engine.train_batch(to_device(batch, device))) for batch in self.batches
            ]
        return gathered(engine, start, losses)


def gathered(
    engine: Engine, start: Tensor, losses: list[float | None], **seen: tuple[str, ...]
) -> Outcome:
    """What all workers hold, seen from this one, next to what else was seen of the run."""
    sizes, together = of_all_workers(engine)
    apart = (together - together[0]).abs().amax(dim=0)
    return Outcome(
        start=start,
        end=together.mean(dim=0),
        apart=float(apart.max()),
        torn=differing(apart, sizes),
        sizes=sizes,
        **seen,
        meets=all(strategy.in_step() for strategy in engine.plan.strategies),
        losses=tuple(loss for loss in losses if loss is not None),
        batches=len(losses),
        tolerances=tolerances(engine.plan),
    )


def of_all_workers(engine: Engine) -> tuple[dict[str, int], Tensor]:
    """How many numbers each parameter has, and the weights of each worker as a row."""
    held = weights(engine)
    rows = roles.util.all_gather(torch.cat([*held.values()]).numpy())
    return {name: len(value) for name, value in held.items()}, torch.from_numpy(np.stack(rows))
