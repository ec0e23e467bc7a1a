"""What a rank of a pipeline holds and sends, found without the other ranks."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from fleetx.graph import generation_cache
from fleetx.graph.part import Part
from fleetx.plan.error import PlanError
from fleetx.plan.exchange import Exchange, Memory, ring_bytes
from fleetx.plan.pieces import Pieces
from fleetx.plan.run import Run
from fleetx.plan.share import Share, Waiting, kept_bytes
from fleetx.plan.subject import Subject
from fleetx.plan.trace import Sent, Tracing
from fleetx.strategies.pipeline import cutting, parts
from fleetx.strategies.pipeline.accepted_inputs import Accepted
from fleetx.strategies.pipeline.in_flight import Counts, most_in_flight
from fleetx.strategies.pipeline.micro_batches import bound
from fleetx.strategies.pipeline.tied_weights import Homes, parts_of_ranks

LOSS_BYTES = 8
"""The loss, and whether a rank failed."""


class Costs:
    """A model in the parts that a pipeline of so many ranks runs.

    Args:
        subject: the model and its batch.
        ranks: how many the pipeline has.
        config: the options of the strategy.
    """

    def __init__(self, subject: Subject, ranks: int, config: Any) -> None:
        self._subject, self._ranks, self._config = subject, ranks, config
        self._running: Part | None = None
        where = ranks, config.chunks, config.split  # the same with other micro-batches
        self._homes: dict[int, Homes] = subject.once(("homes", where), dict)
        self._held: dict[int, tuple[set[str], set[str]]] = subject.once(("held", where), dict)
        self._cut: cutting.Cut | None = None
        self._trouble = ""
        key = "cut of the pipeline", ranks * config.chunks, config.split
        try:
            if key not in subject.kept:  # plans with other micro-batches cut in the same places
                subject.kept[key] = self._made()
            self._cut = subject.kept[key]
        except PlanError as error:
            if subject.sample is not None:
                raise
            self._trouble = str(error)

    def _made(self) -> cutting.Cut:
        model, wanted = self._subject.shape, self._ranks * self._config.chunks
        split, sample = self._config.split, self._subject.sample
        named = None if sample is None else bound(model, sample)
        return cutting.brought(model, wanted, split) or cutting.cut(
            model,
            wanted,
            split=split,
            accepted=Accepted(model, named),
            device=self._subject.traced_on,
            agreed=lambda costs: costs,
            kept=self._subject.kept.setdefault("followed for a pipeline", {}),
        )

    def running(self, run: Run) -> Run:
        """Let the parts run one after the other, each through the model's own call."""
        key = (*run.key, "pipeline", self._ranks * self._config.chunks, self._config.split)
        return replace(run, forward=self._forward, changes=(*run.changes, self._one), key=key)

    def _one(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*received: Any, **inputs: Any) -> Any:
            assert self._running is not None
            return parts.run(self._running, self._subject.traced_model, inputs, received)

        return run

    def _forward(self, model: nn.Module, inputs: Any, tracing: Tracing) -> Any:
        assert self._cut is not None
        given, received = bound(model, inputs), list[Any]()
        found = self._cut.parts[model.training]
        for number, part in enumerate(found):
            self._running = part
            with generation_cache.switched_off(generation_cache.switches(model)):
                sent = model(*received, **{name: given[name] for name in part.inputs})
            if number == len(found) - 1:
                return sent
            received = tracing.next_part(sent)
        raise AssertionError("a model has at least one part")

    def share(self, share: Share) -> Share:
        """What of the model lies on a rank, and what its stages keep."""
        if self._cut is None:
            return share.without_knowledge(
                "where the pipeline cuts the model, so that parameters, gradients and state are "
                f"those of the whole model, because {self._trouble}"
            )
        homes = self._home(share.at("pp"))
        here, trains = self._here(share.at("pp"))

        def kept(pieces: Pieces) -> Pieces:
            return {
                name: replace(piece, trained=False)
                if piece.trained and name not in trains
                else piece
                for name, piece in pieces.items()
                if name in here
            }

        share = replace(
            share,
            parameters=kept(share.parameters),
            held=kept(share.held),
            gradients={n: p for n, p in kept(share.gradients).items() if p.trained},
            buffers={name: piece for name, piece in share.buffers.items() if homes.keeps(name)},
            opened=share.opened | self._cut.opened,
        )
        return self._with_activations(share) if share.trace is not None else share

    def _home(self, rank: int) -> Homes:
        assert self._cut is not None
        if rank not in self._homes:
            held = parts_of_ranks(self._cut, self._ranks)
            self._homes[rank] = Homes(self._subject.shape, held, rank)
        return self._homes[rank]

    def _here(self, rank: int) -> tuple[set[str], set[str]]:
        """Parameters that a rank holds, and those that are trained on some rank."""
        if rank not in self._held:
            homes, shape = self._home(rank), self._subject.shape
            here = {first for name, first in self._firsts().items() if homes.keeps(name)}
            trains = {name for name, p in shape.named_parameters() if p.requires_grad}
            self._held[rank] = here, trains
        return self._held[rank]

    def _firsts(self) -> dict[str, str]:
        """Every name of a parameter -> its first one."""

        def found() -> dict[str, str]:
            first: dict[nn.Parameter, str] = {}
            named = self._subject.shape.named_parameters(remove_duplicate=False)
            return {name: first.setdefault(parameter, name) for name, parameter in named}

        return self._subject.once("first names", found)

    def _stages(self, share: Share) -> range:
        return range(share.at("pp"), self._ranks * self._config.chunks, self._ranks)

    def _with_activations(self, share: Share) -> Share:
        stages, trace = self._stages(share), share.trace
        assert trace is not None
        moments = most_in_flight(
            self._config.schedule_mode,
            rank=share.at("pp"),
            ranks=self._ranks,
            chunks=self._config.chunks,
            count=share.run.micro_batches,
            splits=self._config.splits,
        )

        def waiting(counts: Counts) -> tuple[Waiting, ...]:
            times = dict(zip(stages, counts, strict=True))
            return tuple(
                one
                if trace.values[one.value].given or (count := times[one.part]) == one.times
                else Waiting(one.value, one.path, one.part, one.size, count)
                for one in share.waiting
                if one.part in times
            )

        most = max((waiting(counts) for counts in moments), key=kept_bytes)
        work = share.work
        if work is not None:
            work = work.where(np.isin(work.part, stages))
        share = replace(share, waiting=most, parts=tuple(stages), work=work)
        return share.with_memory(self._buffers(share, moments[0]))

    def _buffers(self, share: Share, counts: Counts) -> Memory:
        """What torch receives into, once for each micro-batch; part of it waits for backwards."""
        size = 0
        for stage, flying in zip(self._stages(share), counts, strict=True):
            received = sum(one.size for one in self._sent(share, stage - 1))
            answers = sum(one.size for one in self._sent(share, stage) if one.answered)
            count = share.run.micro_batches
            size += max(0, count - flying) * received + count * answers
        return Memory(
            what="buffers for what stages receive",
            kept_bytes=size,
            decided_by=f"{share.run.micro_batches} micro-batches",
        )

    def _sent(self, share: Share, stage: int) -> Sequence[Sent]:
        """What a stage sends to the next; the last sends nothing, and none is before the first."""
        assert share.trace is not None
        return share.trace.sent[stage] if 0 <= stage < len(share.trace.sent) else ()

    def exchanges(self, share: Share, decided: str) -> tuple[Exchange, ...]:
        """What a rank sends to the stages beside its own, and to those that share its weights."""
        stages = self._stages(share)
        ahead = sum(one.size for stage in stages for one in self._sent(share, stage))
        wanted = [one for s in stages for one in self._sent(share, s - 1) if one.answered]
        common: dict[str, Any] = {"decided_by": decided, "axis": "pp"}
        times = share.run.micro_batches * share.run.batches
        found = [
            ("activations to the next stage", ahead),
            ("gradients of activations to the stage before", sum(one.size for one in wanted)),
        ]
        sends = tuple(
            Exchange(
                collective="send",
                what=what,
                when="for every micro-batch",
                beside=True,
                sent_bytes=size,
                moved_bytes=size,
                times=times,
                **common,
            )
            for what, size in found
            if size
        )
        loss = Exchange(
            collective="all-reduce",
            what="the loss",
            when="after each batch",
            sent_bytes=ring_bytes(LOSS_BYTES, self._ranks),
            moved_bytes=LOSS_BYTES,
            times=share.run.batches,
            **common,
        )
        return (*sends, loss, *self._tied(share, common))

    def _tied(self, share: Share, common: dict[str, Any]) -> tuple[Exchange, ...]:
        firsts, sent, moved = self._firsts(), 0, 0
        for tie in self._home(share.at("pp")).ties:
            piece = share.gradients.get(firsts[tie.name])
            if piece is not None:
                sent += ring_bytes(piece.size, len(tie.ranks))
                moved += piece.size
        if not moved:
            return ()
        tied = Exchange(
            collective="all-reduce",
            what="gradients of tied parameters",
            when="at each update",
            sent_bytes=sent,
            moved_bytes=moved,
            **common,
        )
        return (tied,)
