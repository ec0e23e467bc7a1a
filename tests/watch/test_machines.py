"""Machines that share a folder are one job."""

import pytest

from fleetx.watch.reading import Folder
from fleetx.watch.watched import Watched
from tests.launch.conftest import Launcher, launcher  # noqa: F401
from tests.ports import free_ports

TRAIN = """
import torch, fleetx as fleet
fleet.init(is_collective=True)
model = fleet.distributed_model(torch.nn.Linear(8, 2))
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(20):
    optimizer.minimize(model(torch.randn(16, 8)).pow(2).mean())
"""


@pytest.mark.rare
def test_two_machines_that_share_a_folder_are_shown_together(
    launcher: Launcher,  # noqa: F811
) -> None:
    script, (port,) = launcher.script(TRAIN), free_ports(1)
    machines = [
        launcher.start(
            *("--ips", "127.0.0.1,127.0.0.2", "--node_ip", f"127.0.0.{number}"),
            *("--gpus", "none", "--started_port", str(port), script),
        )
        for number in (1, 2)
    ]
    assert [launcher.finish(machine).code for machine in machines] == [0, 0]
    watched = Watched()
    lines, anew = Folder(launcher.folder / "log").read()
    for line in lines:
        watched.take(line)
    told = watched.now(lines[-1]["at"])
    assert not anew
    assert told["state"] == "done"
    assert told["job"]["hosts"] == ["127.0.0.1", "127.0.0.2"]
    assert [(rank["rank"], rank["step"]) for rank in told["ranks"]] == [(0, 20), (1, 20)]
