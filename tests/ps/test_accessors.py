"""Shows and clicks decide what is saved and what stays, under the names that Paddle has for it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import fleetx as fleet
from fleetx import roles
from fleetx.nn import Adagrad, ShowClickEntry, SparseEmbedding
from tests.ps.team import TOKEN, Team, team


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    """Two servers, and this process as the only worker of their job."""
    monkeypatch.setenv("FLEETX_PS_TOKEN", TOKEN.decode())
    with team(2) as made:
        yield made
        if roles.started():
            fleet.stop_worker()
            roles.stop()


class Net(nn.Module):
    def __init__(self, entry: ShowClickEntry | None = None, **options: Any) -> None:
        super().__init__()
        self.words = SparseEmbedding(2, name="words", entry=entry, **options)

    def forward(self, ids: torch.Tensor, **counts: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.words(ids, **counts)
        return rows


def begun(here: Team, model: Net, **options: Any) -> tuple[Net, Any]:
    maker = fleet.UserDefinedRoleMaker(
        current_id=0, role=fleet.Role.WORKER, worker_num=1, server_endpoints=here.endpoints
    )
    fleet.init(maker)
    fleet.init_worker()
    made = fleet.distributed_model(model)
    groups = options.pop("groups", made.parameters())
    return made, fleet.distributed_optimizer(torch.optim.SGD(groups, lr=1.0, **options))


def meet(net: Net, optimizer: Any, ids: list[int], clicks: list[float] | None = None) -> None:
    """Show some ids once, and click some of them."""
    counts = {} if clicks is None else {"click": torch.tensor(clicks)}
    optimizer.minimize(net(torch.tensor(ids), **counts).sum())


def saved(folder: Path) -> list[int]:
    files = folder.glob("words/server-*/rows-*.safetensors")
    return sorted(int(i) for file in files for i in load_file(file)["ids"])


def test_modes_write_all_rows_or_those_that_are_worth_it(here: Team, tmp_path: Path) -> None:
    entry = ShowClickEntry(base_threshold=1.0, delta_keep_days=1, lowest=0.0)
    net, optimizer = begun(here, Net(entry))
    meet(net, optimizer, [1, 2, 3, 4], [1.0, 1.0, 0.0, 0.0])  # scores 1, 1, 0.1, 0.1
    folders = {mode: tmp_path / str(mode) for mode in (0, 1, 2, 3)}
    fleet.save_persistables(str(folders[0]), mode=0)
    fleet.save_persistables(str(folders[2]), mode=2)
    fleet.save_persistables(str(folders[3]), mode="daily")
    assert saved(folders[0]) == saved(folders[3]) == [1, 2, 3, 4]
    assert saved(folders[2]) == [1, 2]
    meet(net, optimizer, [2, 3], [1.0, 1.0])
    meet(net, optimizer, [4])
    fleet.save_persistables(str(folders[1]), mode=1)
    assert saved(folders[1]) == [2, 3], "4 has changed and is worth little, 1 has not changed"
    for _ in range(2):
        fleet.shrink(30)
    meet(net, optimizer, [3])
    fleet.save_persistables(str(tmp_path / "later"), mode="base")
    assert saved(tmp_path / "later") == [3], "the others were not met within a day"


def test_rows_go_after_the_days_that_their_table_says(here: Team) -> None:
    entry = ShowClickEntry(delete_after_unseen_days=2, lowest=0.0)
    net, optimizer = begun(here, Net(entry))
    meet(net, optimizer, [1, 2])
    assert fleet.shrink() == 0
    meet(net, optimizer, [2])
    assert fleet.shrink() == 0
    assert fleet.shrink() == 1, "two days have ended without 1"
    assert sum(each["tables"]["words"]["rows"] for each in fleet.server_report()) == 1


def test_counts_fade_with_every_day_and_rows_of_low_score_go(here: Team) -> None:
    entry = ShowClickEntry(decay=0.5, lowest=0.4)
    net, optimizer = begun(here, Net(entry))
    meet(net, optimizer, [1, 2], [1.0, 0.0])
    gone = [fleet.shrink() for _ in range(3)]
    # Scores are 1 and 0.1, and halves of them when the first day has ended.
    assert gone == [1, 1, 0]


def test_a_slot_has_the_rate_of_its_rule_or_of_its_group(here: Team) -> None:
    class Slots(Net):
        def __init__(self) -> None:
            super().__init__()
            self.user = SparseEmbedding(2, name="user", rule=Adagrad(0.5))
            self.item = SparseEmbedding(2, name="item")

        def forward(self, ids: torch.Tensor, **_: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.words(ids), self.user(ids), self.item(ids)])

    model = Slots()
    groups = [
        {"params": [*model.words.parameters(), *model.user.parameters()]},
        {"params": model.item.parameters(), "lr": 0.25},
    ]
    net, optimizer = begun(here, model, groups=groups)
    ids = torch.tensor([7])
    before = model.eval()(ids)
    model.train()
    meet(net, optimizer, [7])
    moved = before - model.eval()(ids)
    expected = np.repeat([1.0, 0.5, 0.25], 2).reshape(3, 2)
    np.testing.assert_allclose(moved.detach().numpy(), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"delta_threshold": 0.25}, "rows that changed are all written here"),
        ({"base_threshold": -1.0}, "base_threshold=-1.0"),
        ({"delta_keep_days": 0}, "whole number of days from 1"),
        ({"delete_after_unseen_days": True}, "whole number of days from 1"),
    ],
)
def test_what_is_not_in_force_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ShowClickEntry(**given)


def test_modes_that_do_not_exist_are_refused(here: Team, tmp_path: Path) -> None:
    net, optimizer = begun(here, Net())
    meet(net, optimizer, [1])
    for mode in (4, 5, True, "everything"):
        with pytest.raises(ValueError, match="use 0 or 'full', 1 or 'delta', 2 or 'base', 3 or"):
            fleet.save_persistables(str(tmp_path), mode=mode)


def test_a_mode_that_is_given_by_its_place_is_in_force(here: Team, tmp_path: Path) -> None:
    net, optimizer = begun(here, Net())
    meet(net, optimizer, [1])
    fleet.save_persistables(str(tmp_path / "0"))
    meet(net, optimizer, [2])
    for number, given in enumerate([("delta",), (1,), (None, None, 1)]):
        folder = tmp_path / f"delta-{number}"
        fleet.save_persistables(str(folder), *given)
        assert json.loads((folder / "manifest.json").read_text())["mode"] == "delta"


@pytest.mark.parametrize(
    ("args", "named", "words"),
    [
        ((), {"mod": 1}, r"\(mod=...\) is not known in a job with servers"),
        ((), {"tables": ["words"]}, r"\(tables=...\) is not known"),
        ((1,), {"mode": 2}, "got 1 and 2 for the mode"),
        (("delta", "other"), {}, "got 'delta' and 'other' for the mode"),
    ],
)
def test_what_a_save_does_not_know_is_refused(
    args: tuple[Any, ...], named: dict[str, Any], words: str, here: Team, tmp_path: Path
) -> None:
    net, optimizer = begun(here, Net())
    meet(net, optimizer, [1])
    with pytest.raises(TypeError, match=words):
        fleet.save_persistables(str(tmp_path), *args, **named)
    assert not [*tmp_path.iterdir()]
