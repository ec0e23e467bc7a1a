"""Taking over the process group of the script: nobody leaves before all are connected."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import fleetx.roles as fleet
from fleetx.roles import stores
from fleetx.roles import world as roles_world
from fleetx.testing import world


@pytest.mark.parametrize("size", [2, 3])
def test_the_host_of_the_store_waits_until_the_last_visitor_is_in(
    size: int, tmp_path: Path
) -> None:
    assert world(size, timeout=20).run(start_with_a_slow_visitor, tmp_path) == [size - 1] * size


def start_with_a_slow_visitor(folder: Path) -> int:
    """How many visitors were connected when this worker left start()."""

    def slow_visit(*args: Any) -> Any:
        time.sleep(0.3 * dist.get_rank())  # the host would be gone by then, if it did not wait
        store = stores.visit_store(*args)
        (folder / str(dist.get_rank())).touch()
        return store

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roles_world, "visit_store", slow_visit)
        fleet.start(is_collective=True)
        connected = len(list(folder.iterdir()))
        fleet.stop()
    return connected
