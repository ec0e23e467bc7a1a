"""Rows and dense parameters of running servers, for models that compute and do not train."""

import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from fleetx.ps.observers.server_copy import ServerCopy
from fleetx.ps.observers.server_reader import observing
from fleetx.ps.server.logged_dense_table import LoggedDenseTable
from fleetx.ps.tables.dense_table import group_of
from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.real_numbers import as_real
from fleetx.ps.tables.row_source import ReadOnly, RowSource, TableOptions, untrainable
from fleetx.ps.wire.arrays import Array, Floats, Ids
from fleetx.ps.wire.plain_data import check_number
from fleetx.roles import secrets
from fleetx.roles.addresses import split_endpoint

logger = logging.getLogger(__name__)

EVERY = 2.0
"""Seconds between two visits to a server."""


class Follower(ReadOnly):
    """Keeps a read-only copy of all tables of running servers, as new as the last visit.

    A server that dies is visited again when it is back, and the copy goes on from where it was;
    meanwhile its rows stay as they are. Rows are those of the last visit of each server; dense
    parameters of models that were attached are written to as they come.
    """

    def __init__(self, servers: str | Sequence[str], *, every: float = EVERY) -> None:
        """Begin to copy; ``wait`` says when there is something.

        Args:
            servers: ``host:port`` of all servers of the job, in its order, as a list or with
                commas between them.
            every: seconds between two visits.
        """
        self.endpoints = endpoints_of(servers)
        check_number("Follower", "every", every, above=0)
        access = observing(secrets.job_token(self.endpoints), secrets.client_tls())
        self._models = weakref.WeakSet[nn.Module]()
        self._lock = threading.Lock()
        self._owners: dict[str, str] = {}
        """Dense parameter -> the table that gives it: models of one job may use the same names."""
        self._said = False
        self._lacking = set[str]()
        """Tables of which was said that servers do not have them."""
        self._process = os.getpid()
        self.base: RowSource | None = None
        """Gives the rows of tables that were not copied yet."""
        self.copies = [
            ServerCopy(endpoint, access, every=every, server=number)
            for number, endpoint in enumerate(self.endpoints)
        ]
        for copy in self.copies:
            copy.on_values = self._give
            copy.start()

    def wait(self, timeout: float | None = None, *, visits: int = 1) -> None:
        """Wait until every server was visited; ``TimeoutError`` if that takes too long.

        Args:
            timeout: seconds; None waits for as long as it takes.
            visits: how often.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for copy in self.copies:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not copy.wait(visits, left):
                raise TimeoutError(
                    f"server {copy.endpoint} was not copied within {timeout:.0f} s "
                    f"({copy.trouble or 'the first copy is not complete'}); start it, or wait for "
                    "longer"
                )

    def refresh(self, timeout: float | None = None) -> None:
        """Wait until everything that servers have acknowledged by now is here."""
        for copy in self.copies:
            # The visit under way may have begun before.
            if not copy.wait(copy.visits + 2, timeout):
                raise TimeoutError(f"server {copy.endpoint} cannot be followed: {copy.trouble}")

    @property
    def age(self) -> float:
        """Seconds since the visit began that the oldest rows are from; infinite before the first.

        What servers had acknowledged so long ago is here.
        """
        now = time.monotonic()
        visited = [copy.visited for copy in self.copies]
        return max(math.inf if each is None else now - each for each in visited)

    @property
    def trouble(self) -> str:
        """Why rows are not as new as they should be; empty if the last visits brought all."""
        said = ((copy.endpoint, copy.trouble) for copy in self.copies)
        return "; ".join(f"server {endpoint}: {text}" for endpoint, text in said if text)

    def attach(self, model: nn.Module) -> None:
        """Keep the dense parameters of a model as those of the servers, too, by their names."""
        self._models.add(model)
        for copy in self.copies:
            for logged in copy.values():
                self._give(logged)

    @torch.no_grad()
    def _give(self, logged: LoggedDenseTable) -> None:
        with self._lock:
            for model in self._models:
                self._fill(dict(model.named_parameters()), logged)

    def _fill(self, held: dict[str, nn.Parameter], logged: LoggedDenseTable) -> None:
        blocks, table = logged.table.spec.blocks, group_of(logged.spec.name)
        numbers = {name: as_real(p.detach()) for name, p in held.items()}
        fits = all(name in held and end <= numbers[name].numel() for name, _, end in blocks)
        if not fits or any(self._owners.setdefault(name, table) != table for name, _, _ in blocks):
            if not self._said:
                self._said = True
                logger.warning("table %s is of another model, and left alone", table)
            return
        values, at = torch.from_numpy(logged.table.values.copy()), 0
        for name, begin, end in blocks:
            parameter = numbers[name]
            flat = parameter.reshape(-1)  # a copy where numbers do not lie in their order
            flat[begin:end].copy_(values[at : at + end - begin])
            if not parameter.is_contiguous():
                parameter.copy_(flat.view(parameter.shape))
            at += end - begin

    def close(self) -> None:
        """Follow no more; models go on with what was copied."""
        for copy in self.copies:
            copy.stop()

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sort_ids(self, ids: Ids) -> IdBatch:
        """The batch of these ids."""
        return IdBatch.of(ids, servers=len(self.copies))

    def look_up(
        self,
        table: TableOptions,
        batch: IdBatch,
        met: Array | None,
        *,
        train: bool,
        versions: list[int] | None = None,
    ) -> Floats:
        """The rows of a batch; ids that were never trained show what they would begin with."""
        if train:
            raise untrainable(table)
        self._require_threads()
        tables = [copy.rows(table.name) for copy in self.copies]
        if any(each is None for each in tables):
            return self._before(table, batch)
        out = np.empty((len(batch.ids), table.dim), np.float32)
        for server, logged in enumerate(tables):
            assert logged is not None
            if logged.table.spec.dim != table.dim:
                raise ValueError(
                    f"table {table.name!r} has rows of {logged.table.spec.dim} floats on the "
                    f"servers, and the layer asks for {table.dim}; make it "
                    f"SparseEmbedding({logged.table.spec.dim}, name={table.name!r})"
                )
            cut = slice(batch.begins[server], batch.begins[server + 1])
            with logged.table.lock:
                logged.table.pull(batch.ids[cut], out[cut], train=False)
        return out

    def _before(self, table: TableOptions, batch: IdBatch) -> Floats:
        if self.base is None:
            raise RuntimeError(
                f"table {table.name!r} was not copied yet; call wait() of the follower first, and "
                "give the layer the name that it is trained with"
            )
        if all(copy.visits for copy in self.copies) and table.name not in self._lacking:
            self._lacking.add(table.name)
            logger.warning(
                "servers %s hold no table %s, so its rows are those of the save and do not follow "
                "until they do; give the layer the name that it is trained with, and follow the "
                "servers that train it",
                ", ".join(self.endpoints),
                table.name,
            )
        return self.base.look_up(table, batch, None, train=False)

    def _require_threads(self) -> None:
        """A fork has our copies and not the threads that bring them up to date."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "rows were asked for by a process that was forked from the one that follows the "
                "servers, and follows nobody itself, so they would get older and older; make the "
                "Follower, or call load_inference_model(..., follow=...), after the fork"
            )


def endpoints_of(servers: str | Sequence[str]) -> list[str]:
    """The addresses of servers, checked."""
    given: Any = servers
    if isinstance(given, str):
        given = [each.strip() for each in given.split(",") if each.strip()]
    if not isinstance(given, list | tuple) or not given:
        raise ValueError(
            f"{servers!r} names no servers; pass host:port of each of them, such as "
            "'10.0.0.1:6001,10.0.0.2:6001'"
        )
    for endpoint in given:
        split_endpoint(endpoint, where="the servers to look at")
    return list(given)
