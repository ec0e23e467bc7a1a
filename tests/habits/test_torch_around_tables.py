"""What torch offers around a loop, over tables on servers: it does what it did, or says why not."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict
from torch.utils.checkpoint import checkpoint

import fleetx as fleet
from fleetx.nn import SGD, CountFilterEntry, SparseEmbedding
from tests.habits.test_loops_with_servers import in_mode, job, trained


class Replayed(nn.Module):
    """Activations are computed anew in the backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.words = SparseEmbedding(4, name="words", entry=CountFilterEntry(3), rule=SGD(0.5))
        self.head = nn.Linear(4, 1)
        self.reentrant = reentrant

    def _rows(self, ids: Tensor, asks: Tensor) -> Tensor:
        return self.head(self.words(ids)) + asks

    def forward(self, ids: Tensor) -> Any:
        asks = torch.zeros(1, requires_grad=True)  # else the older kind has nothing to do
        return checkpoint(self._rows, ids, asks, use_reentrant=self.reentrant)


@pytest.mark.parametrize("mode", [None, {"k_steps": 0}])
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_replayed_lookup_is_seen_once(
    reentrant: bool, mode: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids got their rows after half as many sightings."""

    def rows() -> int:
        fleet.settle_workers()
        return sum(server["tables"]["words"]["rows"] for server in fleet.server_report())

    with job(monkeypatch, 2, **in_mode(mode)):
        model = fleet.distributed_model(Replayed(reentrant))
        optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.5))
        fleet.init_worker()
        seen = []
        for ids in ([1, 2], [2, 1], [1, 5, 5, 5], [5]):
            optimizer.minimize(model(torch.tensor(ids)).square().mean())
            seen.append(rows())
    assert seen == [0, 0, 2, 2]


def of_the_model(model: nn.Module, optimizer: Any) -> None:
    get_model_state_dict(model)


def of_both(model: nn.Module, optimizer: Any) -> None:
    get_state_dict(model, [])


@pytest.mark.parametrize("ask", [of_the_model, of_both])
def test_states_for_checkpoints_of_torch_are_told_to_lack_rows(
    ask: Callable[[nn.Module, Any], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As torch.distributed.checkpoint saves them: they held no rows, in silence."""
    with job(monkeypatch):
        model, optimizer = trained()
        with caplog.at_level(logging.WARNING):
            ask(model, optimizer)
        said = caplog.text
    assert f"{__file__}:" in said
    assert "holds no rows: those of 2 tables (user, …) are on the servers" in said
