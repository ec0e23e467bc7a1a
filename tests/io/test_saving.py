"""Saving and loading values and models."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

import fleetx as fleet
from fleetx import io, static
from fleetx.io.files import save_tensors
from fleetx.io.training_state import to_state, to_tensors
from fleetx.static import ProgramError
from fleetx.testing import world

RNG = np.random.default_rng(0)
FEEDS: list[dict[str, np.ndarray]] = [
    {
        "x": RNG.standard_normal((6, 3, 8, 8), dtype=np.float32),
        "y": RNG.integers(0, 5, (6, 1)),
    }
    for _ in range(6)
]


def build(distributed: bool = False) -> tuple[static.Executor, Tensor, Tensor]:
    """A network whose optimizer, statistics, dropout and schedule all have state."""
    static.reset()
    x, y = static.data("x", [None, 3, 8, 8]), static.data("y", [None, 1], "int64")
    h = static.nn.conv2d(x, 4, 3, padding=1, bias_attr=False)
    h = static.nn.dropout(static.nn.batch_norm(h, act="relu"), 0.2)
    out: Any = static.nn.fc(h, 5)
    out.name = "logits"
    loss = F.cross_entropy(out, y.squeeze(1))
    schedule = static.lr.exponential_decay(0.01, 1, 0.5)
    optimizer: Any = static.Optimizer(torch.optim.Adam, lr=schedule)
    if distributed:
        strategy = fleet.DistributedStrategy()
        strategy.localsgd = True
        strategy.localsgd_configs = {"k_steps": 3}
        fleet.init(is_collective=True, strategy=strategy)
        optimizer = fleet.distributed_optimizer(optimizer)
    optimizer.minimize(loss)
    exe = static.Executor()
    torch.manual_seed(os.getpid())
    exe.run(static.default_startup_program())
    return exe, out, loss


def losses(exe: static.Executor, loss: Tensor, feeds: Any) -> list[float]:
    torch.manual_seed(4)
    return [float(exe.run(feed=feed, fetch_list=[loss])[0]) for feed in feeds]


WAYS: dict[str, tuple[Any, Any]] = {
    "a file each": (
        fleet.save_persistables,
        fleet.load_persistables,
    ),
    "one file": (
        lambda exe, path: fleet.save_persistables(exe, path, filename="all"),
        lambda exe, path: fleet.load_persistables(exe, path, filename="all"),
    ),
    "save": (
        lambda exe, path: static.save(static.default_main_program(), path / "model"),
        lambda exe, path: static.load(static.default_main_program(), path / "model"),
    ),
    "state": (
        lambda exe, path: static.save(static.default_main_program(), path / "model"),
        lambda exe, path: static.set_program_state(
            static.default_main_program(), static.load_program_state(path / "model")
        ),
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("running", [False, True])
def test_training_goes_on_as_if_it_had_not_stopped(way: str, running: bool, tmp_path: Path) -> None:
    save, load = WAYS[way]
    exe, _, loss = build()
    losses(exe, loss, FEEDS[:3])
    save(exe, tmp_path)
    expected = losses(exe, loss, FEEDS[3:])
    exe, _, loss = build()
    if running:
        losses(exe, loss, FEEDS[:1])
    load(exe, tmp_path)
    assert losses(exe, loss, FEEDS[3:]) == expected


def test_files_are_safetensors_under_the_names_of_variables(tmp_path: Path) -> None:
    exe, _, loss = build()
    losses(exe, loss, FEEDS[:1])
    io.save_params(exe, tmp_path / "params")
    names = set(static.default_main_program().state.trained())
    assert {path.name for path in (tmp_path / "params").iterdir()} == names
    found = load_file(tmp_path / "params" / "fc_0.bias")
    bias = static.default_main_program().state.trained()["fc_0.bias"]
    assert torch.equal(found["fc_0.bias"], bias)
    fleet.save_persistables(exe, tmp_path / "all", filename="one")
    stored = load_file(tmp_path / "all" / "one")
    assert {"batch_norm_0.running_mean", "fc_0.bias@exp_avg", "@ticks"} <= stored.keys()


def test_some_variables(tmp_path: Path) -> None:
    exe, _, loss = build()
    fleet.save_persistables(exe, tmp_path)
    (tmp_path / "fc_0.bias").unlink()
    before = {
        n: p.detach().clone() for n, p in static.default_main_program().state.trained().items()
    }
    exe, _, loss = build()
    asked = []

    def exists(var: Any) -> bool:
        asked.append(var.name)
        return (tmp_path / var.name).exists()

    bias = static.default_main_program().state.trained()["fc_0.bias"].detach().clone()
    fleet.load_vars(exe, tmp_path, predicate=exists)
    now = static.default_main_program().state.trained()
    assert torch.equal(now["conv2d_0.weight"], before["conv2d_0.weight"])
    assert torch.equal(now["fc_0.bias"], bias)
    assert "batch_norm_0.running_var" in asked
    with pytest.raises(FileNotFoundError, match=r"no value for fc_0\.bias"):
        fleet.load_persistables(exe, tmp_path)
    with pytest.raises(FileNotFoundError, match="no file"):
        fleet.load_vars(exe, tmp_path, vars=["fc_0.bias"])
    with pytest.raises(ProgramError, match="no persistable variable"):
        fleet.load_vars(exe, tmp_path, vars=["nonsense"])
    assert loss is not None


def test_shapes_must_fit(tmp_path: Path) -> None:
    exe, _, _ = build()
    fleet.save_persistables(exe, tmp_path)
    static.reset()
    static.nn.fc(static.data("x", [None, 7]), 5)
    exe.run(static.default_startup_program())
    with pytest.raises(ProgramError, match=r"'fc_0.weight' was saved with the shape \[5, 256\]"):
        fleet.load_vars(exe, tmp_path, vars=["fc_0.weight"])


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    exe, _, _ = build()
    fleet.save_persistables(exe, tmp_path, filename="all")
    good = (tmp_path / "all").read_bytes()

    class Broken(dict[str, Any]):
        def items(self) -> Any:
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        save_tensors(tmp_path / "all", Broken())
    assert (tmp_path / "all").read_bytes() == good
    assert [path.name for path in tmp_path.iterdir()] == ["all"]


def test_state_of_strategies_survives(tmp_path: Path) -> None:
    def first() -> list[float]:
        exe, _, loss = build(distributed=True)
        losses(exe, loss, FEEDS[fleet.worker_index() : fleet.worker_index() + 2])
        fleet.save_persistables(exe, tmp_path / str(fleet.worker_index()))
        found = losses(exe, loss, FEEDS[2:])
        static.reset()
        return found

    def second() -> list[float]:
        exe, _, loss = build(distributed=True)
        fleet.load_persistables(exe, tmp_path / str(fleet.worker_index()))
        found = losses(exe, loss, FEEDS[2:])
        static.reset()
        return found

    expected = world(2).run(first)
    assert (tmp_path / "0" / "@strategies@localsgd@updates#int").exists()
    assert world(2).run(second) == expected


def test_nested_state_becomes_tensors_and_back() -> None:
    state = {
        "state": {0: {"step": torch.tensor(3.0), "buffer": None}, 1: {"step": torch.tensor(1.0)}},
        "param_groups": [{"lr": 0.1}],
        "strategies": {
            "a": {"n": 3, "x": 0.5, "on": True, "word": "hi", "none": None, "list": [1, (2, 3)]},
            "b": {"by_name": {"w.weight": torch.ones(2)}, "empty": {}},
        },
    }
    names = ["fc_0.weight", "fc_0.bias"]
    flat = to_tensors(state, names)
    assert all(isinstance(value, Tensor) for value in flat.values())
    back = to_state(flat, {"param_groups": [{"lr": 0.1}]}, names)
    assert back["state"][0] == {"step": torch.tensor(3.0), "buffer": None}
    expected: Any = state["strategies"]
    expected["a"]["list"] = [1, [2, 3]]
    assert back["strategies"]["a"] == expected["a"]
    assert back["strategies"]["b"]["by_name"]["w.weight"].tolist() == [1.0, 1.0]
    assert back["strategies"]["b"]["empty"] == {}


PLAIN = """
import sys, numpy, torch
model = torch.export.load(sys.argv[1]).module()
x = torch.from_numpy(numpy.load(sys.argv[2]))
numpy.save(sys.argv[3], model(x)[0].detach().numpy())
assert not any(name.startswith("fleetx") for name in sys.modules)
"""


def reference(exe: static.Executor, out: Tensor, batch: np.ndarray) -> np.ndarray:
    test = static.default_main_program().clone(for_test=True)
    return exe.run(test, {"x": batch}, [out])[0]


def test_plain_torch_loads_an_inference_model(tmp_path: Path) -> None:
    exe, out, loss = build()
    losses(exe, loss, FEEDS[:2])
    names = fleet.save_inference_model(exe, tmp_path / "model", ["x"], [out])
    assert names == ["logits"]
    expected = reference(exe, out, FEEDS[3]["x"])
    np.save(tmp_path / "x.npy", FEEDS[3]["x"])
    files = [tmp_path / "model" / "model.pt2", tmp_path / "x.npy", tmp_path / "y.npy"]
    command = [sys.executable, "-c", PLAIN, *map(str, files)]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=200)
    assert np.allclose(np.load(tmp_path / "y.npy"), expected, rtol=0, atol=1e-6)


def test_an_inference_model_is_a_program_again(tmp_path: Path) -> None:
    exe, out, loss = build()
    losses(exe, loss, FEEDS[:2])
    fleet.save_inference_model(exe, tmp_path, "x", out)
    expected = reference(exe, out, FEEDS[3]["x"])
    program, feeds, fetches = fleet.load_inference_model(tmp_path, exe)
    assert feeds == ["x"]
    assert fetches[0].name == "logits"
    for size in (6, 1):
        found = exe.run(program, {"x": FEEDS[3]["x"][:size]}, fetches)[0]
        assert np.allclose(found, expected[:size], rtol=0, atol=1e-6)


def test_nothing_is_pickled(tmp_path: Path) -> None:
    exe, out, _ = build()
    fleet.save_inference_model(exe, tmp_path, ["x"], [out])
    fleet.save_persistables(exe, tmp_path / "values")
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        for name in archive.namelist():
            if "/data/weights/weight_" not in name:  # those are bare numbers
                archive.read(name).decode("utf-8")
            assert name.startswith("model/")
    for path in (tmp_path / "values").iterdir():
        load_file(path)


def test_a_model_for_fine_tuning_keeps_its_dropout(tmp_path: Path) -> None:
    exe, out, _ = build()
    fleet.save_inference_model(exe, tmp_path, ["x"], [out], export_for_deployment=False)
    model = torch.export.load(tmp_path / "model.pt2").module()
    batch = torch.from_numpy(FEEDS[0]["x"])
    assert not torch.equal(model(batch)[0], model(batch)[0])


def test_what_inference_models_refuse(tmp_path: Path) -> None:
    exe, out, loss = build()
    with pytest.raises(ProgramError, match="depend on y too"):
        fleet.save_inference_model(exe, tmp_path, ["x"], [loss])
    with pytest.raises(ProgramError, match="no target depends on y"):
        fleet.save_inference_model(exe, tmp_path, ["x", "y"], [out])
    with pytest.raises(ValueError, match="format 'torch' or 'onnx'"):
        fleet.save_inference_model(exe, tmp_path, ["x"], [out], format="tf")
    with pytest.raises(TypeError, match=r"static\.Executor first"):
        fleet.save_inference_model(None, tmp_path, ["x"], [out])
    with pytest.raises(FileNotFoundError, match=r"signature\.json"):
        fleet.load_inference_model(tmp_path / "nowhere", exe)


def test_a_model_that_cannot_be_written_whole_is_not_written(tmp_path: Path) -> None:
    exe, out, _ = build()
    with pytest.MonkeyPatch.context() as without:
        without.setitem(sys.modules, "onnxscript", None)
        with pytest.raises(ImportError, match=r"install 'fleetx\[onnx\]', or leave"):
            io.check_format("onnx")
        with pytest.raises(ImportError, match="needs onnx and onnxscript"):
            fleet.save_inference_model(exe, tmp_path / "new", ["x"], [out], format="onnx")
    assert not (tmp_path / "new").exists()
    old = tmp_path / "old"
    fleet.save_inference_model(exe, old, ["x"], [out])
    before = {path.name: path.read_bytes() for path in old.iterdir()}
    broken = patch("torch.onnx.export", side_effect=RuntimeError("no such operator"))
    for folder in (old, tmp_path / "new"):
        with broken, pytest.raises(RuntimeError, match="no such operator"):
            fleet.save_inference_model(exe, folder, ["x"], [out], format="onnx")
    assert {path.name: path.read_bytes() for path in old.iterdir()} == before
    assert list((tmp_path / "new").iterdir()) == [], "no archive without a signature"


def test_an_onnx_file_does_not_outlive_the_model_that_it_was(tmp_path: Path) -> None:
    exe, out, _ = build()
    (tmp_path / "model.onnx").write_text("of the model that was here before")
    (tmp_path / "notes.txt").write_text("mine")
    fleet.save_inference_model(exe, tmp_path, ["x"], [out])
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == ["model.pt2", "notes.txt", "signature.json"]


def test_onnx_gives_the_same_numbers(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    exe, out, loss = build()
    losses(exe, loss, FEEDS[:2])
    fleet.save_inference_model(exe, tmp_path, ["x"], [out], format="onnx")
    expected = reference(exe, out, FEEDS[3]["x"])
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    for size in (6, 1):
        found = session.run(None, {"x": FEEDS[3]["x"][:size]})[0]
        assert np.allclose(found, expected[:size], rtol=0, atol=1e-5)
