"""Recompute: activations inside named submodules are not kept but computed again in backward."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from fleetx.graph import generation_cache
from fleetx.graph.layer_kinds import runs
from fleetx.graph.meta import said
from fleetx.graph.recording import recording
from fleetx.graph.repeated_blocks import repeated_blocks
from fleetx.plan import option
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.forward import Forward, replace_forward
from fleetx.plan.job import Job
from fleetx.plan.pace import Pace
from fleetx.plan.share import Share, kept_bytes
from fleetx.plan.step import Step
from fleetx.plan.strategy import Strategy
from fleetx.plan.subject import Subject
from fleetx.strategies.recompute.costs import kept_inputs, let_go
from fleetx.strategies.recompute.host_copies import Bundle, HostCopies
from fleetx.strategies.recompute.random_draws import Draws, States
from fleetx.strategies.recompute.replayed_buffers import Buffers, as_before, buffers
from fleetx.torch_internals import (
    ReplayIsDone,
    TreeSpec,
    tree_flatten,
    tree_leaves,
    tree_unflatten,
)

logger = logging.getLogger(__name__)
Contexts = Sequence[Callable[[], AbstractContextManager[Any]]]


_OFFLOAD = (
    "recompute_configs['enable_offload'] lets inputs wait on the host, to which neither compiled "
    "nor captured code sends them."
)


class Recompute(Strategy, name="recompute"):
    """Each named submodule keeps its inputs alone and runs forward a second time in backward."""

    @dataclass(frozen=True, kw_only=True)
    class Config(option.Config):
        """Which submodules are replayed, and where their inputs wait."""

        checkpoints: tuple[str, ...] = ()
        """Names of submodules as in ``named_modules()``; patterns such as "layers.*" too."""

        enable_offload: bool = False
        """Let the kept inputs wait on the host; those of the last submodule stay."""

        checkpoint_shape: Annotated[tuple[int, ...], option.AtLeast(1)] = ()
        """The shape that every named submodule must return, batch included; unchecked if empty."""

        enable_tuning: bool = False
        """Accepted for old files; there is nothing to tune, so True is refused."""

    contract = Contract(phase=Phase.MEMORY, touches=frozenset({"model", "settle"}), tolerance=1e-6)
    host: HostCopies | None = None
    """Where inputs wait when they are offloaded."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._segments: list[_Segment] = []
        self._warned = False
        if self.config.enable_offload:
            others = dict.fromkeys(("compile", "cuda_graph"), _OFFLOAD)
            self.contract = replace(type(self).contract, conflicts=others)
        if not self.config.checkpoints:
            raise PlanError(
                "strategy.recompute = True with an empty recompute_configs['checkpoints'] would "
                "recompute nothing; name submodules of the model, such as ['layer2', 'layer3']."
            )
        if self.config.enable_tuning:
            raise PlanError(
                "recompute_configs['enable_tuning'] = True cannot be in force: recompute has "
                "nothing to tune. Set it to False and name the submodules in 'checkpoints'."
            )

    @override
    def cuts(self) -> tuple[str, ...]:
        names: tuple[str, ...] = self.config.checkpoints
        return names

    @override
    def remarks(self) -> tuple[str, ...]:
        where = "on the host" if self.config.enable_offload else "on the device"
        names = ", ".join(self.config.checkpoints)
        return (
            f"Of {names} only the inputs are kept for backward, {where}, and the forward of each "
            "runs twice (recompute_configs).",
        )

    @classmethod
    @override
    def alternatives(cls, subject: Subject, ranks: int) -> Sequence[Mapping[str, Any]]:
        blocks = repeated_blocks(subject.shape)
        if not blocks:
            return ()
        plain = [{"checkpoints": blocks}, {"checkpoints": blocks[::2]}]
        offloaded = [{"checkpoints": blocks, "enable_offload": True}]
        return (*plain, *(offloaded if subject.device.type != "cpu" else []))

    @override
    def pace(self, pace: Pace, share: Share) -> Pace:
        forwards = share.run.micro_batches * share.run.batches
        carried = 2 * kept_bytes(replace(one, times=1) for one in share.waiting_on_host)
        to_host = pace.to_host + carried * forwards
        if (trace := share.trace) is None:
            return replace(pace, to_host=to_host)
        key = "let go", trace.form, share.parts, self.config.checkpoints, share.opened
        gone = share.subject.once(key, lambda: let_go(share, trace))
        segments = pace.segments + sum(part in share.parts for _, part in share.replayed)
        return replace(pace, to_host=to_host, replays=pace.replays + gone, segments=segments)

    @override
    def share(self, share: Share) -> Share:
        if share.trace is None:
            return share
        checkpoints, model = self.config.checkpoints, share.subject.shape

        def found() -> tuple[str, ...]:
            opened = {model.get_submodule(path) for path in share.opened}
            return tuple(segments(model, checkpoints, opened))

        paths = share.subject.once(("segments", checkpoints, share.opened), found)
        return kept_inputs(share, paths, on_host=self.config.enable_offload)

    @override
    def model(self, model: nn.Module, job: Job) -> nn.Module:
        if self.config.enable_offload:
            self.host = HostCopies(job.device)
        for name in segments(model, self.config.checkpoints, job.opened):
            module = model.get_submodule(name)
            if module in job.elsewhere:
                continue
            segment = _Segment(name, module, job, self.host)
            replace_forward(module, partial(segment.around, shape=self.config.checkpoint_shape))
            self._segments.append(segment)
        if keeping := generation_cache.switches(model):
            replace_forward(model, partial(_without_cache, keeping))
        return model

    @override
    def step(self, step: Step, job: Job) -> Step:
        def settle(loss: Tensor | None) -> None:
            step.settle(loss)
            idle = [segment.name for segment in self._segments if not segment.ran]
            if idle and not self._warned:
                logger.warning(
                    "recompute_configs['checkpoints'] names %s, but the model reached an update "
                    "without calling them, so nothing of them is recomputed",
                    idle,
                )
            self._warned = True

        return replace(step, settle=settle)


def _without_cache(keeping: Sequence[Any], forward: Forward) -> Forward:
    """Blocks that run twice would write their keys and values twice."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        if kwargs.get(generation_cache.SWITCH):
            raise ValueError(
                f"the model is called with {generation_cache.SWITCH!r} = True, and blocks that "
                "strategy.recompute runs twice would write their keys and values twice; leave it "
                "out: training does not read them."
            )
        with generation_cache.switched_off(keeping):
            return forward(*args, **kwargs)

    return run


def segments(
    model: nn.Module, wanted: Sequence[str], opened: Collection[nn.Module] = ()
) -> list[str]:
    """The paths of the submodules that ``wanted`` names, each once; the outermost ones alone.

    What lies inside a chosen submodule is replayed with it. An entry that names nothing else is
    refused, because it would have no effect; so is one of the ``opened`` submodules, whose own
    forward never runs.
    """
    found = {entry: _named(model, entry, opened) for entry in wanted}
    every = {path for paths in found.values() for path in paths}
    outermost = [path for path in every if not _around(path, every)]
    for entry, paths in found.items():
        if all(_around(path, every) for path in paths):
            raise PlanError(
                f"recompute_configs['checkpoints'] names {entry!r} and "
                f"{_around(paths[0], every)!r}, which contains it and replays it already; "
                "keep one of the two."
            )
    # In a program, somebody else may have cut what lies between two checkpoints.
    before = said(model).get("before", {})
    outermost = [*{other for path in outermost for other in (*before.get(path, ()), path)}]
    order = {name: at for at, (name, _) in enumerate(model.named_modules(remove_duplicate=False))}
    modules = {
        id(model.get_submodule(path)): path for path in sorted(outermost, key=order.__getitem__)
    }
    return list(modules.values())


def _around(path: str, others: set[str]) -> str | None:
    parts = path.split(".")
    outer = (".".join(parts[:length]) for length in range(1, len(parts)))
    return next((name for name in outer if name in others), None)


def _named(model: nn.Module, entry: str, opened: Collection[nn.Module]) -> list[str]:
    """The paths that one entry stands for: a name, or a pattern over all names."""
    known = _known(model)
    if entry in known:
        path = known[entry]
        module = model.get_submodule(path)
        if module in opened:
            raise PlanError(
                f"recompute_configs['checkpoints'] names {entry!r}, whose inside is dealt out to "
                "several stages, so that it never runs as a whole; name what is inside: "
                f"'{entry}.*'."
            )
        if not runs(module):
            kind = type(module).__name__
            raise PlanError(
                f"recompute_configs['checkpoints'] names {entry!r}, a {kind}, which has no forward "
                f"that could be replayed; name what is inside: '{entry}.*'."
            )
        return [path]
    found = [path for name, path in known.items() if fnmatchcase(name, entry)]
    modules = {path: model.get_submodule(path) for path in found}
    matched = [path for path in found if runs(modules[path]) and modules[path] not in opened]
    if not matched:
        message = f"recompute_configs['checkpoints'] names {entry!r}, and the model has no such "
        raise PlanError(option.unknown(f"{message}submodule", entry, known))
    return matched


def _known(model: nn.Module) -> dict[str, str]:
    """Every name a user may write -> path of the submodule; in a program, those of its cuts."""
    if cuts := said(model).get("segments"):
        return dict(cuts)  # layers lie inside of segments, and are replayed with them
    names = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
    return {name: name for name in names}


class _Segment:
    """One named submodule and how it runs."""

    def __init__(self, name: str, module: nn.Module, job: Job, host: HostCopies | None) -> None:
        self.name, self.ran = name, False
        self._module, self._job, self._host = module, job, host
        self._draws = Draws(job.device)

    def around(self, forward: Forward, shape: tuple[int, ...]) -> Forward:
        def run(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            self.ran = True
            if torch.compiler.is_compiling():
                # The compiler replays by itself, draws the same numbers and moves buffers once.
                output = checkpoint(forward, *args, use_reentrant=False, **kwargs)
                self._check(output, shape)
                return output
            self._refuse_draws()
            values, spec = _flat(args, kwargs)
            call = _Call(forward, spec, self._draws, buffers(self._module), self._job.contexts)
            call.first = args, kwargs
            kept = values if self._host is None else [self._host.keep(values)]
            output = checkpoint(call, *kept, use_reentrant=False, preserve_rng_state=False)
            self._check(output, shape)
            return output

        return run

    def _refuse_draws(self) -> None:
        if self._draws.on_device and recording(self._job.device):
            raise PlanError(
                f"recompute_configs['checkpoints'] names {self.name!r}, which draws random "
                "numbers: its replay inside of a CUDA graph would draw others. Name submodules "
                "without dropout, or set strategy.cuda_graph = False."
            )

    def _check(self, output: Any, shape: tuple[int, ...]) -> None:
        if not shape:
            return
        first = next((leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)), None)
        if first is not None and tuple(first.shape) != shape:
            raise ValueError(
                f"recompute_configs['checkpoint_shape'] is {list(shape)}, but {self.name!r} "
                f"returned {list(first.shape)}; set the shape that all checkpoints have, batch "
                "included, or leave it out: it is not needed."
            )


def _flat(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], TreeSpec | int]:
    """The arguments as one list, and how they are made of it: of tensors alone, how many."""
    if not kwargs and all(isinstance(value, Tensor) for value in args):
        return list(args), len(args)
    return tree_flatten((args, kwargs))


def _unflat(values: Sequence[Any], spec: TreeSpec | int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(spec, int):
        return tuple(values[:spec]), {}
    args, kwargs = tree_unflatten(values[: spec.num_leaves], spec)
    return args, kwargs


class _Call:
    """One call of a segment: the first time as usual, then as a replay of it."""

    first: tuple[tuple[Any, ...], dict[str, Any]] | None
    """The arguments until they are used: the user's own lists and dicts, not rebuilt ones."""

    def __init__(
        self,
        forward: Forward,
        spec: TreeSpec | int,
        draws: Draws,
        buffers: Buffers,
        contexts: Contexts,
    ) -> None:
        self._forward, self._spec, self._buffers, self._contexts = forward, spec, buffers, contexts
        self._draws = draws
        self._states: States | None = None

    def __call__(self, *values: Any) -> Any:
        if self.first is not None:
            (args, kwargs), self.first = self.first, None
            before = self._draws.before()
            output = self._forward(*args, **kwargs)
            self._states = self._draws.drawn(before)
            return output
        if values and isinstance(values[0], Bundle):
            values = tuple(values[0].take())
        args, kwargs = _unflat(values, self._spec)
        with ExitStack() as stack:
            for context in self._contexts:
                stack.enter_context(context())
            if self._states is not None:
                stack.enter_context(self._draws.again(self._states))
            stack.enter_context(as_before(self._buffers))
            stack.enter_context(_stopping())
            return self._forward(*args, **kwargs)


@contextmanager
def _stopping() -> Iterator[None]:
    """Let torch end a replay where it has all it needs, through libraries that wrap exceptions."""
    try:
        yield
    except Exception as error:
        within: BaseException | None = error
        while within is not None and not isinstance(within, ReplayIsDone):
            within = within.__cause__ or within.__context__
        if within is None or within is error:
            raise
        raise within from None
