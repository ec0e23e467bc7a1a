"""``fleet.launch``: functions of notebook cells on several workers."""

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import fleetx as fleet
from tests.programs import python


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that need not load torch again."""
    monkeypatch.setattr(sys, "executable", python())


def in_main(function: Any) -> Any:
    """The function as if a cell had defined it: no module has it."""
    function.__module__ = "__main__"
    return function


def test_every_worker_calls_the_function_of_a_cell(capfd: pytest.CaptureFixture[str]) -> None:
    offset = 10

    def cell(factor: int) -> tuple[int, int]:
        import torch

        fleet.init(is_collective=True)
        total = fleet.all_reduce(fleet.worker_index() + 1)
        if fleet.worker_index() == 0:
            print("printed by a worker, torch", torch.__version__)
        return fleet.worker_index(), int(total) * factor + offset

    assert fleet.launch(in_main(cell), 2, workers=2, gpus="none") == [(0, 16), (1, 16)]
    assert "printed by a worker" in capfd.readouterr().out


def test_the_error_of_a_worker_comes_back_with_its_traceback() -> None:
    def cell() -> None:
        fleet.init(is_collective=True)
        if fleet.worker_index() == 1:
            raise KeyError("no such column")
        fleet.barrier_worker()

    with pytest.raises(RuntimeError, match=r"worker 1 of fleet\.launch") as caught:
        fleet.launch(in_main(cell), workers=2, gpus="none")
    assert 'raise KeyError("no such column")' in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


def test_what_cannot_be_sent_is_named() -> None:
    with pytest.raises(TypeError, match="cannot send print"):
        fleet.launch(print, threading.Lock())
    with pytest.raises(ValueError, match="above 0"):
        fleet.launch(print, workers=0)


def test_workers_launch_no_workers() -> None:
    def cell() -> None:
        fleet.launch(print)

    with pytest.raises(RuntimeError, match="was called on a worker"):
        fleet.launch(in_main(cell), gpus="none")


CELLS = [
    "import torch\nimport fleetx as fleet\nfrom torch.nn import functional as F",
    "WIDTH = 4\n\nclass Net(torch.nn.Linear):\n    def __init__(self):\n"
    "        super().__init__(WIDTH, 2)",
    "def train(updates):\n"
    "    fleet.init(is_collective=True)\n"
    "    model = fleet.distributed_model(Net())\n"
    "    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))\n"
    "    for _ in range(updates):\n"
    "        loss = F.cross_entropy(model(torch.ones(8, WIDTH)), torch.zeros(8).long())\n"
    "        optimizer.minimize(loss)\n"
    "    fleet.util.print_on_rank(f'trained by {fleet.worker_num()}', 0)\n"
    "    return float(loss)",
    "losses = fleet.launch(train, 3, workers=2, gpus='none')\n"
    "assert len(losses) == 2 and losses[0] == losses[1] < 1, losses",
]


@pytest.mark.rare
def test_a_real_notebook(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    made: Any = nbformat.v4
    notebook = made.new_notebook(cells=[made.new_code_cell(cell) for cell in CELLS])
    folder: dict[str, Any] = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=folder).execute()
    assert "trained by 2" in json.dumps(notebook)
