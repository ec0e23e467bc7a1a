"""A run that goes on by itself: when workers save, on how many they go on, and how they leave."""

import json
import logging
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import fleetx as fleet
from fleetx import roles, static
from fleetx.io import finish_checkpoints, save_moments
from fleetx.plan.error import PlanError
from fleetx.roles.leaving import Left
from fleetx.testing import world
from tests.io.programs import started

SAMPLES, WORDS, LENGTH = 60, 31, 6


class Sentences(Dataset[Any]):
    """Words that belong to the number of the sample."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return (index * 7 + torch.arange(LENGTH) * (1 + index % 5)) % WORDS, index


def gpt2() -> Any:
    from tests.libraries import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        n_positions=LENGTH,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return transformers.GPT2LMHeadModel(config)


class Small(nn.Module):
    """The same call as that of a language model of transformers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> Any:
        scores = self.head(self.embed(words))[:, :-1]
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), labels[:, 1:].flatten())
        return SimpleNamespace(loss=loss)


class Run:
    """A loop as people write it, with what an update saw."""

    def __init__(
        self, folder: Path, batch: int, merge: int = 1, kind: str = "", **options: Any
    ) -> None:
        strategy = fleet.DistributedStrategy()
        strategy.gradient_merge = merge > 1
        strategy.gradient_merge_configs = {"k_steps": merge}
        fleet.init(is_collective=True, strategy=strategy)
        self.manager = fleet.CheckpointManager(folder, **options)
        plain_model = gpt2() if "gpt2" in kind else Small()
        if "program" in kind:
            self._record(plain_model)
        else:
            self.model = fleet.distributed_model(plain_model)
            adam = torch.optim.AdamW(self.model.parameters(), lr=0.01)
            self.optimizer = fleet.distributed_optimizer(adam)
            self.update = self._eager
        order = torch.Generator().manual_seed(3)
        plain = DataLoader(Sentences(), batch_size=batch, shuffle=True, generator=order)
        self.loader = fleet.distributed_loader(plain)
        self.found = self.manager.load(self.model, self.optimizer, parts={"loader": self.loader})
        self.seen: list[Any] = []
        self.batches = 0

    model: Any
    optimizer: Any
    update: Callable[[torch.Tensor], float]
    """Of a batch; its loss."""

    def _eager(self, words: torch.Tensor) -> float:
        loss = self.model(words, labels=words).loss
        self.optimizer.minimize(loss)
        return float(loss.item())

    def _record(self, plain_model: Any) -> None:
        """The same as a program, with its executor."""
        static.reset()
        words = static.data("words", [None, LENGTH], "int64")
        loss = plain_model(words, labels=words).loss
        adam = static.Optimizer(torch.optim.AdamW, lr=0.01)
        fleet.distributed_optimizer(adam).minimize(loss)
        self.model, self.optimizer = static.default_main_program(), started()
        self.update = lambda batch: float(
            self.optimizer.run(self.model, {"words": batch.numpy()}, [loss])[0]
        )

    def train(self, until: int) -> list[Any]:
        """Of each update: its number, its samples, and their mean loss."""
        losses: list[float] = []
        samples: list[int] = []
        before = self.manager.updates
        while True:
            for words, indices in self.loader:
                losses.append(self.update(words))
                samples += indices.tolist()
                self.batches += 1
                if self.manager.updates > before:
                    before = self.manager.updates
                    told = fleet.util.all_gather([samples, sum(losses) / len(losses)])
                    all_samples = sorted(index for each, _ in told for index in each)
                    mean = sum(loss for _, loss in told) / len(told)
                    self.seen.append((before, all_samples, mean))
                    samples, losses = [], []
                self.manager.step()
                if before == until:
                    return self.seen


def trained(folder: Path, until: int, batch: int, merge: int, kind: str) -> list[Any]:
    run = Run(folder, batch, merge, kind)
    seen = run.train(until)
    run.manager.save(wait=True)
    return seen


def moved(
    folder: Path, crews: Sequence[int], batch: int, merge: int = 1, *, kind: str = ""
) -> None:
    """Two updates on each crew in turn must be what they are without a change."""
    until = 2 * len(crews)
    straight = world(crews[0]).run(trained, folder / "straight", until, batch, merge, kind)[0]
    found: list[Any] = []
    for number, crew in enumerate(crews):
        until = 2 * number + 2
        found += world(crew).run(trained, folder / "moved", until, batch, merge, kind)[0]
    assert [(update, samples) for update, samples, _ in found] == [
        (update, samples) for update, samples, _ in straight
    ]
    assert [loss for *_, loss in found] == pytest.approx([loss for *_, loss in straight], rel=2e-5)


def test_an_update_has_its_samples_on_fewer_and_more_workers(tmp_path: Path) -> None:
    # Sixty samples are two and a half updates: the halves make an update of their own.
    moved(tmp_path, (2, 1, 2), batch=12)
    assert json.loads((tmp_path / "moved" / "run.json").read_text()) == {"shares": 2, "merge": 1}


@pytest.mark.rare
def test_an_update_has_its_samples_on_many_numbers_of_workers(tmp_path: Path) -> None:
    moved(tmp_path / "1", (4, 2, 3, 1, 4), batch=6)
    moved(tmp_path / "2", (1, 2, 4, 3), batch=12)
    moved(tmp_path / "3", (2, 4, 1, 2), batch=3, merge=2)


@pytest.mark.rare
def test_gpt2_goes_on_on_fewer_and_more_workers(tmp_path: Path) -> None:
    moved(tmp_path, (2, 1, 2), batch=12, kind="gpt2")


def test_a_program_goes_on(tmp_path: Path) -> None:
    moved(tmp_path, (1, 1), batch=12, kind="program")


@pytest.mark.rare
def test_a_program_of_gpt2_goes_on_on_fewer_and_more_workers(tmp_path: Path) -> None:
    moved(tmp_path, (2, 1, 4), batch=12, kind="program of gpt2")


def uneven(folder: Path) -> list[str]:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("fleetx").addHandler(handler)
    Run(folder, batch=5, shares=4).train(1)
    logging.getLogger("fleetx").removeHandler(handler)
    return said


@pytest.mark.rare
def test_a_sentence_says_what_cannot_be_kept(tmp_path: Path) -> None:
    said = "\n".join(world(3).run(uneven, tmp_path)[0])
    assert "meant for 4 shares of the data, and there are 3: an update takes 2 batches" in said
    assert "an update takes 0.9 times as many samples as before" in said
    assert "each worker takes 3 at once, and 3.33333 would be the same" in said


def told_to_stop(folder: Path) -> Any:
    """One worker gets SIGTERM, and all leave after the same update."""
    run = Run(folder, batch=12, seconds=3600, keep=2)
    run.train(2)
    assert not list(folder.glob("checkpoint-*")), "nothing was due"
    if fleet.worker_index() == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Left) as left:
        run.train(200)
    assert left.value.code == 75
    assert "worker 1 was told to stop by SIGTERM" in left.value.sentence
    here = run.manager.updates
    assert set(fleet.util.all_gather(here)) == {here}, "all left after the same update"
    assert [path.name for path in folder.glob("checkpoint-*")] == [f"checkpoint-{here}"]
    assert here < 2 + 2 * save_moments.FARTHEST
    roles.stop()
    again = Run(folder, batch=12)
    assert again.found == {"step": here, "workers": 2}
    assert again.train(here + 1)[0][0] == here + 1
    return here


def test_all_workers_save_and_leave_when_one_is_told_to_stop(tmp_path: Path) -> None:
    world(2).run(told_to_stop, tmp_path)


def by_the_clock(folder: Path) -> list[int]:
    """Worker 0 alone has a clock that goes, half a second for each update."""
    clock = Clock()
    with patch.object(save_moments, "time", clock):
        run = Run(folder, batch=12, seconds=10.0, keep=100)
        for update in range(1, 43):
            clock.now += 0.5 * (fleet.worker_index() == 0)
            run.train(update)
            finish_checkpoints()  # or a slow disk would put the next one off
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))


class Clock:
    """Seconds that a test chooses."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_workers_save_by_the_clock_of_the_first(tmp_path: Path) -> None:
    # They meet after every second update, which is once a second.
    assert world(2).run(by_the_clock, tmp_path) == [[21, 41]] * 2


def too_late(folder: Path) -> None:
    fleet.init(is_collective=True)
    model = fleet.distributed_model(torch.nn.Linear(2, 1))
    with pytest.raises(PlanError, match="came after"):
        fleet.CheckpointManager(folder)
    del model
    roles.stop()
    fleet.init(is_collective=True)
    manager = fleet.CheckpointManager(folder)
    with pytest.raises(RuntimeError, match="before load"):
        manager.step()
    with pytest.raises(ValueError, match="seconds=-1"):
        fleet.CheckpointManager(folder, seconds=-1)
    with pytest.raises(ValueError, match="keep=0"):
        fleet.CheckpointManager(folder, keep=0)


def test_the_order_of_calls_is_said(tmp_path: Path) -> None:
    world(1).run(too_late, tmp_path)
