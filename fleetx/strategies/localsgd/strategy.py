"""What LocalSGD and its adaptive form have in common: replicas that train alone and meet."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn
from typing_extensions import override

from fleetx.comm.replicas import Drift, start_equal
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.exchange import Exchange, ring_bytes
from fleetx.plan.job import Job
from fleetx.plan.pieces import size_of
from fleetx.plan.share import Share
from fleetx.plan.strategy import Strategy
from fleetx.strategies.localsgd.sync_schedule import SyncSchedule


class LocalStrategy(Strategy, name=None):
    """Every worker trains alone, and now and then the parameters are averaged."""

    contract = Contract(
        phase=Phase.CARRIER,
        touches=frozenset({"settle"}),
        provides=frozenset({"carrier"}),
        partners=("dp",),
    )
    drifts = True
    beside: ClassVar[int] = 0
    """Bytes that workers average besides."""
    config: Any
    """Has ``begin_step``: up to that update workers meet after each one."""

    _drift: Drift

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._schedule = SyncSchedule(self.config.begin_step)

    @override
    def model(self, model: nn.Module, job: Job) -> nn.Module:
        start_equal(job.place(model), job.mesh["dp"].get_group())
        return model

    @override
    def exchanges(self, known: tuple[Exchange, ...], share: Share) -> tuple[Exchange, ...]:
        if (ranks := share.mesh["dp"]) == 1:
            return known
        what, when, decided_by = self.told()
        floats = {n: b for n, b in share.buffers.items() if b.dtype.is_floating_point}
        size = size_of(share.held, trained=True) + size_of(floats) + self.beside
        met = Exchange(
            collective="all-reduce",
            what=what,
            when=when,
            sent_bytes=ring_bytes(size, ranks),
            moved_bytes=size,
            times=self.often(),
            decided_by=decided_by,
            axis="dp",
        )
        return (*known, met)

    @abstractmethod
    def often(self) -> float | None:
        """How often workers meet for each update, after the beginning; None if that changes."""

    @abstractmethod
    def told(self) -> tuple[str, str, str]:
        """What workers exchange, when, and which option says so."""

    @override
    def in_step(self) -> bool:
        return self._schedule.just_met

    @override
    def state_dict(self) -> dict[str, Any]:
        return self._schedule.state_dict()

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._schedule.load_state_dict(state)
        self._drift.note_all()
