"""How the launchers of a job find each other, for torch's elastic agent.

Why not torch's static rendezvous: it needs the rank of every machine beforehand, does not say which
machine is missing, and always answers that nobody waits, so that a job cannot meet again after a
failure.
"""

import json
import time
from typing import Protocol

from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from typing_extensions import override

from fleetx.launch.cluster import Job, World
from fleetx.launch.console import warn
from fleetx.launch.errors import LaunchError
from fleetx.launch.job_board import JobBoard
from fleetx.launch.store import PrefixStore, Store, TCPStore, worker_host, worker_store
from fleetx.torch_internals import part_from_meeting

RUN_ID = "fleetx"
ALIVE, SIGNS = 2, 3
"""Seconds between two signs of life of a launcher in an elastic job, and how many may fail to come
before the others meet without it. Each is dated by the clock of its machine."""
LAST_CALL = 5
"""Seconds that machines wait for more of them when there are enough: longer than any of them takes
to stop its workers after a failure, so that all of them meet at once."""
SILENT = ALIVE * SIGNS + 4.0
"""Seconds after which a machine that joined an elastic job and says nothing counts as lost: longer
than it takes until it is no longer one of the job."""
MEETINGS = 20
"""Meetings in a row that may fail because of such machines."""


class JobEnded(Exception):
    """Another machine has ended the job."""


class Membership(Protocol):
    """Who takes part in a round."""

    patience: float | None
    """Seconds after which one that came and said nothing is left behind; None if it cannot be."""

    def join(self) -> tuple[int, int, Store]:
        """Waits for the others; place of this machine, their number, and a store of the round."""

    def waiting(self) -> bool:
        """True when somebody wants a new round."""

    def part(self) -> None:
        """Takes no part any more, while the others go on."""

    def leave(self) -> None:
        """Takes no part any more, and nobody does."""


class FixedMembers:
    """A known number of machines, each with a known place."""

    patience: float | None = None

    def __init__(self, store: Store, board: JobBoard, job: Job, timeout: float) -> None:
        assert job.node_rank is not None, "places are known here"
        self._store, self._board = store, board
        self._rank, self._size, self._timeout = job.node_rank, job.max_nodes, timeout
        self._round = -1

    def join(self) -> tuple[int, int, Store]:
        """See `Membership`."""
        self._round += 1
        store = PrefixStore(f"round/{self._round}", self._store)
        store.set("wanted", "1")
        if store.add(f"member/{self._rank}", 1) > 1:
            raise LaunchError(
                f"two launchers take place {self._rank} of the same job, but each machine has its "
                "own; give each a different --rank or --node_ip"
            )
        store.add("arrived", 1)
        deadline = time.monotonic() + self._timeout
        while (here := store.add("arrived", 0)) < self._size:
            if time.monotonic() > deadline:
                raise too_few(here, self._size, self._timeout)
            refuse_if_over(self._board)
            time.sleep(0.02)
        return self._rank, self._size, store

    def waiting(self) -> bool:
        """See `Membership`."""
        return bool(self._store.check([f"round/{self._round + 1}/wanted"]))

    def part(self) -> None:
        """See `Membership`; the others are as many as ever."""

    def leave(self) -> None:
        """See `Membership`."""


class ElasticMembers:
    """Machines that come and go between two bounds: torch's own dynamic rendezvous."""

    patience: float | None = SILENT

    def __init__(self, store: Store, job: Job, timeout: float) -> None:
        parameters = RendezvousParameters(
            backend="c10d",
            endpoint="",
            run_id=RUN_ID,
            min_nodes=job.min_nodes,
            max_nodes=job.max_nodes,
            local_addr=job.host,
            join_timeout=int(timeout) or 1,
            last_call_timeout=LAST_CALL,
            keep_alive_interval=ALIVE,
            keep_alive_max_attempt=SIGNS,
        )
        self._job, self._timeout = job, timeout
        self._handler = create_handler(store, C10dRendezvousBackend(store, RUN_ID), parameters)

    def join(self) -> tuple[int, int, Store]:
        """See `Membership`."""
        try:
            info = self._handler.next_rendezvous()
        except RendezvousTimeoutError:
            raise too_few(None, self._job.min_nodes, self._timeout) from None
        return info.rank, info.world_size, info.store

    def waiting(self) -> bool:
        """See `Membership`."""
        return self._handler.num_nodes_waiting() > 0

    def part(self) -> None:
        """See `Membership`."""
        part_from_meeting(self._handler)

    def leave(self) -> None:
        """See `Membership`."""
        self._handler.shutdown()


def refuse_if_over(board: JobBoard) -> None:
    """Ends this machine's part when another has ended the job."""
    if board.failed():
        raise JobEnded


def too_few(here: int | None, wanted: int, timeout: float) -> LaunchError:
    """The sentence for machines that did not come."""
    number = "too few" if here is None else f"only {here}"
    return LaunchError(
        f"{number} of {wanted} machines came within {timeout:g} s, so the job cannot begin; start "
        "fleetrun on the others, or wait longer with --timeout"
    )


def _refuse_different(job: Job, views: list[dict[str, list[str]]]) -> None:
    """Stops machines whose flags describe different jobs, before any of them starts a worker."""
    own = job.view()
    for rank, view in enumerate(views):
        for role, addresses in view.items():
            if addresses != own.get(role):
                raise LaunchError(
                    f"machine {rank} counts the {role} {_short(addresses)} and this one "
                    f"{_short(own.get(role, []))}, so they describe two different jobs; give all "
                    f"machines the same flags ({job.flags_of_view})"
                )


def _silent(rank: str, timeout: float) -> LaunchError:
    return LaunchError(
        f"machine {rank} came to the meeting and then said nothing for {timeout:g} s, so the job "
        "cannot begin; look at what its fleetrun printed and start again"
    )


def _short(addresses: list[str]) -> str:
    shown = ",".join(addresses[:8]) + (",..." if len(addresses) > 8 else "")
    return f"{shown} ({len(addresses)})"


class Rendezvous(RendezvousHandler):
    """One round after another, each with a fresh store for the workers."""

    def __init__(self, job: Job, board: JobBoard, members: Membership, *, timeout: float) -> None:
        self._job, self._board, self._members = job, board, members
        self._timeout = timeout
        self._workers_store: TCPStore | None = None
        self.world: World | None = job.world
        self.master = ("", 0)
        self.attempt = -1

    @override
    def get_backend(self) -> str:
        return "fleetx"

    @property
    @override
    def use_agent_store(self) -> bool:
        return True

    @override
    def get_run_id(self) -> str:
        return RUN_ID

    @override
    def next_rendezvous(self) -> RendezvousInfo:
        silent: str | None = ""
        for _ in range(MEETINGS):
            rank, size, store = self._members.join()
            store.set(f"table/{rank}", json.dumps([self._job.endpoints, self._job.view()]))
            if rank == 0:
                self._workers_store = worker_store(self._job)
                place = [worker_host(self._job), self._workers_store.port]
                store.set("master", json.dumps([*place, self._board.next_attempt()]))
            keys = ["master", *(f"table/{index}" for index in range(size))]
            if (silent := self._awaited(store, keys)) is None:
                return self._met(rank, size, store, keys)
            warn(f"machine {silent} came to the meeting and was lost; the others meet again")
        raise _silent(silent or "0", self._timeout)

    def _met(self, rank: int, size: int, store: Store, keys: list[str]) -> RendezvousInfo:
        host, port, self.attempt = json.loads(store.get("master"))
        self.master = (str(host), int(port))
        told = [json.loads(store.get(key)) for key in keys[1:]]
        _refuse_different(self._job, [view for _, view in told])
        self.world = self._job.meet([table for table, _ in told], rank)
        return RendezvousInfo(store, rank, size, RendezvousStoreInfo(*self.master))

    def _awaited(self, store: Store, keys: list[str]) -> str | None:
        """Waits for what the others say about themselves; the one that died before it had."""
        patience = self._members.patience
        deadline = time.monotonic() + (patience or self._timeout)
        while not store.check(keys):
            refuse_if_over(self._board)
            if time.monotonic() > deadline:
                silent = next(key for key in keys if not store.check([key]))
                rank = silent.removeprefix("table/") if silent != "master" else "0"
                if patience is None:
                    raise _silent(rank, self._timeout)
                return rank
            time.sleep(0.02)
        return None

    @override
    def num_nodes_waiting(self) -> int:
        refuse_if_over(self._board)
        return int(self._members.waiting() or self._board.is_to_meet_again(self.attempt))

    def part(self) -> None:
        """Lets the others meet without this machine at once."""
        self._members.part()

    @override
    def is_closed(self) -> bool:
        return self._board.failed()

    @override
    def set_closed(self) -> None:
        self._members.leave()

    @override
    def shutdown(self) -> bool:
        self._members.leave()
        return True
