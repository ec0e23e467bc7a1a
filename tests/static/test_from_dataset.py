"""Programs that go through data sets, in one process."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fleetx as fleet
from fleetx import Slot, static
from fleetx.nn.row_outputs import bags_of
from fleetx.static import ProgramError


def write(folder: Path, count: int = 10) -> str:
    """A label, two ids, and one to three numbers."""
    path = folder / "part"
    lines = [
        f"1 {i % 2} 2 {i % 5} {i % 3} {1 + i % 3} {' '.join([str(i)] * (1 + i % 3))}\n"
        for i in range(count)
    ]
    path.write_text("".join(lines))
    return str(path)


def dataset(folder: Path, use_var: list[Any], kind: type = fleet.QueueDataset) -> Any:
    made = kind()
    made.init(batch_size=4, use_var=use_var)
    made.set_filelist([write(folder)])
    return made


class Trained:
    """An embedding and a linear layer over ids, with an optimizer."""

    def __init__(self) -> None:
        self.label = static.data("label", [None, 1], "float32")
        self.ids = static.data("ids", [None, 2], "int64")
        rows = static.nn.embedding(self.ids, (5, 3), name="table")
        self.score = static.nn.fc(nn.functional.dropout(rows.flatten(1), 0.5), 1, name="head")
        loss: Any = ((self.score - self.label) ** 2).mean()
        loss.name = "loss"
        self.loss = loss
        static.Optimizer(torch.optim.SGD, lr=0.1).minimize(self.loss)
        self.exe = static.Executor()
        static.default_startup_program().random_seed = 3
        self.exe.run(static.default_startup_program())
        torch.manual_seed(5)

    @property
    def slots(self) -> list[Any]:
        return [self.label, self.ids, Slot("numbers", "float32")]

    def weights(self) -> list[np.ndarray]:
        found = static.default_main_program().parameters()
        return [p.detach().numpy().copy() for p in found]


@pytest.mark.parametrize("kind", [fleet.QueueDataset, fleet.InMemoryDataset])
def test_a_data_set_trains_as_the_same_feeds_do(tmp_path: Path, kind: Any) -> None:
    net = Trained()
    data = dataset(tmp_path, net.slots, kind)
    if kind is fleet.InMemoryDataset:
        data.load_into_memory()
    before = net.weights()
    assert net.exe.train_from_dataset(dataset=data) == 3
    ours = net.weights()
    assert all((a != b).any() for a, b in zip(before, ours, strict=True))
    static.reset()
    net = Trained()
    for batch in data:
        feed = {name: batch[name].dense() for name in ("label", "ids")}
        net.exe.run(feed=feed, fetch_list=[])
    for mine, theirs in zip(ours, net.weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_what_is_fetched_is_logged_every_so_many_batches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net = Trained()
    with caplog.at_level(logging.INFO, "fleetx"):
        net.exe.train_from_dataset(
            None,
            dataset(tmp_path, net.slots),
            fetch_list=[net.loss, "label"],
            fetch_info=["cost", "wanted"],
            print_period=2,
        )
    ours = [record for record in caplog.records if record.name.startswith("fleetx")]
    (line,) = [record.getMessage() for record in ours]
    assert line.startswith("batch 2: cost 0.")
    assert "wanted [[0.]\n [1.]" in line


def test_a_handler_sees_the_variables_it_asked_for(tmp_path: Path) -> None:
    seen: list[Mapping[str, Any]] = []

    class Mine(static.FetchHandler):
        def handler(self, res_dict: Mapping[str, Any]) -> None:
            seen.append(res_dict)

    net = Trained()
    options: dict[str, Any] = {"dataset": dataset(tmp_path, net.slots), "fetch_list": "label"}
    net.exe.train_from_dataset(**options, fetch_handler=Mine({"cost": net.loss}, period_secs=0))
    assert [list(found) for found in seen] == [["cost"]] * 3
    assert all(found["cost"].shape == () for found in seen)
    net.exe.train_from_dataset(**options, fetch_handler=Mine({"cost": "loss"}, period_secs=9999))
    assert len(seen) == 3
    with pytest.raises(ValueError, match="was given no variables"):
        Mine()
    with pytest.raises(TypeError, match=r"abstract .*handler"):
        static.FetchHandler({"cost": net.loss})  # type: ignore[abstract]


def test_inference_changes_nothing_and_drops_nothing_out(tmp_path: Path) -> None:
    seen: list[np.ndarray] = []

    class Mine(static.FetchHandler):
        def handler(self, res_dict: Mapping[str, Any]) -> None:
            seen.append(res_dict["score"])

    net = Trained()
    before = net.weights()
    for _ in range(2):
        handler = Mine({"score": net.score}, period_secs=0)
        data = dataset(tmp_path, net.slots)
        assert net.exe.infer_from_dataset(dataset=data, fetch_handler=handler) == 3
    for one, other in zip(before, net.weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert [len(part) for part in seen] == [4, 4, 2] * 2
    np.testing.assert_array_equal(np.concatenate(seen[:3]), np.concatenate(seen[3:]))


class Bags(nn.Module):
    """The sum of each record's numbers."""

    one_operator = True

    def forward(self, values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        if isinstance(values, torch._subclasses.FakeTensor):
            return values.new_zeros(offsets.shape)
        bags, number = bags_of(values.shape, offsets)
        return values.new_zeros(number).index_add_(0, torch.from_numpy(bags), values)


def test_records_of_any_length_are_fed_flat_beside_their_offsets(tmp_path: Path) -> None:
    numbers = static.data("numbers", [None])
    begins = static.data("numbers_offsets", [None], "int64")
    sums, seen = Bags()(numbers, begins), []

    class Mine(static.FetchHandler):
        def handler(self, res_dict: Mapping[str, Any]) -> None:
            seen.extend(res_dict["sums"].tolist())

    data = dataset(tmp_path, [Slot("label", "float32"), "ids", numbers])
    handler = Mine({"sums": sums}, period_secs=0)
    static.Executor().infer_from_dataset(dataset=data, fetch_handler=handler)
    assert seen == [i * (1 + i % 3) for i in range(10)]


def test_a_slot_takes_the_declared_shape(tmp_path: Path) -> None:
    label = static.data("label", [None], "float32")
    ids = static.data("ids", [None, 1, 2], "int64")
    found = (label.sum() + ids.sum()).reshape(1)
    data = dataset(tmp_path, [label, ids, Slot("numbers", "float32")])
    exe = static.Executor()
    assert exe.infer_from_dataset(dataset=data, fetch_list=[found]) == 3


def test_what_cannot_act_is_refused(tmp_path: Path) -> None:
    net = Trained()
    data = dataset(tmp_path, net.slots)
    bad: list[tuple[dict[str, Any], str]] = [
        ({"thread": 4}, r"thread=4\): a worker computes its batches one after the other"),
        ({"debug": True}, r"debug=True\): times of operators are not kept"),
        ({"scope": object()}, "there is one scope"),
        ({"print_period": 0}, "print_period=0 reports after no batch"),
        ({"fetch_list": [net.loss], "fetch_info": ["a", "b"]}, "2 texts for the 1 variables"),
    ]
    for options, why in bad:
        with pytest.raises(ValueError, match=why):
            net.exe.train_from_dataset(dataset=data, **options)
    with pytest.raises(TypeError, match="dataset is a fleet"):
        net.exe.train_from_dataset()
    with pytest.raises(TypeError, match=r"fetch_handler is a static\.FetchHandler"):
        net.exe.train_from_dataset(dataset=data, fetch_handler=print)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"takes a static\.Program first"):
        net.exe.train_from_dataset("main", data)  # type: ignore[arg-type]
    assert net.exe.train_from_dataset(dataset=data, scope=static.global_scope(), thread=1) == 3


def test_programs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    net = Trained()
    test = static.default_main_program().clone(for_test=True)
    data = dataset(tmp_path, net.slots)
    with pytest.raises(ProgramError, match="without an optimizer"):
        net.exe.train_from_dataset(test, data)
    with pytest.raises(ProgramError, match="nothing is"):
        net.exe.infer_from_dataset(test, data)
    other = dataset(tmp_path, [Slot("a", "float32"), "b", Slot("c", "float32")])
    with pytest.raises(ProgramError, match="none of the slots a, b, c is an input"):
        net.exe.train_from_dataset(dataset=other)
    lacking = dataset(tmp_path, ["label", "ids", Slot("c", "float32")])
    with pytest.raises(ProgramError, match=r"declared as torch\.float32"):
        net.exe.train_from_dataset(dataset=lacking)
    with pytest.raises(TypeError, match="is no slot"):
        dataset(tmp_path, [3])
    numbers = static.data("numbers", [None, 1])
    with pytest.raises(ProgramError, match="records of slot 'numbers' differ in length"):
        net.exe.infer_from_dataset(dataset=data, fetch_list=[numbers])


def test_a_batch_is_given_once(tmp_path: Path) -> None:
    net = Trained()
    execution = static.ExecutionStrategy()
    execution.num_iteration_per_run = 2
    program = static.CompiledProgram(static.default_main_program()).with_data_parallel(
        exec_strategy=execution
    )
    with pytest.raises(ProgramError, match="would train every batch 2 times"):
        net.exe.train_from_dataset(program, dataset(tmp_path, net.slots))
