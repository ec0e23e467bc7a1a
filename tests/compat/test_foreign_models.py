"""Models that Paddle 2.6.2 saved: ``data/foreign`` holds its files, inputs and outputs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetx.compat.files import tensors
from fleetx.compat.files.program_desc import parsed

DATA = Path(__file__).parent / "data" / "foreign"
"""Written by paddlepaddle 2.6.2: a small network of convolutions, and one with attention."""


def outputs(loaded: Any, golden: Any) -> list[Any]:
    """What a model gives for the inputs that are kept."""
    import paddle

    program, feeds, fetches = loaded
    feed = {name: golden[f"in_{name}"] for name in feeds}
    return list(paddle.static.Executor().run(program, feed=feed, fetch_list=fetches))


@pytest.mark.parametrize("name", ["images", "texts"])
def test_models_of_paddle_give_its_numbers(name: str) -> None:
    import paddle

    paddle.enable_static()
    exe, golden = paddle.static.Executor(), np.load(DATA / f"{name}.npz")
    found = outputs(paddle.static.load_inference_model(str(DATA / name), exe), golden)
    for number, value in enumerate(found):
        assert np.allclose(value, golden[f"out_{number}"], atol=1e-6)


def test_models_of_paddle_are_saved_again(tmp_path: Path) -> None:
    import paddle

    paddle.enable_static()
    exe, golden = paddle.static.Executor(), np.load(DATA / "images.npz")
    program, feeds, fetches = paddle.static.load_inference_model(str(DATA / "images"), exe)
    inputs = [program.global_block().var(feed) for feed in feeds]
    paddle.static.save_inference_model(str(tmp_path / "own"), inputs, fetches, exe, program=program)
    (found,) = outputs(paddle.static.load_inference_model(str(tmp_path / "own"), exe), golden)
    assert np.allclose(found, golden["out_0"], atol=1e-6)


def test_weights_may_lie_in_a_file_for_each(tmp_path: Path) -> None:
    from paddle import fluid

    model = (DATA / "images.pdmodel").read_bytes()
    (tmp_path / "__model__").write_bytes(model)
    kept = sorted(v.name for v in parsed(model).variables.values() if v.persistable)
    names = [name for name in kept if name not in {"feed", "fetch"}]
    for name, value in zip(names, tensors.read_all(DATA / "images.pdiparams"), strict=True):
        tensors.write(tmp_path / name, value)
    exe, golden = fluid.Executor(fluid.CPUPlace()), np.load(DATA / "images.npz")
    (found,) = outputs(fluid.io.load_inference_model(str(tmp_path), exe), golden)
    assert np.allclose(found, golden["out_0"], atol=1e-6)


def test_an_operator_that_is_not_known_is_named(tmp_path: Path) -> None:
    import paddle

    model = (DATA / "images.pdmodel").read_bytes()
    (tmp_path / "x.pdmodel").write_bytes(model.replace(b"pool2d", b"pool9d"))
    with pytest.raises(Exception, match="the operators pool9d, whose kernels are not here"):
        paddle.static.load_inference_model(str(tmp_path / "x"), paddle.static.Executor())
    (tmp_path / "y.pdmodel").write_bytes(model[:-3])
    with pytest.raises(Exception, match="no model of Paddle's"):
        paddle.static.load_inference_model(str(tmp_path / "y"), paddle.static.Executor())
