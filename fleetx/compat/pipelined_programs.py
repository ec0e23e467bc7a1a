"""Pipelines of programs as Paddle runs them: readers deliver micro-batches, one stage fetches."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from fleetx import roles
from fleetx.compat.notes import note
from fleetx.static.lr import Schedule
from fleetx.static.record.program import Program
from fleetx.static.run.training import training_of

Feeds = Iterator[Mapping[str, Any]]


def joined(program: Program, feeds: Feeds) -> Feeds:
    """What a reader delivers, as many micro-batches in one as a run of the program takes.

    A reader that delivers whole batches, of ``micro_batch_size * accumulate_steps`` rows, is left
    alone. A last group that is not full is left out, as Paddle's run ends inside of it.
    """
    count, size = _taken(program)
    first = next(feeds, None) if count > 1 else None
    if first is None:
        yield from feeds
        return
    rows = len(next(iter(first.values())))
    if size > 1 and rows == size * count:
        yield first
        yield from feeds
        return
    note("pipeline_configs", f"the reader delivers micro-batches; a run takes {count} of them.")
    group = [first, *islice(feeds, count - 1)]
    while len(group) == count:
        yield {name: _one([feed[name] for feed in group]) for name in first}
        group = list(islice(feeds, count))


def _options(program: Program) -> Any:
    """Those of the pipeline that trains a program; None if there is none."""
    training = training_of(program)
    plan = training.plan if training is not None else None
    known = plan.strategies if plan is not None else ()
    return next((strategy.config for strategy in known if strategy.name == "pipeline"), None)


def _taken(program: Program) -> tuple[int, int]:
    """How many micro-batches a run takes, and of how many samples each is said to be."""
    options = _options(program)
    if options is None:
        return 1, 1
    return int(options.accumulate_steps), int(options.micro_batch_size)


def others_fetch(program: Program, fetches: Sequence[Any]) -> list[str]:
    """What other workers of a pipeline fetch in this run, and this one does not.

    Scripts let the last stage fetch alone, and a run shows its results to all of them.
    """
    if _options(program) is None or roles.worker_num() == 1:
        return []
    own = [_name(program, fetch) for fetch in fetches]
    asked = roles.util.all_gather(own)
    return list(dict.fromkeys(name for names in asked for name in names if name not in own))


def _name(program: Program, fetch: Any) -> str:
    if isinstance(fetch, str | Schedule):
        return str(getattr(fetch, "name", fetch))
    return program.name_of(program.find(fetch))


def _one(values: list[Any]) -> Any:
    return torch.cat(values) if isinstance(values[0], torch.Tensor) else np.concatenate(values)
