"""``paddle.distributed.fleet.meta_optimizers.sharding.utils``."""

import importlib
from typing import Any


def save_persistables(
    exe: Any, dirname: Any, main_program: Any = None, filename: str | None = None
) -> None:
    """Save whole values of a program of which workers hold parts."""
    saving = importlib.import_module("fleetx.compat.saving")
    saving.save_persistables(exe, dirname, main_program, filename)


def add_sync_comm(program: Any, sharding_ring_id: int = 0) -> None:
    """Nothing to add: programs for tests gather what they need when they run."""
