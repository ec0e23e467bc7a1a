"""Servers in threads of this process, and workers that talk to them over real sockets."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.server.server import Server
from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.wire.channel import Access
from fleetx.ps.wire.handshake import Claim
from fleetx.ps.worker.carrier import Carrier
from fleetx.ps.worker.carrier_geo import GeoCarrier, local_optimizer
from fleetx.ps.worker.carrier_options import CarrierOptions
from fleetx.ps.worker.client import Client
from fleetx.ps.worker.remote_optimizer import RemoteOptimizer
from fleetx.ps.worker.sparse_module import SparseModule
from fleetx.ps.worker.table_handle import TableHandle
from fleetx.ps.worker.worker import Worker

TOKEN = b"a token of this test"


@dataclass
class Team:
    servers: list[Server]
    workers: int
    opened: list[Any] = field(default_factory=list)
    begun: list[Worker] = field(default_factory=list)

    @property
    def endpoints(self) -> list[str]:
        return [f"127.0.0.1:{server.server_address[1]}" for server in self.servers]

    @property
    def handlers(self) -> list[RequestHandler]:
        return [server.handler for server in self.servers]

    def access(self, worker: int = 0, patience: float = 60.0) -> Access:
        return Access(TOKEN, Claim(worker, 0), patience=patience)

    def client(self, worker: int = 0) -> Client:
        client = Client(self.endpoints, self.access(worker))
        self.opened.append(client)
        return client

    def worker(self, index: int = 0) -> Worker:
        self.begun.append(Worker(self.endpoints, self.access(index), self.workers))
        return self.begun[-1]


@contextmanager
def team(
    servers: int = 1,
    workers: int = 1,
    folder: Path | None = None,
    grace: float = 100.0,
    **options: Any,
) -> Iterator[Team]:
    """Nobody is taken for dead on a busy machine, unless a test is about that."""
    made = []
    for index in range(servers):
        place = folder / f"server-{index}" if folder else None
        membership = Membership(workers, silence=100.0, grace=grace)
        handler = RequestHandler(
            membership, server=index, servers=servers, folder=place, patience=60, **options
        )
        made.append(Server(("127.0.0.1", 0), handler, TOKEN))
    threads = [threading.Thread(target=server.run, daemon=True) for server in made]
    for thread in threads:
        thread.start()
    here = Team(made, workers)
    try:
        yield here
    finally:
        for worker in here.begun:  # those that a test left would call for its servers for ever
            worker.heartbeat.stop()
        for client in here.opened:
            client.close()
        for server in made:
            server.handler.membership.ended.set()
        for thread in threads:
            thread.join(10)
        for server in made:
            server.server_close()


def table(client: Client, spec: SparseSpec) -> TableHandle:
    return client.create("sparse", [spec.to_plain()] * client.servers, spec.dim)


def rows(client: Client, handle: TableHandle, ids: Any, *, train: bool = False) -> Any:
    """The rows of ids, in the order in which they were given."""
    batch = IdBatch.of(np.asarray(ids, np.int64), client.servers)
    return client.pull(handle, batch, train=train)[batch.place]


def push(client: Client, handle: TableHandle, ids: Any, gradients: Any, **options: Any) -> None:
    """Gradients for different ids, in the order in which they were given."""
    batch = IdBatch.of(np.asarray(ids, np.int64), client.servers)
    sorted_ = np.empty((len(batch.ids), handle.width), np.float32)
    sorted_[batch.place] = gradients
    client.push(handle, batch, sorted_, **options)


def carried(
    model: nn.Module,
    worker: Worker,
    kind: type[Carrier] = Carrier,
    *,
    optimizer: type[Optimizer] = torch.optim.SGD,
    carrier_options: CarrierOptions | None = None,
    join: bool = True,
    **options: Any,
) -> Carrier:
    """What the plan of a parameter-server job makes of a model, without a plan.

    With ``join=False`` the tables are made when the first batch asks for them.
    """
    modules = [module for module in model.modules() if isinstance(module, SparseModule)]
    names: dict[Any, str] = {p: name for name, p in model.named_parameters()}
    groups = optimizer(model.parameters(), **options).param_groups
    remote: Any = RemoteOptimizer
    if kind is GeoCarrier:
        remote = local_optimizer(optimizer, {module.anchor for module in modules})
    made = remote(groups)
    carrier = kind(made, names, modules, optimizer.__name__, carrier_options or CarrierOptions())
    if join:
        carrier._worker = worker
        carrier.open(worker)
    made.deliver = carrier.deliver
    for module in modules:
        module.row_source = carrier
    return carrier


def train(model: nn.Module, carrier: Carrier, inputs: Any, targets: Any) -> float:
    """One batch, as the engine would run it."""
    carrier.begin()
    loss = ((model(inputs).squeeze(-1) - targets) ** 2).mean()
    loss.backward()
    carrier.optimizer.step()
    carrier.clear_gradients()
    carrier.optimizer.zero_grad()
    return loss.item()


def together(*functions: Any) -> list[Any]:
    """Run functions in threads at the same time; the first failure is raised."""
    found: list[Any] = [None] * len(functions)
    failures: list[BaseException] = []

    def run(index: int) -> None:
        try:
            found[index] = functions[index]()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive(), "a worker hangs"
    if failures:
        raise failures[0]
    return found
