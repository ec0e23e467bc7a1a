"""Models for use elsewhere: what they compute, and what their inputs and outputs are called."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fleetx as fleet
from fleetx import static
from fleetx.record.variable import as_variable
from tests.io.programs import started

ROWS = np.random.default_rng(0).standard_normal((5, 4), dtype=np.float32)


def expected_of(exe: static.Executor, out: Tensor) -> np.ndarray:
    found: np.ndarray = exe.run(
        static.default_main_program().clone(for_test=True), {"x": ROWS}, [out]
    )[0]
    return found


def test_regions_are_exported(tmp_path: Path) -> None:
    x = static.data("x", [None, 4])
    hidden = static.nn.fc(x, 3)
    with torch.no_grad():
        scaled = hidden / hidden.norm(dim=-1, keepdim=True)
    with torch.autocast("cpu", torch.bfloat16):
        low = static.nn.fc(scaled, 2)
    out = low.float() + 1
    exe = started()
    fleet.save_inference_model(exe, tmp_path, ["x"], [out])
    expected = expected_of(exe, out)
    program, _, targets = fleet.load_inference_model(tmp_path, exe)
    assert np.array_equal(exe.run(program, {"x": ROWS}, targets)[0], expected)
    plain = torch.export.load(tmp_path / "model.pt2").module()(torch.from_numpy(ROWS))[0]
    assert np.array_equal(plain.detach().numpy(), expected)
    assert (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")) == (True, False)


def test_inputs_come_in_the_order_of_the_list(tmp_path: Path) -> None:
    a, b, c = (static.data(name, [None, 2]) for name in "abc")
    out = a - 2 * b + 10 * c
    exe = started()
    values = {name: np.full((1, 2), at + 1.0, np.float32) for at, name in enumerate("abc")}
    order: list[list[Tensor | str]] = [["a", "b", "c"], ["c", "a", "b"], ["b", "c", "a"], [c, b, a]]
    for number, feeds in enumerate(order):
        folder = tmp_path / str(number)
        names = [
            feed if isinstance(feed, str) else as_variable(feed, "feeds").name for feed in feeds
        ]
        fleet.save_inference_model(exe, folder, feeds, [out])
        program, found, targets = fleet.load_inference_model(folder, exe)
        assert found == names
        assert exe.run(program, values, targets)[0].tolist() == [[27, 27]]
        given = [torch.from_numpy(values[name]) for name in names]
        plain = torch.export.load(folder / "model.pt2").module()
        assert plain(*given)[0].tolist() == [[27, 27]]


def test_an_archive_knows_its_inputs_whatever_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may die between the two files of a save over another one."""
    a, b = (static.data(name, [None, 2]) for name in "ab")
    exe = started()
    fleet.save_inference_model(exe, tmp_path, ["a", "b"], [a - b])
    replace = os.replace

    def dies(source: Path, target: Path) -> None:
        if target.name == "signature.json":
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dies)
        with pytest.raises(KeyboardInterrupt):
            fleet.save_inference_model(exe, tmp_path, ["b", "a"], [2 * a - b])
    program, feeds, targets = fleet.load_inference_model(tmp_path, exe)
    assert feeds == ["b", "a"]
    values = {"a": np.full((1, 2), 5.0, np.float32), "b": np.full((1, 2), 3.0, np.float32)}
    assert exe.run(program, values, targets)[0].tolist() == [[7, 7]]


def test_an_archive_of_before_is_loaded_by_the_list_beside_it(tmp_path: Path) -> None:
    x = static.data("x", [None, 4])
    out = static.nn.fc(x, 3)
    exe = started()
    fleet.save_inference_model(exe, tmp_path, ["x"], [out])
    archive = tmp_path / "model.pt2"
    torch.export.save(torch.export.load(archive), archive)  # without what was put into it
    program, feeds, targets = fleet.load_inference_model(tmp_path, exe)
    assert feeds == ["x"]
    assert np.array_equal(exe.run(program, {"x": ROWS}, targets)[0], expected_of(exe, out))


def test_an_area_needs_nothing_but_torch_elsewhere(tmp_path: Path) -> None:
    x, y = static.data("x", [None]), static.data("y", [None], "int64")
    fleet.save_inference_model(started(), tmp_path, ["x", "y"], [static.auc(x, y)[1]])
    graph = torch.export.load(tmp_path / "model.pt2").graph
    assert not [node for node in graph.nodes if "fleetx" in str(node.target)]
    model = torch.export.load(tmp_path / "model.pt2").module()
    scores, labels = torch.tensor([0.1, 0.6, 0.4, 0.9, 0.7]), torch.tensor([0, 1, 1, 1, 0])
    (area,) = model(scores, labels)
    assert float(area) == pytest.approx(4 / 6)


def test_inputs_that_cannot_be(tmp_path: Path) -> None:
    x = static.data("x", [None, 2])
    exe = started()
    with pytest.raises(static.ProgramError, match="has an input twice: x, x; list it once"):
        fleet.save_inference_model(exe, tmp_path, ["x", x], [x + 1])


def test_outputs_keep_their_names_whatever_they_are(tmp_path: Path) -> None:
    x = static.data("x", [None, 4])
    out = static.nn.fc(x, 3)
    best, where = torch.topk(out, 2)
    exe = started()
    targets = [where, out, best, where, x]
    names = fleet.save_inference_model(exe, tmp_path, ["x"], targets)
    assert names == ["getitem_1", "fc_0", "getitem", "getitem_1", "x"]
    program, _, found = fleet.load_inference_model(tmp_path, exe)
    main = static.default_main_program()
    assert [variable.name for variable in found][:4] == names[:4]
    for given in (found, names):
        values = exe.run(program, {"x": ROWS}, given)
        for ours, theirs in zip(values, exe.run(main, {"x": ROWS}, targets), strict=True):
            assert np.allclose(ours, theirs)
    with pytest.raises(ValueError, match="ONNX has an output once"):
        fleet.save_inference_model(exe, tmp_path, ["x"], [out, out], format="onnx")


def test_a_size_is_that_of_its_own_input(tmp_path: Path) -> None:
    for names in (("x", "y"), ("y", "x")):
        main, startup = static.Program(), static.Program()
        with static.program_guard(main, startup):
            kinds: dict[str, Any] = {"x": ([None, 4], "float32"), "y": ([None], "int64")}
            given = {name: static.data(name, *kinds[name]) for name in names}
            logits = static.nn.fc(given["x"], 2)
            torch.nn.functional.cross_entropy(logits, given["y"])  # finds the two sizes equal
            shown = logits.view(given["x"].shape[0], 2).softmax(-1)
        exe = static.Executor()
        exe.run(startup)
        test = main.clone(for_test=True)
        assert exe.run(test, {"x": ROWS}, [shown])[0].shape == (5, 2)
        fleet.save_inference_model(exe, tmp_path, ["x"], [shown], main)
