"""A model in consecutive parts: where they begin, and what each of them runs."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fleetx.graph.part import Part
from fleetx.strategies.pipeline import balance, parts, trace

logger = logging.getLogger(__name__)
Points = tuple[str, ...]
"""The submodules that begin a part, but for the first."""


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
