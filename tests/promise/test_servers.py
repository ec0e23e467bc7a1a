"""Every option of a job with servers is in force, which is seen, or is refused in a sentence."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
import torch
from torch import nn
from typing_extensions import override

import fleetx as fleet
from fleetx import roles
from fleetx.ps.worker.carrier_async import AsyncCarrier
from fleetx.ps.worker.client import Client
from tests.promise.answers import AUTO, SERVERS, Answer, Changes, Refused
from tests.promise.options import Option, every
from tests.ps.team import TOKEN, team

OPTIONS = every()
T = TypeVar("T")
STEPS = 12


@dataclass
class Seen:
    """What a worker and its servers saw of a few batches."""

    weights: list[float] = field(default_factory=list)
    senders: set[str] = field(default_factory=set)
    """The threads that push."""
    pushes: int = 0
    reads: int = 0
    ahead: int = 0
    """The most pushes of its own that were under way when the worker began a batch."""
    shares: list[int] = field(default_factory=list)
    """Numbers of dense parameters on each server."""


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], Seen]:
    """Trains with two servers of its own, as the only worker."""
    monkeypatch.setenv("FLEETX_PS_TOKEN", TOKEN.decode())

    def run(settings: dict[str, Any]) -> Seen:
        with team(2) as here, pytest.MonkeyPatch.context() as patch:
            try:
                return trained(here.endpoints, settings, patch)
            finally:
                if roles.started():
                    fleet.stop_worker()
                    roles.stop()

    return run


def trained(endpoints: list[str], settings: dict[str, Any], patch: pytest.MonkeyPatch) -> Seen:
    strategy, seen = fleet.DistributedStrategy(), Seen()
    for name, value in settings.items():
        setattr(strategy, name, value)
    maker = fleet.UserDefinedRoleMaker(
        current_id=0, role=fleet.Role.WORKER, worker_num=1, server_endpoints=endpoints
    )
    fleet.init(maker, strategy=strategy)
    fleet.init_worker()
    torch.manual_seed(0)
    model = fleet.distributed_model(
        nn.Sequential(nn.Linear(12, 2048), nn.Tanh(), nn.Linear(2048, 1))
    )
    gate = threading.Event()
    _watch(seen, gate, patch)
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    inputs = torch.randn(STEPS, 8, 12, generator=torch.Generator().manual_seed(3))
    for x in inputs:
        optimizer.minimize(model(x).square().mean())
    seen.shares = [each["tables"]["dense-0"]["numbers"] for each in fleet.server_report()]
    gate.set()
    fleet.stop_worker()
    seen.weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    return seen


def _watch(seen: Seen, gate: threading.Event, patch: pytest.MonkeyPatch) -> None:
    """Count what travels; a sender sends only when the worker cannot go on without it."""
    write, read = Client.writing, Client.reading
    begin, init = AsyncCarrier.begin, AsyncCarrier.__init__

    def pushed(self: Client, *args: Any, **kwargs: Any) -> Any:
        name = threading.current_thread().name
        if name == "sender":
            assert gate.wait(100)
        seen.senders.add(name)
        seen.pushes += 1
        return write(self, *args, **kwargs)

    def fetched(self: Client, *args: Any, **kwargs: Any) -> Any:
        seen.reads += 1
        return read(self, *args, **kwargs)

    def begun(self: AsyncCarrier) -> None:
        begin(self)
        seen.ahead = max(seen.ahead, self.undelivered())

    def made(self: AsyncCarrier, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self._arrived = _Opening(gate)
        self._waiting = _Bounded(gate, self.options.queue)

    patch.setattr(Client, "writing", pushed)
    patch.setattr(Client, "reading", fetched)
    patch.setattr(AsyncCarrier, "begin", begun)
    patch.setattr(AsyncCarrier, "__init__", made)


class _Opening(threading.Condition):
    """Lets the sender go on when the worker begins to wait for it."""

    def __init__(self, gate: threading.Event) -> None:
        super().__init__()
        self._gate = gate

    @override
    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        if not predicate():
            self._gate.set()
        return super().wait_for(predicate, timeout)


class _Bounded(queue.Queue[Any]):
    """Lets the sender go on when nothing more can wait."""

    def __init__(self, gate: threading.Event, size: int) -> None:
        super().__init__(size)
        self._gate = gate

    @override
    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if self.full() or item is None:
            self._gate.set()
        super().put(item, block, timeout)


def settings(option: Option, answer: Answer, *, on: bool) -> dict[str, Any]:
    configs = dict(answer.company.get("a_sync_configs", {}))
    if on and option.block:
        configs[option.key] = option.other() if answer.value is AUTO else answer.value
    found: dict[str, Any] = {"a_sync": bool(option.block) or on}
    return found | ({"a_sync_configs": configs} if configs else {})


CHANGING = [name for name, answer in SERVERS.items() if isinstance(answer, Changes)]


@pytest.mark.parametrize("name", CHANGING)
def test_it_does_something(name: str, job: Callable[[dict[str, Any]], Seen]) -> None:
    option, answer = OPTIONS[name], SERVERS[name]
    assert isinstance(answer, Changes)
    on, off = (job(settings(option, answer, on=value)) for value in (True, False))
    assert getattr(on, answer.what) != getattr(off, answer.what)


@pytest.mark.parametrize("name", [n for n in SERVERS if n not in CHANGING])
def test_it_is_refused(name: str) -> None:
    option, answer = OPTIONS[name], SERVERS[name]
    assert isinstance(answer, Refused)
    strategy = fleet.DistributedStrategy()
    for attribute, value in settings(option, answer, on=True).items():
        setattr(strategy, attribute, value)
    strategy.mode = "ps"
    with pytest.raises(fleet.PlanError) as caught:
        strategy.explain()
    assert answer.words in str(caught.value)
    assert option.key in str(caught.value)


@pytest.mark.parametrize("name", sorted(SERVERS))
def test_a_job_without_servers_refuses_it(name: str) -> None:
    option, answer = OPTIONS[name], SERVERS[name]
    assert isinstance(answer, Answer)
    strategy = fleet.DistributedStrategy()
    for attribute, value in settings(option, answer, on=True).items():
        setattr(strategy, attribute, value)
    with pytest.raises(fleet.PlanError, match="speaks of parameter servers, and this job has none"):
        strategy.explain(workers=2)
