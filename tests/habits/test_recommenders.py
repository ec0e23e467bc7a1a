"""Models of a library for recommenders, whose embeddings are exchanged for tables on servers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.habits.scripts import recommender
from tests.launch.conftest import Launcher
from tests.programs import python


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path, python())
    yield launcher
    launcher.close()


def plain(name: str) -> tuple[Tensor, Tensor]:
    """What the model predicts before and after it was trained in one process."""
    model = recommender.fixed(recommender.make(name))
    for path in recommender.tables(model):
        torch.nn.init.constant_(model.get_parameter(f"{path}.weight"), recommender.FIRST)
    before = model(recommender.asked()).detach()
    recommender.train(model, torch.optim.SGD(model.parameters(), lr=1.0), slice(None))
    return before, model(recommender.asked()).detach()


@pytest.mark.parametrize("name", ["deepfm", "xdeepfm"])
def test_tables_on_servers_learn_what_embeddings_would(
    launcher: Launcher, tmp_path: Path, name: str
) -> None:
    flags = ["--server_num=2", "--worker_num=2", recommender.__file__]
    outcome = launcher.run(*flags, name, "predicted.pt")
    assert outcome.code == 0, outcome.err
    before, wanted = plain(name)
    assert (wanted - before).abs().max() > 0.01
    torch.testing.assert_close(torch.load(tmp_path / "predicted.pt"), wanted, rtol=1e-4, atol=1e-5)
