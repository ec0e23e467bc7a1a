"""What a layer needs to know about a table, and what it asks of whoever has the rows."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from fleetx.ps.tables.entries import Entry
from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.initializers import Initializer, Uniform
from fleetx.ps.tables.rules import Rule
from fleetx.ps.wire.arrays import Array, Floats, Ids

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """What a user says about a table."""

    name: str
    dim: int
    rule: Rule | None = None
    """None takes the job's optimizer."""
    initializer: Initializer = field(default_factory=Uniform)
    entry: Entry | None = None
    seed: int = 0
    wire: str | None = None
    """The dtype in which rows and gradients travel; None for float32."""
    storage: str = "memory"
    memory: int = 0
    """Bytes of each server for rows, where the others are on the disk."""
    dtype: str = "float32"
    """In which servers keep rows."""


class RowSource(Protocol):
    """Gives rows to layers.

    Carriers get them from the servers of their job, ``SavedRows`` from files, and a ``Follower``
    from a copy of what servers hold.
    """

    @property
    def exact_prefetch(self) -> bool:
        """Whether training is the same with and without rows that were fetched ahead."""

    def sort_ids(self, ids: Ids) -> IdBatch:
        """The batch of these ids, which several tables may share."""

    def look_up(
        self,
        table: TableOptions,
        batch: IdBatch,
        met: Array | None,
        *,
        train: bool,
        versions: list[int] | None = None,
    ) -> Floats:
        """The rows of a batch.

        Args:
            table: whose rows.
            batch: which rows.
            met: how often each id occurs, where the table counts that.
            train: make rows that do not exist yet.
            versions: for rows that are fetched ahead, what ``next_versions`` gave.
        """

    def fetch_ahead(self, fetch: Callable[..., T], *args: Any) -> Future[T]:
        """Run a fetch for a later batch beside the computation of this one."""

    def next_versions(self, table: TableOptions) -> list[int]:
        """The versions of a table that rows for the batch after this one wait for."""

    def outdated(self, table: TableOptions, versions: list[int]) -> bool:
        """Whether rows that were fetched for these versions are not those of the batch at hand."""

    def refreshed(self, table: TableOptions, batch: IdBatch, rows: Floats) -> Floats:
        """Rows that were fetched ahead, as they are now that their batch is trained."""


def untrainable(table: TableOptions) -> RuntimeError:
    """What is said to whoever trains a model that was loaded to compute outputs."""
    return RuntimeError(
        f"table {table.name!r} was loaded to compute outputs and cannot be trained; call "
        "model.eval(), or load the save in a job with servers: fleet.init_server(folder)"
    )


class ReadOnly:
    """The part of a `RowSource` about fetching ahead, where nothing is trained."""

    @property
    def exact_prefetch(self) -> bool:
        """Nothing is trained here."""
        return True

    def fetch_ahead(self, fetch: Callable[..., T], *args: Any) -> Future[T]:
        """Never called: ``next_versions`` comes before it."""
        raise AssertionError("next_versions() refuses before anything is fetched ahead")

    def next_versions(self, table: TableOptions) -> list[int]:
        """Refused, for only training fetches ahead."""
        raise untrainable(table)

    def outdated(self, table: TableOptions, versions: list[int]) -> bool:
        """Nothing is fetched ahead."""
        return False

    def refreshed(self, table: TableOptions, batch: IdBatch, rows: Floats) -> Floats:
        """Nothing is fetched ahead."""
        return rows
