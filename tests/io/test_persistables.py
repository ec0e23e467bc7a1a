"""Values of programs in folders: which files are read, and what they start."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import fleetx as fleet
from fleetx import io, static
from fleetx.static import ProgramError
from fleetx.static.run.training import training_of
from tests.io.programs import started

BATCH = {"x": np.ones((2, 4), np.float32)}


def value(name: str) -> np.ndarray:
    return np.array(static.global_scope().find_var(name))


def trained() -> tuple[static.Executor, Tensor]:
    loss = static.nn.fc(static.data("x", [None, 4]), 1).pow(2).mean()
    static.Optimizer(torch.optim.Adam, lr=0.1).minimize(loss)
    return started(), loss


def test_a_folder_is_read_by_names(tmp_path: Path) -> None:
    exe, loss = trained()
    exe.run(feed=BATCH, fetch_list=[loss])
    fleet.save_persistables(exe, tmp_path, filename="params")
    fleet.save_persistables(exe, tmp_path, filename="zero")
    exe.run(feed=BATCH, fetch_list=[loss])
    fleet.save_persistables(exe, tmp_path)
    (tmp_path / "readme.txt").write_text("hi")
    new = value("fc_0.weight")
    exe.run(feed=BATCH, fetch_list=[loss])
    expected = exe.run(feed=BATCH, fetch_list=[loss])[0]
    fleet.load_persistables(exe, tmp_path)
    assert np.array_equal(value("fc_0.weight"), new)
    exe.run(feed=BATCH, fetch_list=[loss])
    assert exe.run(feed=BATCH, fetch_list=[loss])[0] == expected


def test_files_that_only_have_the_name_of_a_value(tmp_path: Path) -> None:
    exe, _ = trained()
    fleet.save_persistables(exe, tmp_path)
    (tmp_path / "fc_0.bias").write_text("hi")
    with pytest.raises(ValueError, match=r"fc_0\.bias' has the name of a value, but is no safet"):
        fleet.load_persistables(exe, tmp_path)
    fleet.save_persistables(exe, tmp_path, filename="fc_0.bias")
    with pytest.raises(ValueError, match=r"holds fc_0\.\w+, fc_0\.\w+; if it is one file"):
        fleet.load_persistables(exe, tmp_path)


def test_what_was_loaded_in_part_is_not_run() -> None:
    hidden = static.nn.fc(static.data("x", [None, 4]), 8)
    out = static.nn.fc(hidden, 1)
    main, exe = static.default_main_program(), static.Executor()
    static.set_program_state(main, {"fc_0.bias": np.zeros(8, np.float32)})
    with pytest.raises(ProgramError, match="fc_0, fc_1 have no values yet"):
        exe.run(feed=BATCH, fetch_list=[out])
    static.set_program_state(main, {"fc_0.weight": np.ones((8, 4), np.float32)})
    with pytest.raises(ProgramError, match="parameters of fc_1 have no values yet"):
        exe.run(feed=BATCH, fetch_list=[out])
    rest = {"fc_1.weight": np.ones((1, 8), np.float32), "fc_1.bias": np.ones(1, np.float32)}
    static.set_program_state(main, rest)
    assert exe.run(feed=BATCH, fetch_list=[out])[0].tolist() == [[33], [33]]


def test_loading_nothing_starts_nothing(tmp_path: Path) -> None:
    out = static.nn.fc(static.data("x", [None, 4]), 8)
    exe = static.Executor()
    fleet.load_vars(exe, tmp_path, predicate=lambda variable: False)
    with pytest.raises(ProgramError, match="fc_0 have no values yet"):
        exe.run(feed=BATCH, fetch_list=[out])


def test_what_a_metric_counts_begins_at_zero_behind_a_load(tmp_path: Path) -> None:
    def score() -> tuple[Tensor, Tensor]:
        click = static.data("click", [None, 1], "int64")
        shown = static.nn.fc(static.data("x", [None, 4]), 1).sigmoid()
        _, _, counts = static.auc(shown, click)
        return counts[2], counts[3]

    score()
    fleet.save_persistables(started(), tmp_path)
    static.reset()
    counts, exe = score(), static.Executor()
    layer = static.default_main_program().layers["auc_0"].module
    layer.positive.fill_(9)  # type: ignore[operator]
    fleet.load_persistables(exe, tmp_path)
    feed = {**BATCH, "click": np.array([[0], [1]])}
    assert [count.sum() for count in exe.run(feed=feed, fetch_list=list(counts))] == [1, 1]


def scheduled() -> tuple[static.Executor, Tensor]:
    loss = static.nn.fc(static.data("x", [None, 4]), 1).pow(2).mean()
    schedule = static.lr.exponential_decay(0.1, 1, 0.5)
    static.Optimizer(torch.optim.Adam, lr=schedule).minimize(loss)
    return started(), loss


def test_values_from_before_the_first_run_begin_anew(tmp_path: Path) -> None:
    exe, loss = scheduled()
    main = static.default_main_program()

    def losses() -> list[float]:
        return [float(exe.run(feed=BATCH, fetch_list=[loss])[0]) for _ in range(3)]

    fleet.save_persistables(exe, tmp_path / "folder")
    static.save(main, tmp_path / "model")
    first = losses()
    fleet.load_persistables(exe, tmp_path / "folder")
    assert losses() == first
    static.load(main, tmp_path / "model")
    assert losses() == first
    static.save(main, tmp_path / "model")
    state = tmp_path / "model.optimizer.safetensors"
    assert state.is_file()
    static.save(main.clone(for_test=True), tmp_path / "model")
    assert not state.exists(), "it belongs to other values"


def test_parameters_alone_leave_the_optimizer_alone(tmp_path: Path) -> None:
    exe, loss = scheduled()
    training = training_of(static.default_main_program())
    assert training is not None
    exe.run(feed=BATCH, fetch_list=[loss])
    io.save_params(exe, tmp_path)
    io.load_params(exe, tmp_path)
    assert (training.ticks, len(training.run.optimizer.state)) == (1, 2)  # type: ignore[union-attr]


def test_bfloat16_comes_back(tmp_path: Path) -> None:
    layer = torch.nn.Linear(4, 2).bfloat16()
    layer(static.data("x", [None, 4], "bfloat16"))
    main, kept = static.default_main_program(), layer.weight.detach().clone()
    static.save(main, tmp_path / "model")
    state = static.load_program_state(tmp_path / "model")
    assert state["linear_0.weight"].dtype == np.float32
    with torch.no_grad():
        layer.weight.zero_()
    static.load(main, tmp_path / "model")
    assert torch.equal(layer.weight, kept)
    started()
    assert np.array_equal(value("linear_0.weight"), kept.float().numpy())


def test_no_state_of_an_earlier_optimizer_stays(tmp_path: Path) -> None:
    exe, loss = trained()
    exe.run(feed=BATCH, fetch_list=[loss])
    fleet.save_persistables(exe, tmp_path)
    assert (tmp_path / "fc_0.weight@exp_avg").is_file()
    (tmp_path / "me@home").write_text("mine")
    fleet.save_persistables(exe, tmp_path, static.default_main_program().clone(for_test=True))
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == ["fc_0.bias", "fc_0.weight", "me@home"]
    fleet.load_persistables(exe, tmp_path)
