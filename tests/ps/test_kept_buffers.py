"""Running statistics of models whose parameters are on servers: saves have them."""

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fleetx as fleet
from fleetx.nn import Normal, SparseEmbedding
from fleetx.ps.tables import save_folder, saves
from tests.habits.test_loops_with_servers import job

IDS = torch.arange(24).view(12, 2) % 7


class Normed(nn.Module):
    """As the networks of DeepFM and DCN are in tutorials."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words = SparseEmbedding(4, name="words", initializer=Normal(0.5))
        self.net = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))
        self.register_buffer("seen", torch.zeros((), dtype=torch.bool))

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.net(self.words(ids).flatten(1)).squeeze(1)
        return found


Trained = tuple[Normed, Any]


def begun(seed: int = 0) -> Trained:
    torch.manual_seed(seed)
    model = fleet.distributed_model(Normed())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    fleet.init_worker()
    return model, optimizer


def train(model: Normed, optimizer: Any, batches: int = 3) -> None:
    for number in range(batches):
        loss = (model(IDS.roll(number, 0)) - number).square().mean()
        optimizer.minimize(loss)
    model.seen.fill_(True)


def judged(model: Normed) -> Tensor:
    with torch.no_grad():
        found = model.eval()(IDS).clone()
    model.train()
    return found


def state(model: Normed) -> dict[str, Tensor]:
    return {name: copy.deepcopy(buffer) for name, buffer in model.named_buffers()}


def test_early_stopping_returns_to_the_statistics_of_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters were those of the best epoch, and statistics those of the last."""
    with job(monkeypatch, 2):
        model, optimizer = begun()
        train(model, optimizer)
        wanted, statistics = judged(model), state(model)
        fleet.save_persistables(str(tmp_path))
        train(model, optimizer, 5)
        assert not torch.allclose(judged(model), wanted)
        fleet.load_persistables(str(tmp_path))
        torch.testing.assert_close(judged(model), wanted, rtol=0, atol=0)
        torch.testing.assert_close(state(model), statistics, rtol=0, atol=0)
        train(model, optimizer, 1)
        kept = state(model)
        fleet.load_persistables(str(tmp_path), tables=["words"])
        torch.testing.assert_close(state(model), kept, rtol=0, atol=0)


def test_a_delta_brings_the_statistics_of_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, delta = str(tmp_path / "full"), str(tmp_path / "delta")
    with job(monkeypatch, 2):
        model, optimizer = begun()
        train(model, optimizer)
        fleet.save_persistables(full)
        train(model, optimizer)
        fleet.save_persistables(delta, mode="delta")
        wanted = judged(model)
    with job(monkeypatch, 1):
        other, _ = begun(seed=1)
        fleet.load_persistables(full)
        assert not torch.allclose(judged(other), wanted)
        fleet.load_persistables(delta)
        torch.testing.assert_close(judged(other), wanted)


@pytest.mark.parametrize("exists", [True, False])
def test_a_job_begins_with_the_statistics_of_its_save(
    exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its model was made before the worker met the servers, or after."""
    with job(monkeypatch, 2):
        model, optimizer = begun()
        train(model, optimizer)
        fleet.save_persistables(str(tmp_path))
        wanted, statistics = judged(model), state(model)
    with job(monkeypatch, 2) as here:
        for handler in here.handlers:
            handler.preload(tmp_path, None)
        if not exists:
            fleet.init_worker()
        model, optimizer = begun(seed=1)
        if not exists:
            judged(model)  # meets the servers
        torch.testing.assert_close(judged(model), wanted, rtol=0, atol=0)
        torch.testing.assert_close(state(model), statistics, rtol=0, atol=0)


def test_a_save_that_dies_leaves_statistics_and_tables_of_one_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job(monkeypatch, 2):
        model, optimizer = begun()
        train(model, optimizer)
        fleet.save_persistables(str(tmp_path))
        wanted = judged(model)
        train(model, optimizer)
        write = save_folder.write_json

        def dies(path: Path, value: Any) -> str:
            if path == tmp_path / "manifest.json":  # which is the last thing of a save
                raise KeyboardInterrupt
            return write(path, value)

        with monkeypatch.context() as patch:
            patch.setattr(save_folder, "write_json", dies)
            with pytest.raises(KeyboardInterrupt):
                fleet.save_persistables(str(tmp_path))
        assert len([*tmp_path.glob("buffers-*")]) == 2
        fleet.load_persistables(str(tmp_path))
        torch.testing.assert_close(judged(model), wanted, rtol=0, atol=0)
        train(model, optimizer)
        fleet.save_persistables(str(tmp_path))
        (kept,) = tmp_path.glob("buffers-*")
        os.unlink(kept)
        with pytest.raises(ValueError, match=r"running statistics of the save; copy the whole"):
            fleet.load_persistables(str(tmp_path))


def test_saves_without_statistics_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of checkpoints are elsewhere, and earlier versions wrote none."""
    written = saves.write_list

    def as_before(root: Path, answers: Any, *, delta: bool, buffers: Any) -> Any:
        assert buffers
        return written(root, answers, delta=delta)

    with job(monkeypatch, 1):
        model, optimizer = begun()
        train(model, optimizer)
        with monkeypatch.context() as patch:
            patch.setattr(saves, "write_list", as_before)
            fleet.save_persistables(str(tmp_path))
        fleet.load_persistables(str(tmp_path))
    assert "holds nothing of seen, net.1.running_mean, net.1.running_var, which stay" in caplog.text
