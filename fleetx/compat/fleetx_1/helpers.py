"""``fleetx.utils`` of FleetX 1."""

from pathlib import Path
from typing import Any

from typing_extensions import override

from fleetx import roles
from fleetx.compat.paddle.fluid.layers.learning_rate_scheduler import (
    linear_lr_warmup,
    polynomial_decay,
)
from fleetx.data.downloads import downloader


class Downloader(downloader.Downloader):
    """Brings data sets to this machine."""

    def download_from_hdfs(
        self,
        fs_yaml: str | Path | None = None,
        local_path: str | Path = "./",
        shard_num: int = -1,
        shard_id: int = -1,
        process_num: int = 10,
    ) -> str:
        """From the folder or address that the YAML file names; HDFS itself is not spoken."""
        return self.download_from_bos(fs_yaml, local_path, shard_num, shard_id, process_num)

    @override
    def download_from_bos(
        self,
        fs_yaml: str | Path | None = None,
        local_path: str | Path = "./",
        shard_num: int = -1,
        shard_id: int = -1,
        process_num: int = 10,
        fs_yml: str | Path | None = None,
    ) -> str:
        """The same; ``fs_yml`` is an older name of ``fs_yaml``."""
        given = fs_yaml or fs_yml
        return super().download_from_bos(given, local_path, shard_num, shard_id, process_num)


def linear_warmup_decay(learning_rate: float, warmup_steps: int, num_train_steps: int) -> Any:
    """Up to the learning rate in a line, and down to 0 in another."""
    down = polynomial_decay(learning_rate, num_train_steps, 0.0, 1.0, cycle=False)
    return linear_lr_warmup(down, warmup_steps, 0.0, learning_rate)


def is_first_worker() -> bool:
    """Whether this is worker 0."""
    return not roles.started() or roles.worker_index() == 0


def get_rank() -> int:
    """The number of this worker."""
    return roles.worker_index() if roles.started() else 0


def get_nranks() -> int:
    """How many workers there are."""
    return roles.worker_num() if roles.started() else 1
