"""A model in consecutive parts: where they begin, and what each of them runs."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fleetx.graph import generation_cache
from fleetx.graph.meta import said
from fleetx.graph.part import Part
from fleetx.plan.error import PlanError
from fleetx.strategies.pipeline import balance, parts, trace, unevenness
from fleetx.strategies.pipeline.accepted_inputs import Accepted

logger = logging.getLogger(__name__)
Points = tuple[str, ...]
"""The submodules that begin a part, but for the first."""
Agreed = Callable[[Sequence[float]], Sequence[float]]
"""What this rank counted -> what all ranks cut by."""


@dataclass(frozen=True)
class Cut:
    """A model in parts."""

    parts: Mapping[bool, Sequence[Part]]
    """For training and for evaluation."""
    opened: frozenset[str] = frozenset()
    """Submodules whose own forward never runs, because what is inside was dealt out."""
    remark: str = ""
    """What there is to say about it."""


def brought(model: nn.Module, wanted: int, split: Points) -> Cut | None:
    """The parts of a model that knows them itself; None for any other."""
    if not (known := said(model).get("parts")):
        return None
    assert len(known) == wanted, "whoever brings parts has asked how many stages there are"
    if split:
        raise PlanError(
            f"pipeline_configs['split'] = {list(split)} cuts a model by its submodules, "
            "and this program is cut already, by static.device_guard(); leave 'split' out."
        )
    return Cut(parts.Brought(said(model)))


def alike(costs: Sequence[float], device: torch.device) -> list[float]:
    """The costs that the first rank counted: samples may have other sizes on others."""
    agreed = torch.tensor(costs, dtype=torch.float64, device=device)
    dist.broadcast(agreed, src=0)
    return agreed.tolist()


def cut(
    model: nn.Module,
    wanted: int,
    *,
    split: Points,
    accepted: Accepted,
    device: torch.device,
    agreed: Agreed,
    kept: dict[Any, trace.Forward] | None = None,
) -> Cut:
    """The parts that its forward falls into, where the options say or where costs are even.

    Args:
        model: what is cut.
        wanted: how many parts.
        split: where, if it was said.
        accepted: what its forward is given.
        device: where it will run.
        agreed: what this rank counted -> what all ranks cut by.
        kept: forwards that were followed, for whoever cuts one model into several numbers of parts.
    """
    sample = accepted.sample
    way = trace.way_of(model, sample, device)
    keeping, points, remark = generation_cache.switches(model), split, ""
    if kept is not None:
        way = trace.remembering(way, model, kept)
    try:
        generation_cache.check_not_asked_for(keeping, sample)
        with generation_cache.switched_off(keeping):
            if not split:
                points, remark = balanced(model, wanted, sample, agreed, way)
            found, opened = parts_between(model, points, way)
    except ValueError as error:
        raise PlanError(f"strategy.pipeline = True cannot cut the model: {error}") from error
    around = {name for name, _ in model.named_modules() if is_around(name, points)}
    return Cut(found, frozenset(around | opened), remark)


def parts_between(
    model: nn.Module, points: Points, way: trace.Way
) -> tuple[Mapping[bool, Sequence[Part]], frozenset[str]]:
    """The parts for training and for evaluation, and what had to be opened besides.

    Args:
        model: what is cut.
        points: where.
        way: how it is followed.
    """
    training, found, opened = model.training, {}, frozenset[str]()
    try:
        for mode in (True, False):
            model.train(mode)
            forward = way(lambda name, module: not is_around(name, points))
            found[mode] = parts.cut(forward.graph, points, forward.check)
            opened |= forward.opened
    finally:
        model.train(training)
    return found, opened


def is_around(name: str, points: Points) -> bool:
    """Whether a submodule contains a point strictly; the model itself does not count."""
    return bool(name) and any(point.startswith(f"{name}.") for point in points)


def balanced(
    model: nn.Module,
    wanted: int,
    sample: Mapping[str, Any] | None,
    agreed: Agreed,
    way: trace.Way,
) -> tuple[Points, str]:
    """Where to cut so that the dearest part is as cheap as possible, alike on all ranks.

    With it comes what there is to say: that one part is much dearer than others, and why.

    Args:
        model: what is cut.
        wanted: how many parts.
        sample: arguments of its forward, for which costs are counted; None counts parameters.
        agreed: what this rank counted -> what all ranks cut by.
        way: how it is followed.
    """
    opened = trace.open_up(model, wanted, way)
    graph = opened.graph
    if sample is None:
        costs, counted = balance.sizes(model, graph), "parameters"
    else:
        here = balance.costs(model, graph, sample)
        costs, counted = dict(zip(here, agreed(list(here.values())), strict=True)), "counted work"
    found = tuple(balance.points(graph, costs, wanted, model))
    if sample is None:
        logger.info(
            "pipeline: stages begin at %s, balanced by numbers of parameters; call "
            "fleet.distributed_model(model, sample=inputs) to balance them by counted operations",
            ", ".join(found),
        )
    return found, unevenness.remark(graph, costs, found, opened.refused, counted)
