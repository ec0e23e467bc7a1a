"""What the servers of a job hold, as a part of its checkpoints."""

from collections.abc import Callable
from pathlib import Path

from fleetx.api import servers, table_saves
from fleetx.io.agreement import CheckpointError
from fleetx.ps.tables.save_folder import TABLES


def settled(*, wait: bool) -> Callable[[Path], None] | None:
    """Let servers have all that workers have learned; how the first one lets them write it.

    All workers must call it. None in a job without servers.
    """
    if not servers.has_servers():
        return None
    if not wait:
        raise ValueError(
            "save_checkpoint(wait=False) copies what a worker holds and writes while training goes "
            "on, but the tables of this job are on its servers, and the next batches would change "
            "them; leave wait at True. Servers go on answering while they write."
        )
    connected = servers.connected_worker("save_checkpoint")
    servers.settle_workers()

    def write(checkpoint: Path) -> None:
        table_saves.save(connected, checkpoint / TABLES, delta=False, mark=False)

    return write


def check(checkpoint: Path) -> None:
    """Refuse a checkpoint of a job with servers where there are none, and the other way round."""
    has_tables = (checkpoint / TABLES).is_dir()
    if has_tables == servers.has_servers():
        return
    here, there = ("without", "with") if has_tables else ("with", "without")
    raise CheckpointError(
        f"{checkpoint} was written by a job {there} parameter servers, and this one is {here}; "
        f"start it {there} servers, or load weights alone with checkpoint_weights()."
    )


def load(checkpoint: Path) -> None:
    """Set the servers to a checkpoint, and workers to what they hold; all workers must call it."""
    if servers.has_servers():
        table_saves.load(str(checkpoint / TABLES))
