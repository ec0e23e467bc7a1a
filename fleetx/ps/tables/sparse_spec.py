"""The description of a sparse table, as workers send it to servers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetx.ps.tables.byte_size import byte_size
from fleetx.ps.tables.entries import ENTRIES, Entry
from fleetx.ps.tables.initializers import INITIALIZERS, Initializer, Uniform
from fleetx.ps.tables.rules import RULES, SGD, Rule
from fleetx.ps.wire.plain_data import from_plain, to_plain

DTYPES = ("float32", "float16", "bfloat16", "int8")
STORAGES = ("memory", "disk")
LEAST_MEMORY = 1 << 20
MAX_DIM = 1 << 14
MAX_NAME = 200


@dataclass(frozen=True, kw_only=True)
class Pace:
    """When pushes become updates, and how the learning rate falls with them."""

    workers: int = 0
    """Pushes that make one update; 0 applies each push as it comes."""
    decay: float = 1.0
    """The factor on the learning rate after every ``every`` updates of the table."""
    every: int = 1

    def rate(self, rate: float, updates: int) -> float:
        """The learning rate of the next update."""
        return rate if self.decay == 1.0 else rate * self.decay ** (updates // self.every)


@dataclass(frozen=True, kw_only=True)
class SparseSpec:
    """Everything that decides what a sparse table holds."""

    name: str
    dim: int
    rule: Rule = field(default_factory=SGD)
    initializer: Initializer = field(default_factory=Uniform)
    entry: Entry | None = None
    seed: int = 0
    pace: Pace = Pace()
    storage: str = "memory"
    """Where rows are: in memory all of them, or those alone that are used often."""
    memory: int = 0
    """Bytes that the rows of one server may take, where the others are on the disk."""
    dtype: str = "float32"
    """In which weights are kept."""

    def __post_init__(self) -> None:
        check_name(self.name)
        dim: Any = self.dim
        whole = isinstance(dim, int) and not isinstance(dim, bool)
        if not whole or not 1 <= dim <= MAX_DIM:
            raise ValueError(
                f"table {self.name!r} cannot have rows of {self.dim!r} floats; "
                f"pass a number from 1 to {MAX_DIM}"
            )
        check_dtype(self.name, self.dtype)

    def to_plain(self) -> dict[str, Any]:
        """The spec as plain data."""
        return {
            "name": self.name,
            "dim": self.dim,
            "rule": to_plain(self.rule),
            "initializer": to_plain(self.initializer),
            "entry": None if self.entry is None else to_plain(self.entry),
            "seed": self.seed,
            "pace": to_plain(self.pace),
            "storage": self.storage,
            "memory": self.memory,
            "dtype": self.dtype,
        }

    @staticmethod
    def from_plain(plain: Mapping[str, Any]) -> "SparseSpec":
        """The spec that ``to_plain`` described."""
        entry = plain.get("entry")
        return SparseSpec(
            name=plain["name"],
            dim=plain["dim"],
            rule=from_plain(plain["rule"], RULES),
            initializer=from_plain(plain["initializer"], INITIALIZERS),
            entry=None if entry is None else from_plain(entry, ENTRIES),
            seed=int(plain.get("seed", 0)),
            pace=from_plain(plain.get("pace", to_plain(Pace())), {"Pace": Pace}),
            storage=str(plain.get("storage", "memory")),
            memory=int(plain.get("memory", 0)),
            dtype=str(plain.get("dtype", "float32")),
        )


def check_dtype(name: str, dtype: Any) -> None:
    """Refuse what weights cannot be kept as."""
    if dtype not in DTYPES:
        raise ValueError(
            f"dtype={dtype!r} of table {name!r} is not known; use one of {', '.join(DTYPES)}"
        )


def memory_for(name: str, storage: Any, memory: Any) -> int:
    """The bytes of memory that a table of this storage may take; 0 for all that it needs."""
    if storage not in STORAGES:
        raise ValueError(
            f"storage={storage!r} of table {name!r} is not known; use 'memory', or 'disk' with "
            "memory='8GB' for the rows that are used most"
        )
    if storage == "memory":
        if memory is not None:
            raise ValueError(
                f"memory={memory!r} of table {name!r} bounds nothing, for storage='memory' keeps "
                "all rows there; pass storage='disk' as well, or leave it out"
            )
        return 0
    size = byte_size(memory)
    if size is None or size < LEAST_MEMORY:
        raise ValueError(
            f"memory={memory!r} of table {name!r} with storage='disk' is no size that rows could "
            "be kept in; pass the bytes that each server may take for them, from '1MiB', as in "
            "memory='8GB'"
        )
    return size


def check_name(name: Any) -> None:
    """Refuse names that could not be those of files."""
    fine = isinstance(name, str) and 0 < len(name) <= MAX_NAME
    if not fine or not all(c.isalnum() or c in "._-" for c in name) or name.startswith("."):
        raise ValueError(
            f"a table cannot be called {name!r}; use letters, digits, '.', '_' and '-'"
        )
