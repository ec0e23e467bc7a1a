"""fleet.init() without is_collective, in a process that was started without servers."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fleetx as fleet
from fleetx import static
from fleetx.testing import world
from tests.programs import python

ADVICE = re.escape(
    "To train without servers call fleet.init(is_collective=True); to train with "
    "them type: fleetrun --server_num 1 --worker_num 1 "
)


def program() -> None:
    with static.program_guard(static.Program(), static.Program()):
        loss = static.nn.fc(static.data("x", (None, 4)), 1).mean()
        fleet.distributed_optimizer(static.Optimizer(torch.optim.SGD, lr=0.1)).minimize(loss)


CALLS: dict[str, Callable[[], Any]] = {
    "distributed_model": lambda: fleet.distributed_model(nn.Linear(4, 2)),
    "init_worker": fleet.init_worker,
    "init_server": fleet.init_server,
    "run_server": fleet.run_server,
    "save_persistables": lambda: fleet.save_persistables("model"),
    "load_persistables": lambda: fleet.load_persistables("model"),
    "server_report": fleet.server_report,
    "shrink": fleet.shrink,
}


DEEDS = {"distributed_model": "training"}


@pytest.mark.parametrize("call", CALLS)
def test_what_needs_servers_says_how_to_do_without_and_how_to_get_them(call: str) -> None:
    def go_on() -> None:
        fleet.init()
        with pytest.raises(
            RuntimeError, match=rf"so {DEEDS.get(call, f'fleet.{call}')}.* {ADVICE}"
        ):
            CALLS[call]()

    world(1).run(go_on)


@world(1)
def test_a_program_says_it_as_well() -> None:
    fleet.init()
    with pytest.raises(RuntimeError, match=ADVICE):
        program()


def test_the_first_snippet_of_the_page_names_the_command_to_type(tmp_path: Path) -> None:
    page = Path(__file__).parent.parent.parent / "docs" / "parameter_server.md"
    found = re.search(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert found is not None
    script = tmp_path / "words.py"
    script.write_text(found.group(1))
    line = [python(), str(script)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith("type: fleetrun --server_num 1 --worker_num 1 words.py")
