"""A model in consecutive parts: where they begin, and what each of them runs."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fleetx.graph.meta import said
from fleetx.graph.part import Part
from fleetx.plan.error import PlanError
from fleetx.plan.job import Job
from fleetx.strategies.pipeline import balance, parts, trace

logger = logging.getLogger(__name__)
Points = tuple[str, ...]
"""The submodules that begin a part, but for the first."""


def brought(model: nn.Module, wanted: int, split: Points) -> Mapping[bool, Sequence[Part]] | None:
    """The parts of a model that knows them itself; None for any other."""
    if not (known := said(model).get("parts")):
        return None
    assert len(known) == wanted, "whoever brings parts has asked how many stages there are"
    if split:
        raise PlanError(
            f"pipeline_configs['split'] = {list(split)} cuts a model by its submodules, "
            "and this program is cut already, by static.device_guard(); leave 'split' out."
        )
    return parts.Brought(said(model))


def cut(
    model: nn.Module,
    job: Job,
    wanted: int,
    *,
    split: Points,
    sample: Mapping[str, Any] | None,
    given: Collection[str],
) -> Mapping[bool, Sequence[Part]]:
    """The parts that its forward falls into, where the options say or where costs are even."""
    try:
        points = split or balanced(model, wanted, sample, job.device, given)
        found = parts_between(model, points, given)
    except ValueError as error:
        raise PlanError(f"strategy.pipeline = True cannot cut the model: {error}") from error
    job.opened |= {m for name, m in model.named_modules() if is_around(name, points)}
    return found


def parts_between(
    model: nn.Module, points: Points, given: Collection[str] = ()
) -> Mapping[bool, Sequence[Part]]:
    """The parts for training and for evaluation.

    Args:
        model: what is cut.
        points: where.
        given: arguments of its forward that are inputs although they have a default.
    """
    training, found = model.training, {}
    try:
        for mode in (True, False):
            model.train(mode)
            graph = trace.follow(model, lambda name, module: not is_around(name, points), given)
            found[mode] = parts.cut(graph, points)
    finally:
        model.train(training)
    return found


def is_around(name: str, points: Points) -> bool:
    """Whether a submodule contains a point strictly; the model itself does not count."""
    return bool(name) and any(point.startswith(f"{name}.") for point in points)


def balanced(
    model: nn.Module,
    wanted: int,
    sample: Mapping[str, Any] | None,
    device: torch.device,
    given: Collection[str] = (),
) -> Points:
    """Where to cut so that the dearest part is as cheap as possible, alike on all ranks.

    Args:
        model: what is cut.
        wanted: how many parts.
        sample: arguments of its forward, on which costs are measured; None counts parameters.
        device: where ranks agree about what they measured.
        given: arguments of its forward that are inputs although they have a default.
    """
    graph = trace.follow(model, trace.open_up(model, wanted, given), given)
    if sample is None:
        found = tuple(balance.points(graph, balance.sizes(model, graph), wanted))
        logger.info(
            "pipeline: stages begin at %s, balanced by numbers of parameters; call "
            "fleet.distributed_model(model, sample=inputs) to balance them by measured cost",
            ", ".join(found),
        )
        return found
    measured = balance.costs(model, graph, sample)
    # Ranks measure differently and must cut alike.
    agreed = torch.tensor(list(measured.values()), dtype=torch.float64, device=device)
    dist.broadcast(agreed, src=0)
    costs = dict(zip(measured, agreed.tolist(), strict=True))
    return tuple(balance.points(graph, costs, wanted))
