"""A worker's connections to its servers, one for each purpose, and its sign of life."""

import itertools
import logging
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.row_source import TableOptions
from fleetx.ps.tables.rules import SGD, Rule
from fleetx.ps.tables.sparse_spec import Pace, SparseSpec
from fleetx.ps.wire.arrays import Ids, same_ids
from fleetx.ps.wire.channel import Access
from fleetx.ps.wire.messages import REST
from fleetx.ps.wire.short_floats import SHORT_DTYPES
from fleetx.ps.worker.client import Client
from fleetx.ps.worker.heartbeat import Heartbeat
from fleetx.ps.worker.table_handle import TableHandle

logger = logging.getLogger(__name__)

T = TypeVar("T")

_sessions = itertools.count()


class Worker:
    """Connected from ``init_worker`` to ``stop_worker``."""

    def __init__(self, endpoints: Sequence[str], access: Access, workers: int) -> None:
        self.endpoints, self.access, self.workers = list(endpoints), access, workers
        self.session = next(_sessions)
        """Of those that this process has had, from 0."""
        self._clients = weakref.WeakSet[Client]()
        self.client = self.connection()
        self.ahead = self.connection()
        """For pulls that run beside the others, and may wait for an update."""
        self._fetching = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self.step = 0
        """Updates of all its models that this worker has taken part in."""
        self.carriers: list[Any] = []
        """What moves gradients here, one for each model, in the order of their first batches."""
        self.dense_tables = 0
        self.pace = Pace()
        """How tables of this job turn pushes into updates."""
        self._handles: dict[str, TableHandle] = {}
        self._last: tuple[Ids, IdBatch] | tuple[None, None] = None, None
        self._options: dict[str, TableOptions] = {}
        self.rules: dict[str, Rule] = {}
        """Table -> how servers move its rows."""
        self._agreements, self._pauses = 0, 0
        self.client.call_all({"method": "heartbeat"})  # fails early when a server is missing
        self.heartbeat = Heartbeat(endpoints, access, self._hang_up)

    @property
    def index(self) -> int:
        """This worker's number."""
        return self.access.claim.worker

    @property
    def resumes(self) -> bool:
        """Whether the servers began with a save, so that models shall, too."""
        return bool(self.client.call({"method": "began"})["saved"])

    @property
    def resumed_from(self) -> str:
        """The save with all of which the servers began; "" if they did not."""
        return str(self.client.call({"method": "began"}).get("folder", ""))

    def saved_sizes(self, folder: str | None = None) -> dict[str, dict[str, int]]:
        """Group of dense parameters -> how many numbers each has in a save.

        If no folder is said, the save with which the servers began, if there is one.
        """
        return dict(self.client.call({"method": "saved_sizes", "folder": folder})["sizes"])

    def connection(self) -> Client:
        """Connections of their own, for what must not wait for others."""
        made = Client(self.endpoints, self.access)
        self._clients.add(made)
        return made

    def _hang_up(self, server: int) -> None:
        logger.warning(
            "server %s gives no sign of life; trying to reach it anew", self.endpoints[server]
        )
        for client in [*self._clients]:
            client.hang_up(server)

    def table(self, options: TableOptions, rule: Rule | None = None) -> TableHandle:
        """The sparse table of these options, made at the first use."""
        known = self._options.setdefault(options.name, options)
        if known is not options and known != options:
            raise ValueError(
                f"two layers over table {options.name!r} differ: {known} and {options}; give them "
                "the same options, or names of their own"
            )
        if options.name not in self._handles:
            spec = SparseSpec(
                name=options.name,
                dim=options.dim,
                rule=self.rules.setdefault(options.name, options.rule or rule or SGD()),
                initializer=options.initializer,
                entry=options.entry,
                seed=options.seed,
                pace=self.pace,
                storage=options.storage,
                memory=options.memory,
                dtype=options.dtype,
            )
            plain_specs = [spec.to_plain()] * self.client.servers
            short = SHORT_DTYPES[options.wire] if options.wire else 0
            made = self.client.create("sparse", plain_specs, options.dim, short=short)
            self._handles[options.name] = made
        return self._handles[options.name]

    def sort_ids(self, ids: Ids) -> IdBatch:
        """The batch of these ids; tables that are asked for the same ones share it."""
        last, batch = self._last
        if last is None or not same_ids(last, ids):
            batch = IdBatch.of(ids, self.client.servers)
            # A copy, for the caller may fill its array anew. Set at once: threads read it.
            self._last = ids.copy(), batch
        assert batch is not None
        return batch

    def fetch_ahead(self, fetch: Callable[..., T], *args: Any) -> Future[T]:
        """Fetch rows for a later batch, in the order in which they were asked for.

        All tables share one thread: a batch needs the rows of all of them before it can be trained,
        and those of the batch after it wait for that.
        """
        return self._fetching.submit(fetch, *args)

    def agree(self, value: float, *, topic: str = "", number: int | None = None) -> float:
        """The largest value that any worker brings; all must ask."""
        strict = self.pace.workers > 0
        if number is None:
            number = self._agreements = self._agreements + 1
        message = {
            "method": "agree",
            "topic": topic or "meeting",
            "number": number,
            "value": value,
            "strict": strict,
        }
        return float(self.client.call(message)["value"])

    def first_facts(self, topic: str, facts: dict[str, str]) -> tuple[int, dict[str, str]]:
        """Which worker stated its facts about a topic first, and which; this one, if none has."""
        message = {"method": "first_said", "topic": topic, "facts": facts}
        answer = self.client.call(message)
        return int(answer["worker"]), dict(answer["facts"])

    def learn_versions(self) -> None:
        """Ask how far the tables have come.

        No round ends meanwhile: it would need a push of ours, or we rest and ask again afterwards.
        """
        if self.pace.workers == 0:
            return
        answers = self.client.call_all({"method": "describe"})
        dense = [group.table for carrier in self.carriers for group, _ in carrier.groups]
        for handle in [*self._handles.values(), *dense]:
            handle.versions[:] = [each["tables"][handle.name]["updates"] for each in answers]

    def rest(self) -> None:
        """Meet the other workers at the end of a stretch of data; no update waits for us meanwhile.

        Shares of data differ in length, so some come here earlier than others, with fewer updates.
        """
        self.client.call_all({"method": "rest", "resting": True})
        for carrier in self.carriers:
            carrier.join()  # models that had no batch here; now that nobody waits for our pushes
        self.step = self.furthest(self.step)
        for carrier in self.carriers:
            carrier.step = self.furthest(carrier.step)
        self.learn_versions()
        self.client.call_all({"method": "rest", "resting": False})
        # Once more, so that nobody begins an update while others still count as resting.
        self._agreements = self.furthest(self._agreements)

    def furthest(self, count: int) -> int:
        """The largest count of any worker; all of them ask, between two stretches of data."""
        self._pauses += 1
        return int(self.agree(count, topic=REST, number=self._pauses))

    def stop(self, *, finished: bool = True) -> None:
        """Part from the servers; the last worker to say that it is finished ends them."""
        self.heartbeat.stop()
        # Rows that nobody asked for in the end may still be on their way.
        self.ahead.end()
        self._fetching.shutdown(cancel_futures=True)
        self.ahead.close()
        if finished:
            self.client.call_all({"method": "finish"})
        self.client.close()


_running: list[Worker] = []
"""Empty or one: a process is one worker."""


def running() -> Worker | None:
    """The worker that this process is, between ``init_worker`` and ``stop_worker``."""
    return _running[0] if _running else None


def start(endpoints: Sequence[str], access: Access, workers: int) -> Worker:
    """Become a worker."""
    assert not _running, "a process is one worker"
    _running.append(Worker(endpoints, access, workers))
    return _running[0]


def stop(*, finished: bool = True) -> None:
    """Be a worker no more."""
    while _running:
        _running.pop().stop(finished=finished)
