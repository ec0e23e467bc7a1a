"""Compile: the forward and its backward run as code that torch.compile makes for this model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import nn
from typing_extensions import override

from fleetx.plan import option
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.forward import Forward, replace_forward
from fleetx.plan.job import Job
from fleetx.plan.option import OneOf
from fleetx.plan.pace import Pace
from fleetx.plan.share import Share
from fleetx.plan.strategy import Strategy
from fleetx.plan.subject import Subject

FUSED = 0.4
"""What fusion leaves of the traffic of operators other than products, and of their number. A guess,
which benchmarks/README.md shows to be wrong for convolutions."""
_SERVERS = "it fetches from servers while the forward runs, where compiled code cannot wait."


class Compile(Strategy, name="compile"):
    """Hands the model's forward to torch.compile; the first batches of each shape take longer."""

    contract = Contract(
        phase=Phase.CODE,
        touches=frozenset({"model"}),
        conflicts={
            "a_sync": _SERVERS,
            "parameter_server": _SERVERS,
            "pipeline": "it runs a followed forward part by part, and compile makes one of it all.",
            "tensor_parallel": "it cuts weights in a way that torch.compile cannot follow.",
        },
        tolerance=1e-4,
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(option.Config):
        """What torch.compile is told."""

        backend: str = "inductor"
        """Who makes the code, as in ``torch.compile``."""
        mode: Annotated[str, OneOf(("default", "max-autotune-no-cudagraphs"))] = "default"
        """How long to look for the fastest code; graphs are ``strategy.cuda_graph``'s business."""
        dynamic: bool = False
        """One code for all shapes, instead of one for each."""
        fullgraph: bool = False
        """Refuse a forward that cannot be compiled in one piece, instead of cutting it."""

    config: Config

    @classmethod
    @override
    def alternatives(cls, subject: Subject, ranks: int) -> Sequence[Mapping[str, Any]]:
        return () if subject.device.type == "cpu" else ({},)

    @override
    def pace(self, pace: Pace, share: Share) -> Pace:
        return replace(pace, moved=pace.moved * FUSED, starts=pace.starts * FUSED)

    @override
    def remarks(self) -> tuple[str, ...]:
        return (f"The forward is compiled by {self.config.backend} (compile_configs).",)

    @override
    def model(self, model: nn.Module, job: Job) -> nn.Module:
        replace_forward(model, self._compiled)
        return model

    def _compiled(self, forward: Forward) -> Forward:
        config = self.config
        mode = None if config.mode == "default" else config.mode
        compiled: Forward = torch.compile(
            forward,
            backend=config.backend,
            mode=mode,
            dynamic=config.dynamic,
            fullgraph=config.fullgraph,
        )
        return compiled
