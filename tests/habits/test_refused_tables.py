"""Models that would learn other weights with servers than without: refused, or made to fit."""

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

import fleetx as fleet
from fleetx import roles
from fleetx.nn import SparseEmbedding, load_inference_model
from fleetx.plan.error import PlanError
from tests.habits.test_loops_with_servers import job
from tests.ps.team import TOKEN, team

WIDTH = 4
IDS = torch.arange(6).view(3, 2)


class Net(nn.Module):
    """Rows, and two layers that may be tied."""

    def __init__(self) -> None:
        super().__init__()
        self.words: nn.Module = SparseEmbedding(WIDTH, name="words", pooling="sum")
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.down(self.up(self.words(ids)).tanh())
        return found


def begun(model: nn.Module, parameters: Any = None) -> Any:
    """The optimizer of a model, which is distributed now."""
    model = fleet.distributed_model(model)
    rule = torch.optim.SGD(model.parameters() if parameters is None else parameters, lr=0.5)
    optimizer = fleet.distributed_optimizer(rule)
    fleet.init_worker()
    return optimizer


def train(model: nn.Module, optimizer: Any, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.minimize((model(IDS) - 1).square().mean())


def tied(model: Any) -> None:
    model.down.weight.data = model.up.weight.data


def turned(model: Any) -> None:
    model.down.weight.data = model.up.weight.data.t()


def in_part(model: Any) -> None:
    model.down.bias.data = model.up.weight.data[2]


@pytest.mark.parametrize("tie", [tied, turned, in_part])
@pytest.mark.parametrize("mode", [{}, {"a_sync": {"k_steps": 2}}], ids=["sync", "geo"])
def test_parameters_over_the_same_numbers_are_refused(
    tie: Callable[[Any], None], mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The servers would move each by itself, and the last one written would win."""
    with job(monkeypatch, 2, **mode):
        model = Net()
        tie(model)
        with pytest.raises(PlanError, match=r"'up\.weight' and 'down\.\w+' are two parameters ov"):
            begun(model)


def test_one_parameter_in_two_places_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with job(monkeypatch):
        model = Net()
        model.down.weight = model.up.weight
        train(model, begun(model))
        assert model.down.weight is model.up.weight


class WithTarget(Net):
    """Computes a target with a copy of its rows, as bootstrapping methods do."""

    def __init__(self) -> None:
        super().__init__()
        self.target = copy.deepcopy(self.words)

    @override
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) - self.target(ids).detach()


def test_copies_of_a_layer_are_not_merged_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    with job(monkeypatch):
        words = r"'words' and 'target' are copies of one layer.*table 'words'.*name='words_2'"
        with pytest.raises(ValueError, match=words):
            begun(WithTarget())
    with job(monkeypatch):
        model = WithTarget()
        model.target = model.words  # which says that they are one
        train(model, begun(model))


def test_a_copy_of_a_whole_model_is_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    with job(monkeypatch):
        model = copy.deepcopy(Net())
        train(model, begun(model))


class Given(nn.Module):
    """Two fields whose tables were given one name by mistake."""

    def __init__(self, *rows: Tensor, **options: Any) -> None:
        super().__init__()
        self.fields = nn.ModuleList(
            SparseEmbedding.from_pretrained(each, freeze=False, name="words", **options)
            for each in rows
        )

    def forward(self, ids: Tensor) -> Tensor:
        return torch.stack([field(ids) for field in self.fields]).sum((0, 2))


def test_a_table_does_not_begin_with_two_rows_for_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(6, WIDTH)
    other = rows.clone()
    other[4] += 1
    words = r"'fields\.0' and 'fields\.1' are to begin with different rows of id 4.*'words'"
    with job(monkeypatch), pytest.raises(ValueError, match=words):
        begun(Given(rows, other))
    with job(monkeypatch):
        model = Given(rows, rows.clone())  # as layers over one weight have them
        train(model, begun(model), 1)


class WithEmbedding(Net):
    """Some rows are ordinary parameters."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.small = kind(6, WIDTH, **options)

    @override
    def forward(self, ids: Tensor) -> Tensor:
        rows = self.small(ids)
        return super().forward(ids) + (rows if rows.dim() == 2 else rows.sum(1))


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_norm": 0.1}, r"'small' has max_norm = 0\.1.*servers bring weights.*shorten"),
        ({"sparse": True}, r"'small' has sparse = True.*servers take whole ones.*sparse=False"),
    ],
    ids=["max_norm", "sparse"],
)
def test_embeddings_that_servers_cannot_train_are_named(
    kind: Any, options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job(monkeypatch), pytest.raises(PlanError, match=words):
        begun(WithEmbedding(kind, **options))


@pytest.mark.parametrize("workers", [1, 2])
def test_counts_of_a_share_are_not_taken_for_those_of_the_batch(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEETX_PS_TOKEN", TOKEN.decode())
    model = WithEmbedding(nn.Embedding, scale_grad_by_freq=True)
    with team(1, workers) as here:
        maker = fleet.UserDefinedRoleMaker(
            current_id=0,
            role=fleet.Role.WORKER,
            worker_num=workers,
            server_endpoints=here.endpoints,
        )
        fleet.init(maker, strategy=fleet.DistributedStrategy())
        try:
            optimizer = begun(model)
            if workers == 1:
                train(model, optimizer)
            else:
                with pytest.raises(PlanError, match=r"'small' has scale_grad_by_freq.*own shares"):
                    train(model, optimizer)
        finally:
            servers_left()


def servers_left() -> None:
    fleet.stop_worker()
    roles.stop()


class Projected(Net):
    """A projection that nobody trains, drawn when the model is made."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed = nn.Parameter(torch.randn(WIDTH, WIDTH), requires_grad=False)

    @override
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) @ self.fixed


def trained_of(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


def judged(model: nn.Module) -> Tensor:
    with torch.no_grad():
        found: Tensor = model.eval()(IDS).clone()
    model.train()
    return found


@pytest.mark.parametrize("begins", [False, True], ids=["loads", "begins"])
def test_saves_have_what_nobody_trains(
    begins: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who went on from a save in another process had the projection of that one."""
    with job(monkeypatch):
        model = Projected()
        train(model, begun(model, trained_of(model)))
        fleet.save_persistables(str(tmp_path))
        wanted = judged(model)
    with job(monkeypatch) as here:
        for handler in here.handlers if begins else ():
            handler.preload(tmp_path, None)
        model = Projected()
        begun(model, trained_of(model))
        if not begins:
            fleet.load_persistables(str(tmp_path))
        torch.testing.assert_close(judged(model), wanted)


def test_a_save_of_parameters_that_are_frozen_now_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with job(monkeypatch):
        model = Net()
        train(model, begun(model))
        fleet.save_persistables(str(tmp_path))
        wanted = judged(model)
    with job(monkeypatch), caplog.at_level(logging.WARNING):
        model = Net()
        model.up.requires_grad_(False)
        begun(model)  # which has all parameters
        fleet.load_persistables(str(tmp_path))
        torch.testing.assert_close(judged(model), wanted)
        assert "does not bring" not in caplog.text
    with job(monkeypatch), caplog.at_level(logging.WARNING):
        model = Net()
        model.up.requires_grad_(False)
        begun(model, trained_of(model))
        fleet.load_persistables(str(tmp_path))
        assert "does not bring up.weight, up.bias, which the optimizer does not" in caplog.text


class Filtered(Net):
    """Its filter is complex, and so is what it has seen."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(WIDTH // 2 + 1, dtype=torch.complex64))
        self.register_buffer("seen", torch.tensor(1 + 2j))

    @override
    def forward(self, ids: Tensor) -> Tensor:
        found = super().forward(ids)
        return torch.fft.irfft(torch.fft.rfft(found) * self.filter, n=WIDTH) * self.seen.imag


def test_complex_parameters_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file for inference held the whole parts of their real parts."""
    with job(monkeypatch):
        model = Filtered()
        optimizer = begun(model)
        train(model, optimizer)
        fleet.save_inference_model(str(tmp_path))
        wanted = judged(model)
        model.filter.data[0] *= 1j
        with pytest.raises(RuntimeError, match="'filter' was written to"):
            train(model, optimizer)
    assert model.filter.imag.abs().max() > 0
    torch.testing.assert_close(judged(load_inference_model(tmp_path, Filtered())), wanted)
