"""``InMemoryDataset`` and ``QueueDataset`` of ``paddle.distributed``."""

from typing import Any

from fleetx.compat.notes import note
from fleetx.compat.paddle.fluid import dataset as of_fluid


class _Init:
    """What Paddle 2 says in one call, and Paddle 1 in several."""

    def init(self, **given: Any) -> None:
        """Name the inputs, the command before the files, and sizes."""
        setters = {
            "batch_size": "set_batch_size",
            "thread_num": "set_thread",
            "use_var": "set_use_var",
            "pipe_command": "set_pipe_command",
        }
        for name in ("pipe_command", "batch_size", "thread_num", "use_var"):
            if name in given:
                getattr(self, setters[name])(given.pop(name))
        for name in (
            "input_type",
            "fs_name",
            "fs_ugi",
            "download_cmd",
            "queue_num",
            "data_feed_type",
        ):
            if given.pop(name, None):
                note(f"dataset.init({name}=...)", "files of this machine are read as they are.")
        if given:
            raise TypeError(f"dataset.init() has no argument {', '.join(given)}")

    def _init_distributed_settings(self, **given: Any) -> None:
        for name in given:
            note(f"dataset.init({name}=...)", "records travel between workers without it.")

    def update_settings(self, **given: Any) -> None:
        """Change what ``init`` said."""
        self.init(**given)


class InMemoryDataset(_Init, of_fluid.InMemoryDataset):
    """Holds its records, so that they can be shuffled."""

    @property
    def dataset(self) -> "InMemoryDataset":
        """Itself, for scripts that look inside."""
        return self


class QueueDataset(_Init, of_fluid.QueueDataset):
    """Reads its files batch by batch."""

    @property
    def dataset(self) -> "QueueDataset":
        """Itself, for scripts that look inside."""
        return self
