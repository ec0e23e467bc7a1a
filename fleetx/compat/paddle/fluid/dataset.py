"""``paddle.fluid.dataset``: data sets of text slots, over fleetx's own."""

import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from fleetx.compat.notes import note
from fleetx.data import slot_dataset

_PYTHON = re.compile(r"(^|[|;&]\s*)python[23]?(?=\s)")
_SHELL = re.compile(r"[|;&<>$`*]")


def command_of(pipe_command: str) -> str:
    """A command as it is run: by this Python, and by a shell where it speaks to one."""
    own = shlex.quote(sys.executable)
    found = _PYTHON.sub(lambda match: f"{match.group(1)}{own}", pipe_command.strip())
    return f"sh -c {shlex.quote(found)}" if _SHELL.search(found) else found


class DatasetBase(slot_dataset.QueueDataset):
    """What both kinds have: settings one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.pipe_command, self.thread_num = "cat", 1
        self.use_var: list[Any] = []

    @override
    def init(self, **kwargs: Any) -> None:
        """All settings at once, as Paddle 2 has them."""
        threads = kwargs.pop("thread_num", 1)
        for name in ("fs_name", "fs_ugi", "input_type", "download_cmd", "data_feed_type"):
            if kwargs.pop(name, None):
                note(f"dataset.init({name}=…)", "files of this machine are read.")
        self.thread_num = threads
        self.use_var = list(kwargs.get("use_var", ()))
        self.pipe_command = kwargs.get("pipe_command", "cat")
        super().init(**{**kwargs, "pipe_command": command_of(self.pipe_command)})

    def set_batch_size(self, batch_size: int) -> None:
        """Records in a batch."""
        if batch_size < 1:
            raise ValueError(f"set_batch_size({batch_size}) holds no record; pass 1 or more.")
        self._batch_size = int(batch_size)

    def set_use_var(self, var_list: Sequence[Any]) -> None:
        """The slots of a line, in order: inputs of a program."""
        self.use_var = list(var_list)
        super().init(batch_size=self._batch_size, use_var=self.use_var, pipe_command=self._command)

    def set_pipe_command(self, pipe_command: str) -> None:
        """A program through which each file goes, such as a data generator."""
        self.pipe_command, self._command = pipe_command, command_of(pipe_command)

    def set_thread(self, thread_num: int) -> None:
        """How many threads read; it changes no batch."""
        self.thread_num = int(thread_num)
        if self.thread_num > 1:
            note(f"dataset.set_thread({thread_num})", "one thread of the worker reads.")

    def set_hdfs_config(self, fs_name: str, fs_ugi: str) -> None:
        """Files of this machine are read."""
        note("dataset.set_hdfs_config", "files of this machine are read; download them first.")

    def set_rank_offset(self, rank_offset: Any) -> None:
        """Refused: a slot of Paddle's own ranking models."""
        raise NotImplementedError(
            "dataset.set_rank_offset() belongs to page-view models of PaddleBox, which are not "
            "here; remove the line."
        )

    set_fea_eval = set_rank_offset

    def desc(self) -> str:
        """What is set, as text."""
        names = ", ".join(slot.name for slot in self._slots)
        return (
            f"batch_size: {self._batch_size}\npipe_command: {self.pipe_command!r}\n"
            f"thread_num: {self.thread_num}\nslots: {names}\n"
        )


class QueueDataset(DatasetBase):
    """Reads its files batch by batch."""

    def local_shuffle(self) -> None:
        """Refused: nothing is held that could be shuffled."""
        raise NotImplementedError(
            "QueueDataset does not support local shuffle, please use InMemoryDataset for "
            "local_shuffle"
        )

    def global_shuffle(self, fleet: Any = None) -> None:
        """Refused, for the same reason."""
        raise NotImplementedError(
            "QueueDataset does not support global shuffle, please use InMemoryDataset for "
            "global_shuffle"
        )


class InMemoryDataset(DatasetBase, slot_dataset.InMemoryDataset):
    """Holds its records, so that they can be shuffled."""

    @override
    def global_shuffle(
        self, fleet: Any = None, thread_num: int = 12, seed: int | None = None
    ) -> None:
        """Deal the records of all workers out at random."""
        super().global_shuffle(fleet, seed=seed)

    @override
    def local_shuffle(self, seed: int | None = None) -> None:
        """A new order of this worker's records."""
        slot_dataset.InMemoryDataset.local_shuffle(self, seed)

    @override
    def preload_into_memory(self, thread_num: int | None = None) -> None:
        """Begin to read all files, beside what the script does next."""
        super().preload_into_memory()

    def set_queue_num(self, queue_num: int) -> None:
        """Queues of Paddle's readers, of which there are none."""

    set_fleet_send_batch_size = set_fleet_send_sleep_seconds = set_queue_num
    set_merge_by_lineid = set_parse_ins_id = set_parse_content = set_queue_num

    @override
    def get_memory_data_size(self, fleet: Any = None) -> int:
        """Records in memory: of this worker, or of all when ``fleet`` is passed."""
        return super().get_memory_data_size(fleet)

    @override
    def get_shuffle_data_size(self, fleet: Any = None) -> int:
        """The same, after a shuffle."""
        return super().get_memory_data_size(fleet)


class FileInstantDataset(QueueDataset):
    """The same as ``QueueDataset``."""


KINDS = {
    "QueueDataset": QueueDataset,
    "InMemoryDataset": InMemoryDataset,
    "FileInstantDataset": FileInstantDataset,
}


class DatasetFactory:
    """Makes data sets by the names of their classes."""

    def create_dataset(self, datafeed_class: str = "QueueDataset") -> Any:
        """A "QueueDataset" or an "InMemoryDataset"."""
        if datafeed_class not in KINDS:
            raise ValueError(
                f"datafeed class {datafeed_class} does not exist; one of {', '.join(KINDS)}."
            )
        return KINDS[datafeed_class]()
