"""Data sets of text slots: streamed from files, or held in memory and shuffled between workers."""

import logging
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from typing_extensions import override

from fleetx.api.data_pass import train_through
from fleetx.data.slots import Ragged, Records, Slot, parse
from fleetx.data.team import find_device
from fleetx.roles import identity, started
from fleetx.roles.messages import swap_bytes
from fleetx.roles.worker_util import util

logger = logging.getLogger(__name__)

Batch = dict[str, Ragged]


class QueueDataset:
    """Reads its files batch by batch; nothing is kept.

    Batches are on the device of the worker.
    """

    def __init__(self) -> None:
        self._slots: list[Slot] = []
        self._files: list[Path] = []
        self._batch_size, self._command = 1, "cat"

    def init(
        self,
        *,
        batch_size: int = 1,
        use_var: Sequence[str | Slot | Tensor] = (),
        pipe_command: str = "cat",
        thread_num: int = 1,
    ) -> None:
        """Say what a record is.

        Args:
            batch_size: records in a batch; the last one may have fewer.
            use_var: the slots of a line, in order: names of ids, ``Slot(name, "float32")``,
                or inputs of a static program.
            pipe_command: a program through which each file goes, such as a data generator.
            thread_num: 1; batches are read by the worker itself.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size} holds no record; pass 1 or more")
        if not use_var:
            raise ValueError("use_var names no slot; list those of a line, in their order")
        if thread_num != 1:
            raise ValueError(f"thread_num={thread_num}: one thread reads; leave it at 1")
        self._slots = [Slot.of(entry) for entry in use_var]
        self._batch_size, self._command = batch_size, pipe_command

    def set_filelist(self, filelist: Sequence[str | Path]) -> None:
        """The files of this worker; ``fleet.util.get_file_shard(files)`` shares them out."""
        self._files = [Path(path) for path in filelist]
        for path in self._files:
            if not path.is_file():
                raise ValueError(f"{path} is no file; correct the list")

    def _records(self) -> Iterator[Records]:
        if not self._slots:
            raise RuntimeError("the data set does not know its slots; call init() first")
        for path in self._files:
            yield parse(self._piped(path), self._slots, str(path))

    def _piped(self, path: Path) -> bytes:
        if self._command == "cat":
            return path.read_bytes()
        with path.open("rb") as file:
            command = shlex.split(self._command)
            made = subprocess.run(command, stdin=file, capture_output=True, check=False)
        if made.returncode:
            raise RuntimeError(
                f"pipe_command {self._command!r} failed on {path} (exit code {made.returncode}): "
                f"{made.stderr.decode(errors='replace')[-500:]}"
            )
        return made.stdout

    def __iter__(self) -> Iterator[Batch]:
        return self._reported(self._read_batches())

    def _reported(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """A pass without a batch learns nothing, and must not look like one that went well."""
        first = next(batches, None)
        if first is None:
            logger.warning("this pass over the data has no batch: %s", self._why_nothing())
            return
        yield first
        yield from batches

    def _why_nothing(self) -> str:
        if not self._files:
            return "the worker has no files; check set_filelist(), and have a file for each worker"
        shown = ", ".join(map(str, self._files[:3]))
        more = f" and {len(self._files) - 3} more" if len(self._files) > 3 else ""
        return f"no record of {shown}{more} came here (pipe_command {self._command!r}); look there"

    def _read_batches(self) -> Iterator[Batch]:
        rest: Records | None = None
        for part in self._records():
            records = part if rest is None else Records.joined([rest, part])
            whole = len(records) // self._batch_size * self._batch_size
            yield from self._batches(records.take(np.arange(whole)))
            rest = records.take(np.arange(whole, len(records)))
        if rest is not None and len(rest):
            yield rest.batch(self._slots, find_device())

    def _batches(self, records: Records) -> Iterator[Batch]:
        for begin in range(0, len(records), self._batch_size):
            end = min(begin + self._batch_size, len(records))
            yield records.take(np.arange(begin, end)).batch(self._slots, find_device())


class InMemoryDataset(QueueDataset):
    """Holds its records, so that they can be shuffled, here or between all workers."""

    def __init__(self) -> None:
        super().__init__()
        self._held: Records | None = None
        self._shuffles = 0
        self._coming: Future[Records] | None = None

    def load_into_memory(self, is_shuffle: bool = False) -> None:
        """Read all files, and shuffle what they hold if that is asked for."""
        self._held = self._read()
        if is_shuffle:
            self.local_shuffle()

    def _read(self) -> Records:
        return Records.joined([parse(b"", self._slots, ""), *self._records()])

    def preload_into_memory(self, thread_num: int = 1) -> None:
        """Begin to read all files, beside what the script does next."""
        if thread_num != 1:
            raise ValueError(f"thread_num={thread_num}: one thread reads; leave it at 1")
        pool = ThreadPoolExecutor(1, thread_name_prefix="preload")
        self._coming = pool.submit(self._read)
        pool.shutdown(wait=False)

    def wait_preload_done(self) -> None:
        """Wait for ``preload_into_memory``; what it read takes the place of what was held."""
        if self._coming is None:
            raise RuntimeError("nothing is being read; call preload_into_memory() first")
        coming, self._coming = self._coming, None
        self._held = coming.result()

    def slots_shuffle(self, slots: Sequence[str]) -> None:
        """Mix the values of some slots among the records, to see what they are worth.

        A model that predicts as well without a slot's own values does not use them.
        """
        held, self._shuffles = self._memory(), self._shuffles + 1
        names = [slot.name for slot in self._slots]
        if unknown := [name for name in slots if name not in names]:
            raise ValueError(f"there is no slot {unknown[0]!r}; the slots are {', '.join(names)}")
        chance = np.random.default_rng(self._shuffles)
        mixed = held.take(chance.permutation(len(held)))
        pairs = zip(names, held.columns, mixed.columns, strict=True)
        self._held = Records([new if name in slots else old for name, old, new in pairs])

    def _memory(self) -> Records:
        if self._held is None:
            raise RuntimeError("no records are in memory; call load_into_memory() first")
        return self._held

    def local_shuffle(self, seed: int | None = None) -> None:
        """A new order of this worker's records."""
        held, self._shuffles = self._memory(), self._shuffles + 1
        chance = np.random.default_rng(self._shuffles if seed is None else seed)
        self._held = held.take(chance.permutation(len(held)))

    def global_shuffle(
        self, fleet: Any = None, thread_num: int = 1, seed: int | None = None
    ) -> None:
        """Deal the records of all workers out at random, then shuffle; all workers must call it."""
        held = self._memory()
        workers = identity().worker_num if started() else 1
        if workers > 1:
            group = util.meet("global_shuffle")
            assert group is not None
            own = identity().index
            first = self._shuffles + 1 if seed is None else seed
            chance = np.random.default_rng([first, own])
            target = chance.integers(0, workers, len(held))
            pieces = [held.take(np.flatnonzero(target == w)).packed() for w in range(workers)]
            self._held = Records.joined(
                [Records.unpacked(piece) for piece in swap_bytes(pieces, group)]
            )
        self.local_shuffle(seed)

    def release_memory(self) -> None:
        """Forget the records."""
        self._held = None

    def get_memory_data_size(self, fleet: Any = None) -> int:
        """Records in memory: of this worker, or of all when ``fleet`` is passed."""
        own = len(self._memory())
        return own if fleet is None else int(util.all_reduce(own))

    get_shuffle_data_size = get_memory_data_size

    @override
    def __iter__(self) -> Iterator[Batch]:
        yield from self._reported(self._batches(self._memory()))


def train_from_dataset(
    dataset: QueueDataset,
    step: Callable[[Batch], Any],
    *,
    ahead: Callable[[Batch], None] | None = None,
    report: Callable[[int, Any], None] | None = None,
    print_period: int = 100,
) -> int:
    """Train on every batch of a data set; returns how many there were.

    In a job with parameter servers all workers must call it, and it ends when all of them are
    through with their data: everybody then sees everything that was learned.

    Args:
        dataset: where batches come from.
        step: trains on one batch and returns what shall be reported.
        ahead: is shown each batch before the one in front of it is trained, to fetch its rows.
        report: is told the number of a batch and what ``step`` returned.
        print_period: how often.
    """
    return train_through(dataset, step, ahead=ahead, report=report, print_period=print_period)
