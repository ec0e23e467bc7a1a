"""Layers over the same ids get their rows in one message."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fleetx.nn import SparseEmbedding
from fleetx.ps.wire.channel import Channel, Request
from fleetx.ps.wire.frames import Op
from fleetx.ps.worker.carrier import Carrier
from fleetx.ps.worker.carrier_async import HalfAsyncCarrier
from tests.ps.team import Team, carried, team, train

IDS = torch.arange(12).reshape(6, 2) * 1000


class Two(nn.Module):
    """Two tables over the same ids; the second one may be left out."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.first = SparseEmbedding(3, name="first", pooling="sum")
        self.second = SparseEmbedding(1, name="second", pooling="sum", **options)
        self.both = True

    def forward(self, ids: Tensor) -> Tensor:
        score = self.first(ids).sum(-1, keepdim=True)
        return score + self.second(ids) if self.both else score


@pytest.fixture
def pulls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pulls each message has that has any."""
    found: list[int] = []
    whole = Channel.send_all

    def counted(self: Channel, requests: list[Request]) -> None:
        if number := sum(request.frame.op == Op.PULL for request in requests):
            found.append(number)
        whole(self, requests)

    monkeypatch.setattr(Channel, "send_all", counted)
    return found


def steps(here: Team, model: Two, ids: list[Tensor], kind: type[Carrier] = Carrier) -> Carrier:
    """Train on batches."""
    worker = here.worker()
    here.opened.append(worker.client)
    carrier = carried(model, worker, kind, lr=0.1)
    for batch in ids:
        train(model, carrier, batch, torch.ones(len(batch)))
    return carrier


def updates_of(here: Team, name: str) -> dict[str, Any]:
    tables: dict[str, dict[str, Any]] = here.handlers[0].report()["tables"]
    return tables[name]


@pytest.mark.parametrize("kind", [Carrier, HalfAsyncCarrier])
def test_rows_of_the_same_ids_come_in_one_message(pulls: list[int], kind: type[Carrier]) -> None:
    with team() as here:
        steps(here, Two(), [IDS, IDS + 1, IDS + 2, IDS + 2], kind).close()
        assert updates_of(here, "second")["rows"] == 36
    assert pulls == [1, 1, 2, 2, 2], "the first batch shows who is asked together"


def test_it_learns_what_it_would_with_a_message_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for together in (True, False):
        if not together:
            monkeypatch.setattr("fleetx.ps.worker.companions.Companions.of", lambda *_: [])
        with team() as here:
            torch.manual_seed(0)
            model = Two()
            carrier = steps(here, model, [IDS, IDS + 1, IDS, IDS, IDS + 1])
            found.append(model(IDS).detach())
            carrier.close()
    assert torch.equal(*found)


def test_a_layer_that_is_left_out_gets_no_rows() -> None:
    with team() as here:
        model = Two()
        carrier = steps(here, model, [IDS, IDS])
        model.both = False
        train(model, carrier, IDS + 1, torch.ones(6))
        carrier.close()
        assert updates_of(here, "first")["rows"] == 24
        assert updates_of(here, "second")["rows"] == 12


def test_rows_that_came_early_are_not_kept_over_an_update() -> None:
    with team() as here:
        model = Two()
        carrier = steps(here, model, [IDS, IDS])
        model.both = False
        train(model, carrier, IDS, torch.ones(6))  # those of the second table come, too
        model.both = True
        before = model.second(IDS).detach()
        train(model, carrier, IDS, torch.ones(6))
        assert not torch.equal(model.second(IDS).detach(), before)
        carrier.close()


def test_rows_that_are_short_or_on_a_disk_come_by_themselves(pulls: list[int]) -> None:
    with team() as here:
        steps(here, Two(dtype="float16"), [IDS, IDS + 1, IDS + 2]).close()
    assert set(pulls) == {1}
