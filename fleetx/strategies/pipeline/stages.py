"""The stages of a pipeline on this rank, run by the schedules of ``torch.distributed``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining

from fleetx.graph import generation_cache
from fleetx.graph.part import Part
from fleetx.roles import activity
from fleetx.roles.messages import Described, broadcast_json, broadcast_tree, describe, described
from fleetx.strategies.pipeline.joined_outputs import grows, joined
from fleetx.strategies.pipeline.parts import Code, run
from fleetx.strategies.pipeline.stage import PREFIX, Criterion, Stage
from fleetx.torch_internals import parameters_of, tree_leaves, tree_map

SHAPES_KEPT = 8
"""Shapes of batches whose runners are kept, because each has receive buffers of its own."""


class Stages:
    """This rank's stages, and what one batch needs to flow through all of them."""

    running: Part | None = None
    """The part that a call of the model runs now."""

    def __init__(
        self,
        model: nn.Module,
        parts: Mapping[bool, Sequence[Part]],
        *,
        group: dist.ProcessGroup,
        device: torch.device,
        schedule: str,
        shared: bool = False,
        translate: Callable[[Code], Code] = lambda code: code,
    ) -> None:
        self._model, self._parts, self._schedule = model, parts, schedule
        self._keeping = generation_cache.switches(model)
        self.splits_backward = schedule == "zero-bubble"
        self.group, self.device, self.shared = group, device, shared
        self._translate = translate
        self._codes: dict[int, tuple[Part, Code]] = {}
        """What runs for each part that was called; with the part, whose identity is the key."""
        self._runners: dict[Any, _Runner] = {}
        """By what they were made for, those that ran last at the end; alike on all ranks."""

    @property
    def count(self) -> int:
        """Stages on all ranks together."""
        return len(self._parts[True])

    @property
    def _in_force(self) -> Sequence[Part]:
        return self._parts[self._model.training]

    def owner(self, stage: int) -> int:
        """The rank of a stage."""
        return stage % dist.get_world_size(self.group)

    @property
    def _last(self) -> int:
        """The rank that has the outputs."""
        return self.owner(self.count - 1)

    def mine(self) -> list[int]:
        """The stages of this rank."""
        rank = dist.get_rank(self.group)
        return [stage for stage in range(self.count) if self.owner(stage) == rank]

    def run(self, *received: Any, **inputs: Any) -> Any:
        """The stage that is due, on the model as it is now."""
        assert self.running is not None
        return run(self.running, self._model, inputs, received, self._code(self.running))

    def _code(self, part: Part) -> Code:
        if id(part) not in self._codes:
            self._codes[id(part)] = part, self._translate(part.code)
        return self._codes[id(part)][1]

    def call(self, stage: int, received: Sequence[Any], inputs: Mapping[str, Any]) -> Any:
        """Call the model for one stage, so that everything around its forward acts."""
        part = self._in_force[stage]
        self.running = part
        try:
            return self._model(*received, **{name: inputs[name] for name in part.inputs})
        finally:
            self.running = None

    def parameters(self, stage: int) -> Iterator[nn.Parameter]:
        """The parameters of one stage as they are now."""
        part = self._in_force[stage]
        found: dict[nn.Parameter, None] = {}
        for path in sorted(part.modules):
            found |= dict.fromkeys(self._model.get_submodule(path).parameters())
        for path in sorted(part.attributes):
            owner, _, name = path.rpartition(".")
            parameter = parameters_of(self._model.get_submodule(owner)).get(name)
            if parameter is not None:
                found[parameter] = None
        yield from found

    def train(
        self,
        inputs: Mapping[str, Any],
        count: int,
        criterion: Criterion,
        before_backward: Callable[[bool], None],
    ) -> Tensor:
        """Forward and backward of one batch in ``count`` parts; the mean loss on every rank."""
        with generation_cache.switched_off(self._keeping):  # for replays in backward, too
            runner = self._runner(inputs, count, backward=True)
            losses = runner.step(inputs, criterion, before_backward)
        # Only the last stage knows the type of the loss, so one is agreed for all.
        mean = torch.zeros((), device=self.device, dtype=torch.float32)
        if losses:
            mean = torch.stack(losses).to(torch.float32).mean()
        return self._agreed(mean, runner.failure)

    def _agreed(self, number: Tensor, failure: Exception | None) -> Tensor:
        """The number of the last rank, zero on the others, on every rank; raises if one failed."""
        failed = number.new_tensor(failure is not None)
        both = torch.stack([number, failed])
        dist.all_reduce(both, group=self.group)
        if both[1]:
            self._raise(failure)
        return both[0]

    def _raise(self, failure: Exception | None) -> None:
        """Let every rank know what happened on those that failed."""
        told = [
            broadcast_json(_text(failure), source=rank, group=self.group, device=self.device)
            for rank in range(dist.get_world_size(self.group))
        ]
        if failure is not None:
            raise failure
        rank, text = next((rank, text) for rank, text in enumerate(told) if text is not None)
        raise RuntimeError(f"rank {rank} of the pipeline failed in its part of the batch: {text}")

    def evaluate(self, inputs: Mapping[str, Any], count: int) -> Any:
        """The outputs of one batch, on every rank.

        It runs in ``count`` parts if the outputs of those make up the outputs of the batch, and as
        a whole otherwise.
        """
        with generation_cache.switched_off(self._keeping):
            parts = count if count > 1 and self._divides(inputs, count) else 1
            outputs = self._outputs(self._runner(inputs, parts, backward=False), inputs)
        found = joined(outputs) if outputs else None
        return broadcast_tree(found, source=self._last, group=self.group, device=self.device)

    def _divides(self, inputs: Mapping[str, Any], count: int) -> bool:
        """Whether the outputs of micro-batches, one after the other, are those of the batch.

        Two numbers of samples show it, of which the batch has enough; each shape is tried once.
        """
        runner = self._runner(inputs, count, backward=False)
        if runner.divides is None:
            size = _samples(inputs) // count
            less, more = (self._tried_outputs(inputs, samples) for samples in (size, size + 1))
            here = bool(less and more) and grows(less[0], size, more[0], size + 1)
            fact = broadcast_json(here, source=self._last, group=self.group, device=self.device)
            runner.divides = bool(fact)
        return runner.divides

    def _tried_outputs(self, inputs: Mapping[str, Any], samples: int) -> list[Any]:
        """What the first samples give, without traces of them in the model."""
        share = tree_map(
            lambda leaf: leaf[:samples] if isinstance(leaf, Tensor) else leaf, dict(inputs)
        )
        with as_before(self._model, self.device):
            return self._outputs(self._made(share, 1, backward=False), share)

    def _outputs(self, runner: "_Runner", inputs: Mapping[str, Any]) -> list[Any]:
        """The outputs of each micro-batch where the last stage is, else none."""
        outputs: dict[int, Any] = {}

        def keep(found: Any, number: int) -> tuple[Tensor, Tensor]:
            outputs[number] = found
            nothing = torch.zeros((), device=self.device)
            return nothing, nothing

        runner.step(inputs, keep, lambda last: None)
        self._agreed(torch.zeros((), device=self.device), runner.failure)
        return [outputs[number] for number in sorted(outputs)]

    def _runner(self, inputs: Mapping[str, Any], count: int, backward: bool) -> "_Runner":
        leaves = [leaf for leaf in tree_leaves(dict(inputs)) if isinstance(leaf, Tensor)]
        shapes = tuple((tuple(leaf.shape), leaf.dtype) for leaf in leaves)
        activity.note("the shapes of their batches", shapes)
        # A model that brings its parts has others for other results.
        key = (shapes, count, backward, self._model.training, id(self._in_force))
        runner = self._runners.pop(key, None) or self._made(inputs, count, backward)
        self._runners[key] = runner
        if len(self._runners) > SHAPES_KEPT:
            del self._runners[next(iter(self._runners))]
        return runner

    def _made(self, inputs: Mapping[str, Any], count: int, backward: bool) -> "_Runner":
        if backward:
            _check_count(self._schedule, count, self.count)
        share = tree_map(
            lambda leaf: leaf.chunk(count)[0] if isinstance(leaf, Tensor) else leaf, dict(inputs)
        )
        self._in_force[0].check(share)
        wires = self._wires(share, backward)
        stages = [Stage(self, stage, wires[stage], wires[stage + 1]) for stage in self.mine()]
        schedule = _schedule(self._schedule, stages, count, backward)
        return _Runner(stages, schedule, count, self._in_force)

    def _wires(self, share: Mapping[str, Any], backward: bool) -> list[list[Described]]:
        """What travels into each stage, found by running each once on numbers without meaning."""
        wires: list[list[Described]] = [[]]
        for stage in range(self.count - 1):
            wires.append(self._wire(stage, wires[-1], share, backward))
        return [*wires, []]

    def _wire(
        self, stage: int, wire: list[Described], share: Mapping[str, Any], backward: bool
    ) -> list[Described]:
        """What a stage sends, on every rank; where it cannot run, none waits for it."""
        failure, fact = None, dict[str, Any]()
        try:
            if stage in self.mine():
                fact = {"sent": self._tried(stage, wire, share, backward)}
        except Exception as error:  # whatever it is, the other stages must hear of it
            failure, fact = error, {"trouble": f"{type(error).__name__}: {error}"}
        told = broadcast_json(fact, source=self.owner(stage), group=self.group, device=self.device)
        if failure is not None:
            raise failure
        if "trouble" in told:
            raise RuntimeError(
                f"stage {stage} of the pipeline, on another worker, cannot run a batch like this "
                f"one, so all stages stop: {told['trouble']}"
            )
        sent: list[Described] = told["sent"]
        return sent

    def _tried(
        self, stage: int, wire: list[Described], share: Mapping[str, Any], backward: bool
    ) -> list[Described]:
        received = [described(known, self.device) for known in wire]
        with as_before(self._model, self.device), torch.set_grad_enabled(backward):
            sent = self.call(stage, received, share)
        part = self._in_force[stage]
        for name, value in zip(part.sends, sent, strict=True):
            if not isinstance(value, Tensor):
                raise ValueError(
                    f"stage {stage} would send {name!r}, a {type(value).__name__}, to the next "
                    "one, and only tensors travel; cut elsewhere, or make a tensor of it."
                )
        return [describe(value) for value in sent]


class _Runner:
    """A schedule for batches of one shape."""

    divides: bool | None = None
    """For evaluation: whether outputs of micro-batches make up those of a batch; None: untried."""

    def __init__(
        self, stages: list[Stage], schedule: Any, count: int, parts: Sequence[Part]
    ) -> None:
        self._stages, self._schedule, self._count = stages, schedule, count
        # Found again by their identity, which no others may have meanwhile.
        self._parts = parts

    def step(
        self,
        inputs: Mapping[str, Any],
        criterion: Criterion,
        before_backward: Callable[[bool], None],
    ) -> list[Tensor]:
        """Run one batch; the losses of its micro-batches where the last stage is, else none."""
        for stage in self._stages:
            stage.before_backward, stage.shell.criterion = before_backward, criterion
            stage.shell.losses.clear()
            stage.shell.failure = None
        numbers = torch.arange(self._count)
        given = {f"{PREFIX}{name}": value for name, value in inputs.items()}
        try:
            self._schedule.step(target=numbers, micro_batch=numbers, return_outputs=False, **given)
        except Exception:
            if self.failure is None:
                raise
            raise self.failure from None  # without what torch puts around it
        return [loss for stage in self._stages for loss in stage.shell.losses]

    @property
    def failure(self) -> Exception | None:
        """What went wrong here in the last batch."""
        return next((s.shell.failure for s in self._stages if s.shell.failure is not None), None)


def _text(failure: Exception | None) -> str | None:
    return None if failure is None else f"{type(failure).__name__}: {failure}"


def _schedule(mode: str, stages: list[Stage], count: int, backward: bool) -> Any:
    # The loss is computed inside the last stage, which may return anything.
    loss = (lambda scaled, number: scaled) if backward else None
    if len(stages) == 1 and mode != "zero-bubble":
        single = pipelining.Schedule1F1B if mode == "1F1B" else pipelining.ScheduleGPipe
        kind = single if backward else pipelining.ScheduleGPipe
        return kind(stages[0], count, loss_fn=loss, scale_grads=False)
    many = {
        "interleaved": pipelining.ScheduleInterleaved1F1B,
        "zero-bubble": pipelining.ScheduleInterleavedZeroBubble,
    }[mode if backward else "interleaved"]
    return many(stages, count, loss_fn=loss, scale_grads=False)  # type: ignore[arg-type]


def _check_count(mode: str, count: int, stages: int) -> None:
    if mode == "1F1B" and count < stages:
        raise ValueError(
            f"the schedule 1F1B keeps {stages} stages busy with at least {stages} micro-batches, "
            f"and a batch has {count}; raise pipeline_configs['accumulate_steps'], or set "
            "'schedule_mode' to 'F-then-B'."
        )


def _samples(inputs: Mapping[str, Any]) -> int:
    leaves = (leaf for leaf in tree_leaves(dict(inputs)) if isinstance(leaf, Tensor))
    return int(next(leaves).shape[0])


@contextmanager
def as_before(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Leave running statistics and the random state as they are now."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    cards = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cards):
        yield
    with torch.no_grad():
        for buffer, value in buffers:
            buffer.copy_(value)
