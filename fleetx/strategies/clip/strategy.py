"""Clip: gradients are limited after they were exchanged and before they are used."""

import math
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor
from typing_extensions import override

from fleetx.plan import option
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.exchange import Exchange, ring_bytes
from fleetx.plan.job import Job
from fleetx.plan.option import Above, OneOf, Unset
from fleetx.plan.share import Share
from fleetx.plan.step import Step
from fleetx.plan.strategy import Strategy
from fleetx.strategies.clip.clipping import (
    by_global_norm,
    by_norm,
    by_value,
    global_norm,
    gradients_of,
)

NORM_BYTES = 4


class Clip(Strategy, name="clip"):
    """Limits gradients by value, by the norm of each tensor, or by the norm of all of them."""

    contract = Contract(phase=Phase.GUARD, touches=frozenset({"update"}))

    @dataclass(frozen=True, kw_only=True)
    class Config(option.Config):
        """What is limited, and where."""

        by: Annotated[str, OneOf(("global_norm", "norm", "value"))] = "global_norm"
        """The norm of all gradients together, of each tensor, or each number by itself."""
        limit: Annotated[float, Above(0)] = 1.0
        """The largest norm or value that is left alone."""
        lowest: Annotated[float, Unset(-math.inf)] = -math.inf
        """The smallest value, for ``by="value"``; minus infinity stands for ``-limit``."""

        @override
        def consistent(self) -> None:
            if self.lowest != -math.inf and self.by != "value":
                raise ValueError(
                    f"clip_configs['lowest'] = {self.lowest} limits values, and clip_configs['by'] "
                    f"is {self.by!r}; set clip_configs['by'] = 'value', or leave 'lowest' alone."
                )
            if self.lowest >= self.limit:
                raise ValueError(
                    f"clip_configs['lowest'] = {self.lowest} is not below clip_configs['limit'] = "
                    f"{self.limit}, so no value would be left; lower it."
                )

    config: Config

    @override
    def step(self, step: Step, job: Job) -> Step:
        by, limit = self.config.by, self.config.limit
        lowest = -limit if self.config.lowest == -math.inf else self.config.lowest

        def update() -> bool:
            assert job.optimizer is not None
            moved = (p for group in job.optimizer.param_groups for p in group["params"])
            gradients = gradients_of(moved)
            if by == "global_norm":
                by_global_norm(gradients, limit, norm=_common_norm(job))
            elif by == "norm":
                by_norm(gradients, limit)
            else:
                by_value(gradients, lowest, limit)
            return step.update()

        return replace(step, update=update)

    @override
    def exchanges(self, known: tuple[Exchange, ...], share: Share) -> tuple[Exchange, ...]:
        if self.config.by == "value":
            return known
        whole, norms = share.subject.parameters(), dict[str, int]()
        cut = [n for n, piece in share.parameters.items() if piece.shape != whole[n].shape]
        if share.mesh["sharding"] > 1:
            norms["sharding"] = len(share.gradients)
        if share.mesh["tp"] > 1:
            norms["tp"] = len([name for name in cut if name in share.gradients])
        if share.mesh["pp"] > 1 and self.config.by == "global_norm":
            norms["pp"] = 1
        found = tuple(
            Exchange(
                collective="all-reduce",
                what="norms of gradients",
                when="before each update",
                sent_bytes=ring_bytes(NORM_BYTES * count, share.mesh[axis]),
                moved_bytes=NORM_BYTES * count,
                decided_by="clip_configs",
                axis=axis,
            )
            for axis, count in norms.items()
        )
        return (*known, *found)

    @override
    def remarks(self) -> tuple[str, ...]:
        by = self.config.by.replace("_", " ")
        return (f"Gradients are limited by {by} at {self.config.limit:g} (clip_configs).",)


def _common_norm(job: Job) -> Tensor | None:
    """The norm over all ranks that hold other parameters of the model; None if none does."""
    assert job.step is not None
    assert job.optimizer is not None
    if job.size("pp") == 1:
        return None
    own = {id(parameter) for parameter in job.own_parameters()}
    moved = (p for group in job.optimizer.param_groups for p in group["params"] if id(p) in own)
    gradients = gradients_of(moved)
    norm = global_norm(gradients) if gradients else torch.zeros((), device=job.device)
    return job.step.total(norm.square()).sqrt()
