"""Workers with fewer batches than others, where no launcher of fleetx explains it."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from fleetx.launch import parting
from fleetx.roles import activity
from fleetx.roles.barrier import Barrier
from tests.programs import python
from tests.roles.test_crews import SCRIPTS, bare

ADVICE = r"same number of batches: deal the data out with fleet.distributed_loader\(\)"
GONE = "worker 0, which keeps what workers say of themselves, is gone"


@pytest.mark.parametrize(("share", "said"), [("53", "worker 1 has ended after 3"), ("35", GONE)])
def test_who_was_started_by_hand_says_that_another_has_ended(
    crew: Any, port: int, share: str, said: str
) -> None:
    """The store goes with worker 0, soon after it."""
    ended = crew("uneven.py", [bare(port, rank) for rank in range(2)], *share)
    well, broken = sorted(ended, key=lambda one: one.code)
    assert [well.code, broken.code] == [0, 1]
    assert "closed by peer" in broken.err
    found = rf"fleetx: .*({said}|worker 0 has ended after 3).*, in batch 4.*{ADVICE}"
    assert re.search(found, broken.err), broken.err
    assert "fleetx: worker" not in well.err


def test_who_was_started_by_torchrun_says_that_another_has_ended(launched: Any) -> None:
    script = str(SCRIPTS / "uneven.py")
    command = [python(), "-m", "torch.distributed.run", "--nproc_per_node=2", script, "3", "5"]
    ended = launched(command)
    assert ended.code == 1
    found = rf"fleetx: worker 0 has ended after 3 batches. This is worker 1, in batch 4.*{ADVICE}"
    assert re.search(found, ended.err), ended.err


def test_other_errors_are_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of workers whose partners are there."""
    shown: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda _, error, __: shown.append(error))
    activity.forget()
    store = HashStore()
    here, other = Barrier(store, 0, 2), Barrier(store, 1, 2)
    explained = parting.Explained(here)
    broken = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    for error in (ValueError(broken), RuntimeError("shapes differ"), RuntimeError(broken)):
        explained(type(error), error, None)
    assert not any(hasattr(error, "__notes__") for error in shown)
    other.close()
    explained(RuntimeError, RuntimeError(broken), None)
    assert "worker 1 has ended after 0 batches" in shown[-1].__notes__[0]
    monkeypatch.setenv("FLEETX_ACTIVITY", str(Path("said")))  # a launcher will say it
    explained(RuntimeError, RuntimeError(broken), None)
    assert not hasattr(shown[-1], "__notes__")
    explained.forget()
    assert sys.excepthook is not explained
