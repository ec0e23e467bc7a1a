"""Programs whose tables live on servers: data sets, saving and loading, and no servers afterwards.

Servers are threads of this process; their workers are the ranks of a world.
"""

import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from typing_extensions import override

import fleetx as fleet
from fleetx import Slot, roles, static
from fleetx.api import table_saves
from fleetx.io import inference
from fleetx.nn import SGD, ShowClickEntry, SparseEmbedding, Uniform
from fleetx.nn import load_inference_model as load_model
from fleetx.static.run.training import training_of
from fleetx.testing import world
from tests.ps.team import TOKEN, team

WIDE, DIM, BATCH, RATE = 3, 2, 4, 0.5
SHARES = [[0, 3], [5, 2]]
"""Batches of both workers in two stretches; the first worker begins with none."""
MODES: dict[str, dict[str, Any]] = {
    "sync": {},
    "async": {"k_steps": 0},
    "half": {"k_steps": 0, "half_async": True},
    "geo": {"k_steps": 2},
}


def records(worker: int, stretch: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and numbers of a worker's share, by batch."""
    chance = np.random.default_rng([worker, stretch])
    count = SHARES[stretch][worker]
    numbers = chance.integers(-9, 9, (count, BATCH, WIDE)).astype(np.float32)
    return chance.integers(0, 6, (count, BATCH, 2)) * 10**15, numbers


def share(folder: str, worker: int, stretch: int) -> Any:
    """The same as a data set."""
    ids, numbers = records(worker, stretch)
    path = Path(folder) / f"part-{worker}-{stretch}"
    rows = zip(ids.reshape(-1, 2), numbers.reshape(-1, WIDE), strict=True)
    path.write_text(
        "".join(f"2 {' '.join(map(str, i))} {WIDE} {' '.join(map(str, n))}\n" for i, n in rows)
    )
    data = fleet.InMemoryDataset()
    data.init(batch_size=BATCH, use_var=["ids", Slot("numbers", "float32")])
    data.set_filelist([path])
    data.load_into_memory()
    return data


class Job:
    """One worker and its program; gradients do not depend on what was learned before.

    So what is learned does not depend on the order in which pushes arrive.
    """

    rate: Any = RATE

    def __init__(
        self, endpoints: list[str], mode: str = "sync", worker: int = 0, workers: int = 1
    ) -> None:
        os.environ["FLEETX_PS_TOKEN"] = TOKEN.decode()
        self.worker = worker
        strategy = fleet.DistributedStrategy()
        if mode != "sync":
            strategy.a_sync = True
            strategy.a_sync_configs = MODES[mode]  # type: ignore[assignment]
        maker = fleet.UserDefinedRoleMaker(
            current_id=worker,
            role=fleet.Role.WORKER,
            worker_num=workers,
            server_endpoints=endpoints,
        )
        self._adjust(strategy)
        fleet.init(maker, strategy=strategy)
        self.main, self.startup = static.Program(), static.Program()
        with static.program_guard(self.main, self.startup):
            self._record()
        self.exe = static.Executor()
        self.startup.random_seed = 7
        self.exe.run(self.startup)
        fleet.init_worker()

    def _adjust(self, strategy: fleet.DistributedStrategy) -> None:
        """Ask for more."""

    def _record(self) -> None:
        ids = static.data("ids", [None, 2], "int64")
        numbers = static.data("numbers", [None, WIDE], "float32")
        rows = static.nn.sparse_embedding(
            ids, (0, DIM), param_attr=Uniform(-0.5, 0.5), padding_idx=0, name="words"
        )
        self.score = rows.sum((1, 2)) + static.nn.fc(numbers, 1, name="head").squeeze(1)
        self.test = self.main.clone(for_test=True)
        optimizer = fleet.distributed_optimizer(static.Optimizer(torch.optim.SGD, lr=self.rate))
        optimizer.minimize(self.score.mean(), self.startup)

    def outputs(self) -> np.ndarray:
        """The scores of everybody's records."""
        feed = dict(zip(("ids", "numbers"), everybody(), strict=True))
        found: np.ndarray = self.exe.run(self.test, feed, [self.score])[0]
        return found

    def head(self) -> np.ndarray:
        """Weights and bias of the head."""
        values = self.main.state.persistent()
        parts = [values[f"head.{name}"].detach().reshape(-1) for name in ("weight", "bias")]
        return torch.cat(parts).numpy()


def learned(mode: str, head: np.ndarray) -> np.ndarray:
    """The scores of everybody's records after all that there was to learn.

    Args:
        mode: how workers exchange.
        head: its weights and, at the end, its bias before the training.
    """
    moved, head = np.zeros(6), head.astype(np.float64)
    if mode == "geo":
        head += exchanged()
        moved += exchanged_rows()
    for stretch in (0, 1):
        shares = [records(worker, stretch) for worker in (0, 1)]
        for number in range(max(SHARES[stretch])):
            here = [(i[number], n[number]) for i, n in shares if number < len(i)]
            part = {"sync": 1 / len(here), "geo": 0.0}.get(mode, 1.0)
            for ids, numbers in here:
                head -= RATE * part * np.append(numbers.mean(0), 1)
                np.subtract.at(moved, ids.reshape(-1) // 10**15, RATE * part / BATCH)
    known = np.arange(6) * 10**15
    rows = Uniform(-0.5, 0.5).rows(known, DIM, 0).sum(1) + DIM * moved
    rows[0] = 0  # stands for nothing
    ids, numbers = everybody()
    found: np.ndarray = rows[ids // 10**15].sum(1) + numbers @ head[:-1] + head[-1]
    return found


def exchanged() -> np.ndarray:
    """What the head moves by when workers share half of what they have learned, now and then.

    The other half stays theirs until the next exchange, and is let go at the end of a stretch.
    """
    total = np.zeros(WIDE + 1)
    for stretch, worker in itertools.product((0, 1), (0, 1)):
        own, done = np.zeros(WIDE + 1), sum(max(each) for each in SHARES[:stretch])
        for step, numbers in enumerate(records(worker, stretch)[1], done + 1):
            own -= RATE * np.append(numbers.mean(0), 1)
            if step % MODES["geo"]["k_steps"] == 0:
                own /= 2
                total += own
        total += own / 2
    return total


def exchanged_rows() -> np.ndarray:
    """What rows move by: the same, but only rows that were trained since the last exchange."""
    total = np.zeros(6)
    for stretch, worker in itertools.product((0, 1), (0, 1)):
        own, done = np.zeros(6), sum(max(each) for each in SHARES[:stretch])
        trained = np.zeros(6, bool)
        for step, ids in enumerate(records(worker, stretch)[0], done + 1):
            rows = ids.reshape(-1) // 10**15
            np.subtract.at(own, rows, RATE / BATCH)
            trained[rows] = True
            if step % MODES["geo"]["k_steps"] == 0:
                own[trained] /= 2
                total[trained] += own[trained]
                trained[:] = False
        total[trained] += own[trained] / 2
    return total


def everybody() -> tuple[np.ndarray, np.ndarray]:
    """The records of both workers and both stretches."""
    parts = [records(worker, stretch) for worker in (0, 1) for stretch in (0, 1)]
    ids, numbers = (np.concatenate(each) for each in zip(*parts, strict=True))
    return ids.reshape(-1, 2), numbers.reshape(-1, WIDE)


class Net(nn.Module):
    """The program as a plain module, with the names of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = SparseEmbedding(DIM, name="words", padding_idx=0)
        self.head = nn.Linear(WIDE, 1)

    def forward(self, ids: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return self.words(ids).sum((1, 2)) + self.head(numbers).squeeze(1)


def trained(endpoints: list[str], mode: str, folder: str) -> dict[str, Any]:
    """All that a worker sees of a job."""
    job, seen = Job(endpoints, mode, dist.get_rank(), dist.get_world_size()), list[float]()

    class Seen(static.FetchHandler):
        def handler(self, res_dict: Mapping[str, Any]) -> None:
            seen.extend(res_dict["score"].tolist())

    before, counts = job.head(), []
    for stretch in (0, 1):
        data = share(folder, job.worker, stretch)
        counts.append(job.exe.train_from_dataset(job.main, data))
    handler = Seen({"score": job.score}, period_secs=0)
    job.exe.infer_from_dataset(job.test, share(folder, job.worker, 1), fetch_handler=handler)
    names = fleet.save_inference_model(
        job.exe, f"{folder}/serve", ["ids", "numbers"], [job.score], job.main
    )
    found = {
        "counts": counts,
        "before": before,
        "outputs": job.outputs(),
        "seen": seen,
        "names": names,
        "updates": fleet.server_report()[0]["tables"]["words"]["updates"],
    }
    fleet.stop_worker()
    return found


@pytest.mark.parametrize("mode", MODES)
def test_a_data_set_is_learned_whole_however_it_is_shared(mode: str, tmp_path: Path) -> None:
    """And computed with afterwards, without servers, to the same numbers."""
    with team(1, 2) as here:
        found = world(2).run(trained, here.endpoints, mode, str(tmp_path))
    assert [one["counts"] for one in found] == [[0, 5], [3, 2]]
    expected = learned(mode, found[0]["before"])
    for worker, one in enumerate(found):
        np.testing.assert_allclose(one["outputs"], expected, rtol=1e-5, atol=1e-5)
        begin = {0: 0, 1: BATCH * (5 + 3)}[worker]
        seen = expected[begin : begin + BATCH * SHARES[1][worker]]
        np.testing.assert_allclose(one["seen"], seen, rtol=1e-5, atol=1e-5)
        # A round for all of them, a push for each batch, or an exchange now and then.
        assert one["updates"] == {"sync": 3 + 5, "geo": one["updates"]}.get(mode, 10)
        assert len(one["names"]) == 1
    logged(tmp_path / "serve", found[0]["outputs"])


def logged(folder: Path, expected: np.ndarray) -> None:
    """Both loaders give the same, for a plain module and for a program."""
    ids, numbers = everybody()
    model = load_model(folder, Net())
    ours = model(torch.from_numpy(ids), torch.from_numpy(numbers)).detach()
    np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-6)
    exe = static.Executor()
    program, inputs, outputs = fleet.load_inference_model(folder, exe)
    assert inputs == ["ids", "numbers"]
    (ours,) = exe.run(program, {"ids": ids, "numbers": numbers}, outputs)
    np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-6)
    (one,) = exe.run(program, {"ids": ids[:1], "numbers": numbers[:1]}, outputs)
    np.testing.assert_allclose(one, expected[:1], rtol=1e-6, atol=1e-6)


@contextmanager
def alone(
    monkeypatch: pytest.MonkeyPatch, kind: type[Job] = Job, began_with: Path | None = None
) -> Iterator[Job]:
    """This process as the only worker of a job, with servers that know nothing or a save."""
    monkeypatch.setenv("FLEETX_PS_TOKEN", TOKEN.decode())
    with team(2) as here:
        for handler in here.handlers:
            handler.preload(began_with, None)
        try:
            yield kind(here.endpoints)
        finally:
            fleet.stop_worker()
            roles.stop()


def test_tables_are_saved_and_loaded_before_the_first_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Paddle's order of arguments, and in that of fleetx."""
    with alone(monkeypatch) as job:
        fleet.save_persistables(job.exe, str(tmp_path / "new"), job.main)
        new = job.head()
        job.exe.train_from_dataset(job.main, share(str(tmp_path), 0, 1))
        fleet.save_persistables(job.exe, str(tmp_path / "old"), main_program=job.main)
        head, outputs = job.head(), job.outputs()
        assert (new != head).all()
        with pytest.raises(ValueError, match="they make a folder"):
            fleet.save_persistables(job.exe, str(tmp_path), job.main, filename="all")
        with pytest.raises(ValueError, match="they make a folder"):
            fleet.load_persistables(job.exe, str(tmp_path), job.main, "all")
        fleet.load_persistables(job.exe, str(tmp_path / "new"), job.main)
        np.testing.assert_array_equal(job.head(), new)
    for arguments in ([True, "old"], [False, "old"]):
        with alone(monkeypatch) as job:
            first = [job.exe] if arguments[0] else []
            fleet.load_persistables(*first, str(tmp_path / "old"))
            np.testing.assert_array_equal(job.head(), head)
            np.testing.assert_array_equal(job.outputs(), outputs)
    with alone(monkeypatch) as job:
        seen = list[np.ndarray]()

        class Seen(static.FetchHandler):
            def handler(self, res_dict: Mapping[str, Any]) -> None:
                seen.append(res_dict["score"])

        handler = Seen({"score": job.score}, period_secs=0)
        job.exe.infer_from_dataset(job.test, share(str(tmp_path), 0, 1), fetch_handler=handler)
        assert len(seen) == SHARES[1][0]


def test_a_program_for_tests_computes_with_a_save_before_the_one_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It computes with what the servers began with, not with the first values of this process."""
    with alone(monkeypatch) as job:
        job.exe.train_from_dataset(job.main, share(str(tmp_path), 0, 1))
        fleet.save_persistables(str(tmp_path / "saved"))
        outputs = job.outputs()
    with alone(monkeypatch, began_with=tmp_path / "saved") as job:
        np.testing.assert_array_equal(job.outputs(), outputs)
        tables = fleet.server_report()[0]["tables"]
        assert [tables[name]["updates"] for name in ("words", "dense-0")] == [0, 0]
        job.exe.train_from_dataset(job.main, share(str(tmp_path), 0, 1))
        assert (job.outputs() != outputs).all()


def test_rows_of_the_next_batch_are_fetched_while_one_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, fetched = list[np.ndarray](), list[int]()
    whole, rows = SparseEmbedding.prefetch, SparseEmbedding._pull

    def prefetch(self: SparseEmbedding, ids: torch.Tensor) -> None:
        told.append(ids.reshape(-1, 2).numpy())
        whole(self, ids)

    def pull(self: SparseEmbedding, flat: Any, train: bool, ahead: list[int] | None = None) -> Any:
        fetched.append(-1 if ahead is None else ahead[0])
        return rows(self, flat, train, ahead)

    monkeypatch.setattr(SparseEmbedding, "prefetch", prefetch)
    monkeypatch.setattr(SparseEmbedding, "_pull", pull)
    with alone(monkeypatch) as job:
        job.exe.train_from_dataset(job.main, share(str(tmp_path), 0, 1))
    batches = records(0, 1)[0]
    np.testing.assert_array_equal(np.stack(told), batches[1:])
    # The first one's when it is there; each other's behind the update of the one before it.
    assert fetched[0] in (-1, 1)
    assert sorted(fetched) == [-1, 1, 2, 3, 4]


class Scheduled(Job):
    """The learning rate falls with every run."""

    rate: Any = static.lr.exponential_decay(RATE, 1, 0.5)


def scheduled(endpoints: list[str], folder: str) -> int:
    """How far the schedule of a worker has come."""
    job = Scheduled(endpoints, "sync", dist.get_rank(), dist.get_world_size())
    for stretch in (0, 1):
        job.exe.train_from_dataset(job.main, share(folder, job.worker, stretch))
    fleet.stop_worker()
    training = training_of(job.main)
    assert training is not None
    return training.ticks


def test_schedules_go_on_together_where_shares_differ_in_length(tmp_path: Path) -> None:
    """Otherwise the workers would want different rates for the updates of the second stretch."""
    with team(1, 2) as here:
        assert world(2).run(scheduled, here.endpoints, str(tmp_path)) == [3 + 5] * 2


class Merged(Job):
    """Five batches of which the first four make two updates."""

    @override
    def _adjust(self, strategy: fleet.DistributedStrategy) -> None:
        strategy.gradient_merge = True
        strategy.gradient_merge_configs = {"k_steps": 2}


def test_rows_are_not_fetched_ahead_where_updates_are_put_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prefetch(self: SparseEmbedding, ids: torch.Tensor) -> None:
        raise AssertionError("it would wait for the update")

    monkeypatch.setattr(SparseEmbedding, "prefetch", prefetch)
    with alone(monkeypatch, Merged) as job:
        assert job.exe.train_from_dataset(job.main, share(str(tmp_path), 0, 1)) == 5
        assert fleet.server_report()[0]["tables"]["words"]["updates"] == 2


def test_a_program_that_is_not_initialised_yet_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with alone(monkeypatch) as job:
        main, startup = static.Program(), static.Program()
        with static.program_guard(main, startup):
            loss = static.nn.fc(static.data("x", [None, 1]), 1, name="later").mean()
            optimizer = fleet.distributed_optimizer(static.Optimizer(torch.optim.SGD, lr=RATE))
            optimizer.minimize(loss, startup)
        job.exe.train_from_dataset(job.main, share(str(tmp_path), 0, 1))
        fleet.save_persistables(str(tmp_path / "first"))
        assert set(fleet.server_report()[0]["tables"]) == {"dense-0", "words"}
        job.exe.run(startup)
        fleet.save_persistables(str(tmp_path / "second"))  # the others need not be here
        assert set(fleet.server_report()[0]["tables"]) == {"dense-0", "words"}
        fleet.settle_workers()
        assert set(fleet.server_report()[0]["tables"]) == {"dense-0", "words", "dense-1"}


def test_a_model_without_tables_and_what_cannot_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with alone(monkeypatch) as job:
        job.exe.train_from_dataset(job.main, share(str(tmp_path), 0, 1))
        head = job.main.var("head.weight")
        found = job.test.clone(for_test=True)
        with static.program_guard(found):
            numbers = static.data("other", [None, WIDE])
            dense = numbers @ found.var("head.weight").T
        save: Any = fleet.save_inference_model
        save(job.exe, tmp_path / "dense", ["other"], [dense], found)
        with pytest.raises(ValueError, match=r"format='onnx'\): rows of tables lie beside"):
            save(job.exe, tmp_path, ["ids", "numbers"], [job.score], job.main, format="onnx")
        (weight,) = job.exe.run(job.test, {}, [head])
    assert not (tmp_path / "dense" / "tables").exists()
    model = torch.export.load(tmp_path / "dense" / "model.pt2").module()
    (ours,) = model(torch.eye(WIDE))
    np.testing.assert_array_equal(ours.detach().numpy(), weight.T)


def test_tables_lie_beside_a_model_that_plain_torch_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with alone(monkeypatch) as job:
        save: Any = fleet.save_inference_model
        save(job.exe, tmp_path, ["ids", "numbers"], [job.score], job.main)
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"dense.safetensors", "model.pt2", "signature.json", "tables"}
    model = torch.export.load(tmp_path / "model.pt2").module()
    with pytest.raises(RuntimeError, match=r"table 'words'.*load_inference_model"):
        model(torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, WIDE))


@pytest.mark.parametrize("after", ["tables", "dense parameters"])
def test_a_program_for_inference_of_two_saves_is_refused(
    after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker dies between the tables and the archive of a save over another one."""
    unfinished = {"tables": (table_saves, "save_dense"), "dense parameters": (inference, "_export")}
    exe, feed = static.Executor(), dict(zip(("ids", "numbers"), everybody(), strict=True))

    def loaded() -> np.ndarray:
        program, _, outputs = fleet.load_inference_model(tmp_path, exe)
        found: np.ndarray = exe.run(program, feed, outputs)[0]
        return found

    with alone(monkeypatch) as job:

        def save() -> None:
            job.exe.run(job.main, feed, [])
            call: Any = fleet.save_inference_model
            call(job.exe, tmp_path, ["ids", "numbers"], [job.score], job.main)

        save()
        first = loaded()
        with monkeypatch.context() as patch:
            patch.setattr(*unfinished[after], Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                save()
        with pytest.raises(ValueError, match=r"model.pt2 and tables of .* are of two saves"):
            loaded()
        save()
        second = job.outputs()
    assert not np.allclose(first, second)
    np.testing.assert_allclose(loaded(), second, rtol=1e-6, atol=1e-6)


class Normed(Job):
    """What a program normalises has running statistics, which no server has."""

    @override
    def _record(self) -> None:
        ids = static.data("ids", [None, 2], "int64")
        numbers = static.data("numbers", [None, WIDE], "float32")
        rows = static.nn.sparse_embedding(ids, (0, DIM), name="words").sum(1)
        hidden = static.nn.batch_norm(static.nn.fc(torch.cat([rows, numbers], 1), 4, name="head"))
        self.score = hidden.square().sum(1)
        self.test = self.main.clone(for_test=True)
        optimizer = fleet.distributed_optimizer(static.Optimizer(torch.optim.SGD, lr=0.01))
        optimizer.minimize(self.score.mean() + hidden.mean(), self.startup)


def test_a_save_of_a_program_has_its_running_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = dict(zip(("ids", "numbers"), everybody(), strict=True))
    with alone(monkeypatch, Normed) as job:
        job.exe.run(job.main, feed, [])
        wanted = job.outputs()
        fleet.save_persistables(job.exe, str(tmp_path), job.main)
        for _ in range(5):
            job.exe.run(job.main, feed, [])
        assert not np.allclose(job.outputs(), wanted)
        fleet.load_persistables(job.exe, str(tmp_path), job.main)
        np.testing.assert_array_equal(job.outputs(), wanted)


class Bags(Job):
    """Records with any number of ids, whose rows are added up."""

    @override
    def _record(self) -> None:
        ids = static.data("ids", [None], "int64")
        begins = static.data("ids_offsets", [None], "int64")
        layer = SparseEmbedding(DIM, name="bags", initializer=Uniform(-0.5, 0.5), pooling="sum")
        self.score = layer(ids, begins).sum(1)
        self.test = self.main.clone(for_test=True)
        optimizer = fleet.distributed_optimizer(static.Optimizer(torch.optim.SGD, lr=RATE))
        optimizer.minimize(self.score.sum(), self.startup)


def test_records_of_any_length_are_looked_up_in_bags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [[3, 1, 3], [], [2], [1, 2]]
    lines = (f"{len(ids)} {' '.join(map(str, ids))}\n" for ids in records)
    (tmp_path / "part").write_text("".join(lines))
    data = fleet.QueueDataset()
    data.init(batch_size=3, use_var=["ids"])
    data.set_filelist([tmp_path / "part"])
    feed = {"ids": np.array([3, 1, 3, 2, 1, 2]), "ids_offsets": np.array([0, 3, 3, 4])}
    with alone(monkeypatch, Bags) as job:
        assert job.exe.train_from_dataset(job.main, data) == 2
        save: Any = fleet.save_inference_model
        save(job.exe, tmp_path / "serve", ["ids", "ids_offsets"], [job.score], job.main)
        (inside,) = job.exe.run(job.test, feed, [job.score])
    rows = Uniform(-0.5, 0.5).rows(np.arange(4), DIM, 0).sum(1)
    rows -= RATE * DIM * np.array([0, 2, 2, 2])  # how often each was met
    np.testing.assert_allclose(inside, [sum(rows[i] for i in ids) for ids in records], atol=1e-5)
    exe = static.Executor()
    program, _, outputs = fleet.load_inference_model(tmp_path / "serve", exe)
    np.testing.assert_allclose(exe.run(program, feed, outputs)[0], inside, rtol=1e-6, atol=1e-6)


class AsInTorch(Job):
    """Bags with the end of the last one and with weights, and a table that was given its rows."""

    @override
    def _record(self) -> None:
        ids = static.data("ids", [None], "int64")
        begins, weights = static.data("begins", [None], "int64"), static.data("weights", [None])
        first, ends = Uniform(-0.5, 0.5), {"include_last_offset": True, "pooling": "sum"}
        plain = SparseEmbedding(DIM, name="plain", initializer=first, **ends)  # type: ignore[arg-type]
        weighted = SparseEmbedding(DIM, name="weighted", initializer=first, **ends)  # type: ignore[arg-type]
        given = torch.arange(5.0 * DIM).view(5, DIM) + 1
        words = SparseEmbedding.from_pretrained(given, False, 3, name="given")
        bags = torch.stack([plain(ids, begins), weighted(ids, begins, weights)])
        self.score = torch.cat([bags.sum((0, 2)), words(ids).sum(1)])
        self.test = self.main.clone(for_test=True)
        optimizer = fleet.distributed_optimizer(static.Optimizer(torch.optim.SGD, lr=RATE))
        optimizer.minimize(self.score.sum(), self.startup)


def test_lookups_of_a_served_model_are_those_of_its_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends of bags counted as bags, weights could not be exported."""
    feed = {
        "ids": np.array([3, 1, 3, 2, 1, 2]),
        "begins": np.array([0, 3, 3, 4, 6]),
        "weights": np.linspace(-1, 1, 6, dtype=np.float32),
    }
    with alone(monkeypatch, AsInTorch) as job:
        job.exe.run(job.main, feed, [])
        save: Any = fleet.save_inference_model
        save(job.exe, tmp_path, ["ids", "begins", "weights"], [job.score], job.main)
        (inside,) = job.exe.run(job.test, feed, [job.score])
    assert inside.shape == (4 + 6,)
    rows = np.arange(5.0 * DIM).reshape(5, DIM).sum(1) + DIM
    rows[[1, 2]] -= 2 * DIM * RATE  # they were met twice; 3 stands for nothing, and keeps its row
    np.testing.assert_allclose(inside[4:], rows[feed["ids"]], rtol=1e-6)
    exe = static.Executor()
    program, _, outputs = fleet.load_inference_model(tmp_path, exe)
    (found,) = exe.run(program, feed, outputs)
    np.testing.assert_allclose(found, inside, rtol=1e-6, atol=1e-6)


class Counted(Job):
    """A table that counts shows and clicks, and one that an option of the optimizer is not for."""

    @override
    def _record(self) -> None:
        ids = static.data("ids", [None, 2], "int64")
        click = static.data("click", [None, 2], "float32")
        static.data("shown", [None, 1], "float32")
        with pytest.raises(static.ProgramError, match=r"no input 'show'; declare"):
            static.nn.sparse_embedding(ids, (0, DIM), entry=ShowClickEntry(), name="refused")
        named = ShowClickEntry("shown", "click")
        told = static.nn.sparse_embedding(ids, (0, DIM), entry=named, name="told", rule=SGD(RATE))
        counted = SparseEmbedding(DIM, name="counted", entry=ShowClickEntry(), rule=SGD(RATE))
        ruled = static.nn.sparse_embedding(
            ids,
            (0, DIM),
            name="ruled",
            rule=SGD(RATE),
            storage="disk",
            memory="1MiB",
            dtype="bfloat16",
        )
        self.score = (counted(ids, click=click) + ruled + told).sum((1, 2))
        optimizer = static.Optimizer(torch.optim.SGD, lr=RATE, momentum=0.9)
        fleet.distributed_optimizer(optimizer).minimize(self.score.mean(), self.startup)


def test_a_layer_in_a_program_is_told_of_shows_and_clicks(monkeypatch: pytest.MonkeyPatch) -> None:
    with alone(monkeypatch, Counted) as job:
        feed = {
            "ids": np.array([[1, 2], [1, 3]]),
            "click": np.array([[1, 0], [1, 0]], np.float32),
            "shown": np.array([[1], [90]], np.float32),
        }
        for _ in range(2):
            job.exe.run(job.main, feed, [job.score])
        told = fleet.server_report()[0]["tables"]
        assert [name for name in told if "rows_in_memory" in told[name]] == ["ruled"]
        assert told["ruled"]["rows"] == 3
        assert fleet.shrink(table="counted") == 2, "2 and 3 were shown twice and never clicked"
        assert fleet.shrink(table="told") == 1, "3 was shown often"
