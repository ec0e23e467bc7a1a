"""Compile: the forward and its backward run as code that torch.compile makes for this model."""

from collections.abc import Iterable, Mapping, Sequence
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
from fleetx.plan.mesh import AXES
from fleetx.plan.option import OneOf
from fleetx.plan.pace import Pace
from fleetx.plan.share import Share
from fleetx.plan.share import inside as is_inside
from fleetx.plan.strategy import Plan, Strategy
from fleetx.plan.subject import Subject
from fleetx.strategies.compile.costs import Units, compiled
from fleetx.strategies.compile.criterion import CompiledCriterion
from fleetx.strategies.compile.pieces import pieces

CASTS = 0.4
"""What fusion leaves of the traffic of casts that are no operators of the forward, such as fp8's:
numbers are read where they are made, and one or two bytes of five or six are written."""
MANY = 4
"""Blocks of one kind for which it is worth it that their code is made once."""
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
        unit: Annotated[str, OneOf(("auto", "block", "model"))] = "auto"
        """What is compiled by itself. Blocks take as long as one of each kind, and workers exchange
        the gradients of one while the next one's backward runs; a model as one piece takes longest
        and runs fastest. "auto": blocks, but not where a lone process has few of each kind."""
        criterion: bool = True
        """Whether a criterion that ``distributed_model`` gets is compiled, too."""
        combo_kernels: bool = False
        """Let inductor run small independent operators of a GPU as one kernel, as its own option of
        this name does: faster where kernels are short, and younger than the rest of it."""

    config: Config
    _spread = False
    """Whether tensors of the model are spread over ranks."""

    @classmethod
    @override
    def alternatives(cls, subject: Subject, ranks: int) -> Sequence[Mapping[str, Any]]:
        return () if subject.device.type == "cpu" else ({},)

    @override
    def pace(self, pace: Pace, share: Share) -> Pace:
        inside = self._units(share).modules
        # What is replayed inside of a piece of code is no checkpoint of torch's any more.
        torn = inside and any(not is_inside(path, inside) for path, _ in share.replayed)
        if not torn:
            pace = replace(pace, replays=0.0, segments=0)
        return replace(pace, moved=pace.moved * CASTS)

    @override
    def share(self, share: Share) -> Share:
        model = share.subject.shape if share.subject.model is not None else None
        if model is None:
            return share

        blocks = self._blocks(share.mesh.values())
        pads = _pads(share.subject.device, share.mesh)

        def found() -> frozenset[str]:
            opened = {model.get_submodule(path) for path in share.opened}
            kept = pieces(model, opened, (), blocks, pads=pads)
            names = {module: path for path, module in model.named_modules()}
            return frozenset(names[module] for module in kept.modules if kept.by_block)

        key = "compiled by itself", share.opened, blocks, pads
        paths = share.subject.once(key, found)
        share = replace(share, whole=share.whole | paths)
        if share.trace is None or self.config.backend != "inductor":
            return share
        return compiled(share, self._units(share))

    def _units(self, share: Share) -> Units:
        """What of a traced forward is compiled by itself."""
        return Units(modules=share.whole or None, criterion=self._compiles_losses)

    @override
    def remarks(self) -> tuple[str, ...]:
        also = (
            ", and so is a criterion that distributed_model gets" if self._compiles_losses else ""
        )
        return (f"The forward is compiled by {self.config.backend}{also} (compile_configs).",)

    @property
    def _compiles_losses(self) -> bool:
        return self.config.criterion and not self._spread

    @override
    def examine(self, plan: Plan) -> None:
        config = self.config
        if config.combo_kernels and (config.backend, config.mode) != ("inductor", "default"):
            raise PlanError(
                "compile_configs['combo_kernels'] = True is an option of inductor, beside which "
                f"torch takes no mode, and backend is {config.backend!r}, mode {config.mode!r}. "
                "Leave them at 'inductor' and 'default', or set combo_kernels to False."
            )
        for axis, other in (("pp", "pipeline"), ("sharding", "sharding")):
            if config.unit == "model" and plan.mesh[axis] > 1:
                raise PlanError(
                    f"compile_configs['unit'] = 'model' cannot be in force: {other} runs the model "
                    "in parts, between which code cannot go on. Set unit to 'auto' or 'block'."
                )
        self._spread = plan.mesh["tp"] > 1
        replays = any(strategy.name == "recompute" for strategy in plan.strategies)
        if replays and plan.mesh["tp"] > 1:
            raise PlanError(
                "strategy.compile = True lets the compiler replay what recompute names, and in a "
                "replay it leaves out what lets the tensors of layers that tensor_parallel cuts "
                "meet others. Set one of compile, recompute and tensor_parallel to False."
            )

    @override
    def model(self, model: nn.Module, job: Job) -> nn.Module:
        if job.criterion is not None and self._compiles_losses:
            # By itself and in any number of pieces: what it computes for each score would else be
            # written out and read again, operator by operator.
            run = self._compiled(_with_own_code(_call), fullgraph=False)
            criterion = CompiledCriterion(
                job.criterion, partial(run, job.criterion), partial(_has_moved, job)
            )
            job.criterion, job.compiled_criterion = criterion, True
            job.recordable.append(criterion.is_made)
        blocks = self._blocks(job.size(axis) for axis in AXES)
        pads = _pads(job.device, {axis: job.size(axis) for axis in AXES})
        found = pieces(model, job.opened, job.elsewhere, blocks, pads=pads)
        if self.config.unit == "block" and not found.by_block and job.size("pp") == 1:
            raise PlanError(
                "compile_configs['unit'] = 'block' cannot be in force: the model repeats no block, "
                "or is a program, which knows layers and no blocks. Set unit to 'auto' or 'model'."
            )
        for alike in found.by_kind().values():
            run = self._compiled(_with_own_code(_call), fullgraph=self.config.fullgraph)
            for module in alike:
                replace_forward(module, partial(partial, run))
                for around in job.surround:
                    replace_forward(module, around(module))
        if not found.by_block:
            whole = partial(self._compiled, fullgraph=self.config.fullgraph)
            job.translators += [whole, *(around(model) for around in job.surround)]
            return model
        job.whole |= {*found.modules}
        if keeping := generation_cache.switches(model):
            replace_forward(model, partial(_without_cache, keeping))
        return model

    def _blocks(self, ranks: Iterable[int]) -> int | None:
        """How many blocks of a kind there must be for blocks to be compiled; None: never.

        Args:
            ranks: along each axis of the mesh.
        """
        if self.config.unit == "auto":
            return MANY if all(number == 1 for number in ranks) else 1
        return 1 if self.config.unit == "block" else None

    def _compiled(self, function: Forward, *, fullgraph: bool) -> Forward:
        config = self.config
        compiled: Forward = torch.compile(
            function,
            backend=config.backend,
            dynamic=config.dynamic,
            fullgraph=fullgraph,
            **self._for_inductor(),
        )
        return compiled

    def _for_inductor(self) -> dict[str, Any]:
        """Torch takes a mode or options."""
        if self.config.combo_kernels:
            return {"options": {"combo_kernels": True}}
        return {"mode": None if self.config.mode == "default" else self.config.mode}


def _has_moved(job: Job) -> bool:
    """Whether the optimizer has made updates, as one has whose state was loaded."""
    state = {} if job.optimizer is None else job.optimizer.state
    # Some rules make their state at once, and count its updates.
    return any(bool(kept) and float(kept.get("step", 1)) > 0 for kept in state.values())


def _pads(device: torch.device, mesh: Mapping[str, int]) -> bool:
    """Whether the large layers of odd sizes beside the blocks are code, too: on cards.

    Where they are cut or dealt out, a layer that shares its weights must not become a unit.
    """
    return device.type == "cuda" and all(mesh[axis] == 1 for axis in AXES if axis != "dp")


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
