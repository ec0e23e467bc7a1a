"""Workers that compute together must be given the same samples: held against each other."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fleetx.engine.engine import Engine
from fleetx.plan.all_or_none import all_or_none
from fleetx.roles import activity
from fleetx.roles.barrier import Barrier
from fleetx.torch_internals import tree_leaves

logger = logging.getLogger(__name__)
LOOKED_AT = 256
"""Numbers of a tensor that are looked at."""
TOGETHER = ("tp", "pp")
"""Axes along which workers see the same samples."""

Prints = list[str]
"""For each tensor of a batch what stands for its numbers; nothing for one that says nothing."""


class SameSamples:
    """Compares, at a few updates, what the workers of a pipeline or a tensor-parallel group got.

    One that left out a batch pairs each of its batches with an earlier one of the others: all
    exchanges find partners, and targets belong to other inputs.

    Args:
        model: which of the job's models it is, in the order in which all workers lay them out.
    """

    def __init__(self, model: int) -> None:
        self._model = model
        self._update = 0
        self._prints: Prints = []
        self._said = False

    def look(self, engine: Engine, batch: Any, update: int) -> None:
        """Remember the first batch of the coming update."""
        if self._update != update and _groups(engine) and not _is_captured():
            self._update, self._prints = update, prints(batch)

    def say(self, engine: Engine, barrier: Barrier, update: int, before: int) -> None:
        """Leave word of what this worker got, before all workers meet."""
        if _groups(engine):
            said = json.dumps(self._prints if self._update == update else [])
            own = self._topic(barrier.index, update)
            barrier.leave_word(own, said, self._topic(barrier.index, before) if before > 1 else "")

    def compare(self, engine: Engine, barrier: Barrier, update: int) -> None:
        """After all have met: the first worker of each group warns if others got other samples.

        They part only when all have read: worker 0 may keep the store, and this may be the last
        thing that it does.
        """
        if groups := _groups(engine):
            all_or_none(partial(self._compare, groups, barrier, update))

    def _compare(self, groups: Mapping[str, list[int]], barrier: Barrier, update: int) -> None:
        for axis, ranks in groups.items():
            if self._said or barrier.index != ranks[0]:
                continue
            told = [json.loads(barrier.word(self._topic(rank, update))) for rank in ranks]
            apart = [r for r, one in zip(ranks, told, strict=True) if differ(told[0], one, axis)]
            if apart:
                self._said = True
                sentence = _sentence(update, ranks[0], apart, axis)
                logger.warning(sentence)
                activity.warn(sentence)

    def _topic(self, rank: int, update: int) -> str:
        return f"samples/{self._model}/{update}/{rank}"


def _groups(engine: Engine) -> dict[str, list[int]]:
    """The axes along which this worker has partners that see the same samples, and who they are."""
    job = engine.job
    return {axis: job.mesh[axis].mesh.tolist() for axis in TOGETHER if job.size(axis) > 1}


def _is_captured() -> bool:
    """Whether a graph of a card is being captured, into which nothing may be read."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def differ(one: Sequence[str], other: Sequence[str], axis: str) -> bool:
    """Whether two workers got different samples.

    Stages of a pipeline use different parts of a batch, and each may get the others as it likes:
    as an image that is turned at random, or as zeros. So they differ if nothing that both know is
    the same.
    """
    pairs = [(a, b) for a, b in zip(one, other, strict=False) if a and b]
    apart = [a != b for a, b in pairs]
    return bool(apart) and (all(apart) if axis == "pp" else any(apart))


def prints(batch: Any) -> Prints:
    """What stands for each tensor of a batch."""
    return [_print(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]


@torch.no_grad()
def _print(tensor: Tensor) -> str:
    """A few numbers of a tensor as a short text; nothing for one that is the same everywhere."""
    if tensor.layout != torch.strided or tensor.is_meta or not tensor.numel():
        return ""
    flat = tensor.detach().reshape(-1)
    some = flat[:: max(1, flat.numel() // LOOKED_AT)][:LOOKED_AT].cpu()
    if bool((some == some[0]).all()):
        return ""
    held = some.contiguous().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(repr(tuple(tensor.shape)).encode() + held).hexdigest()[:16]


def _sentence(update: int, first: int, apart: Sequence[int], axis: str) -> str:
    others = ", ".join(map(str, apart))
    what = "pipeline" if axis == "pp" else "tensor-parallel group"
    return (
        f"at update {update} worker {first} and worker{'s' * (len(apart) > 1)} {others} of one "
        f"{what} were given different batches, and what they compute together belongs to none of "
        "them: one has left out a batch, or reads other data. Give all of them the same batches in "
        "the same order, as fleet.distributed_loader() does."
    )
