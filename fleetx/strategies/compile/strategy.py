"""Compile: the forward and its backward run as code that torch.compile makes for this model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType
from typing import Annotated, Any

import torch
from torch import nn
from typing_extensions import override

from fleetx.graph import generation_cache
from fleetx.plan import option
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.forward import Forward, replace_forward
from fleetx.plan.job import Job
from fleetx.plan.option import OneOf
from fleetx.plan.pace import Pace
from fleetx.plan.share import Share
from fleetx.plan.strategy import Plan, Strategy
from fleetx.plan.subject import Subject
from fleetx.strategies.compile.pieces import pieces

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
    def share(self, share: Share) -> Share:
        model = share.subject.shape if share.subject.model is not None else None
        if model is None:
            return share

        def found() -> frozenset[str]:
            opened = {model.get_submodule(path) for path in share.opened}
            kept = pieces(model, opened, ())
            names = {module: path for path, module in model.named_modules()}
            return frozenset(names[module] for module in kept.modules if kept.by_block)

        paths = share.subject.once(("compiled by itself", share.opened), found)
        return replace(share, whole=share.whole | paths)

    @override
    def remarks(self) -> tuple[str, ...]:
        return (f"The forward is compiled by {self.config.backend} (compile_configs).",)

    @override
    def examine(self, plan: Plan) -> None:
        replays = any(strategy.name == "recompute" for strategy in plan.strategies)
        if replays and plan.mesh["tp"] > 1:
            raise PlanError(
                "strategy.compile = True lets the compiler replay what recompute names, and in a "
                "replay it leaves out what lets the tensors of layers that tensor_parallel cuts "
                "meet others. Set one of compile, recompute and tensor_parallel to False."
            )

    @override
    def model(self, model: nn.Module, job: Job) -> nn.Module:
        found = pieces(model, job.opened, job.elsewhere)
        for alike in found.by_kind().values():
            run = self._compiled(_with_own_code(_call))
            for module in alike:
                replace_forward(module, partial(partial, run))
                for around in job.surround:
                    replace_forward(module, around(module))
        if not found.by_block:
            job.translators += [self._compiled, *(around(model) for around in job.surround)]
            return model
        job.whole |= {*found.modules}
        if keeping := generation_cache.switches(model):
            replace_forward(model, partial(_without_cache, keeping))
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


def _call(forward: Forward, *args: Any, **kwargs: Any) -> Any:
    return forward(*args, **kwargs)


def _with_own_code(function: Any) -> Forward:
    """The same function, with code of its own.

    torch.compile keeps what it made by the code that was called, a few things for each: modules of
    one kind shall find what was made for the first of them, and other kinds shall not push it out.
    """
    return FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


def _without_cache(keeping: Sequence[Any], forward: Forward) -> Forward:
    """Blocks that write into a cache know their number, and code would be made for each of them."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        with generation_cache.switched_off(keeping):
            return forward(*args, **kwargs)

    return run
