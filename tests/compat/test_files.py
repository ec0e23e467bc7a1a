"""Files that Paddle 2.6.2 wrote are read, and what is written here is what it reads.

``data/d_paddle`` was made by Paddle itself: a small network after three steps of Momentum, saved in
each of its formats, with what it predicted and how its next steps went.
"""

import io
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fleetx.compat.files import pickles, tensors
from fleetx.compat.files.tensors import FormatError

PADDLE = Path(__file__).parent / "data" / "d_paddle"
GOLDEN = np.load(PADDLE / "golden.npz")


@pytest.mark.parametrize("path", sorted((PADDLE / "vars").iterdir()), ids=lambda p: p.name)
def test_a_tensor_is_written_as_paddle_writes_it(path: Path) -> None:
    assert tensors.packed(tensors.read(path)) == path.read_bytes()


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6).reshape(2, 3),
        torch.tensor([True, False]),
        torch.zeros(0, 4, dtype=torch.float64),
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.tensor(3, dtype=torch.int32),
    ],
    ids=str,
)
def test_tensors_of_every_kind_come_back(value: torch.Tensor, tmp_path: Path) -> None:
    tensors.write(tmp_path / "x", value)
    found = tensors.read(tmp_path / "x")
    assert found.dtype == value.dtype
    assert found.shape == value.shape
    assert torch.equal(found, value)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    good = tensors.packed(torch.ones(3))
    for name, data in {
        "short": good[:-2],
        "text": b"something else entirely",
        "huge": struct.pack("<IQ", 0, 0) + struct.pack("<Ii", 0, 1 << 30),
        "empty": b"\0",
    }.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FormatError):
            tensors.read(tmp_path / name)


class _Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("echo must not be seen > /dev/null",)


class _Import:
    def __reduce__(self) -> Any:
        return __import__, ("antigravity",)


@pytest.mark.parametrize("hostile", [_Hostile(), _Import(), {"w": [1, _Hostile()]}])
def test_a_hostile_pickle_is_refused(hostile: Any, tmp_path: Path) -> None:
    import paddle

    path = tmp_path / "weights.pdparams"
    path.write_bytes(pickle.dumps(hostile))
    with pytest.raises(pickles.RefusedPickle, match="need nothing but arrays"):
        paddle.load(str(path))


def test_a_pickle_of_old_python_is_read() -> None:
    array = np.arange(3, dtype="float32")
    for protocol in (2, 3, 4):
        text = pickles.packed({"w": array, "n": 3}, protocol)
        assert b"numpy.core.multiarray" in text  # numpy 1 knows it by that name
        found = pickles.read_stream(io.BytesIO(text))
        assert np.array_equal(found["w"], array)


def test_arrays_that_paddle_cut_are_whole_again() -> None:
    cut = {
        "w@@.0": np.arange(4.0),
        "w@@.1": np.arange(4.0, 6.0),
        pickles.SLICES: {"w": {"OriginShape": (2, 3), "slices": ["w@@.0", "w@@.1"]}},
    }
    assert np.array_equal(pickles.tidied(cut)["w"], np.arange(6.0).reshape(2, 3))


def network() -> tuple[Any, Any, Any]:
    from paddle import fluid

    x = fluid.data("x", [None, 4], "float32")
    y = fluid.data("y", [None, 1], "float32")
    hidden = fluid.layers.batch_norm(fluid.layers.fc(x, 3, act="tanh"))
    scores = fluid.layers.fc(hidden, 1)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(scores, y))
    test = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    return scores, loss, test


def steps(exe: Any, loss: Any, count: int = 3) -> list[float]:
    feed = {"x": GOLDEN["x"], "y": GOLDEN["y"]}
    return [float(exe.run(feed=feed, fetch_list=[loss])[0]) for _ in range(count)]


@pytest.mark.parametrize("form", ["vars", "one", "static"])
def test_training_goes_on_where_paddle_stopped(form: str) -> None:
    import paddle
    from paddle import fluid

    scores, loss, test = network()
    exe = fluid.Executor(fluid.CPUPlace())
    if form == "vars":
        fluid.io.load_persistables(exe, str(PADDLE / "vars"), fluid.default_main_program())
    elif form == "one":
        fluid.io.load_persistables(exe, str(PADDLE / "one"), filename="__params__")
    else:
        paddle.static.load(fluid.default_main_program(), str(PADDLE / "static" / "model"), exe)
    found = exe.run(test, feed={"x": GOLDEN["x"], "y": GOLDEN["y"]}, fetch_list=[scores])[0]
    assert np.allclose(found, GOLDEN["pred"], atol=1e-6)
    assert np.allclose(steps(exe, loss), GOLDEN["more"], atol=1e-6)


def test_load_vars_by_predicate_takes_what_is_there(tmp_path: Path) -> None:
    from paddle import fluid

    network()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    (tmp_path / "fc_0.w_0").write_bytes((PADDLE / "vars" / "fc_0.w_0").read_bytes())
    before = np.array(fluid.global_scope().find_var("fc_1.w_0").get_tensor())

    def exists(var: Any) -> bool:
        return isinstance(var, fluid.framework.Parameter) and (tmp_path / var.name).exists()

    fluid.io.load_vars(
        exe, str(tmp_path), main_program=fluid.default_main_program(), predicate=exists
    )
    found = np.array(fluid.global_scope().find_var("fc_0.w_0").get_tensor())
    assert np.array_equal(found, tensors.read(PADDLE / "vars" / "fc_0.w_0").numpy())
    assert np.array_equal(before, np.array(fluid.global_scope().find_var("fc_1.w_0").get_tensor()))


@pytest.mark.parametrize("filename", [None, "all"])
def test_what_is_saved_comes_back_with_its_optimizer(filename: Any, tmp_path: Path) -> None:
    from paddle import fluid

    _, loss, _ = network()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    steps(exe, loss)
    fluid.io.save_persistables(exe, str(tmp_path), filename=filename)
    expected = steps(exe, loss)
    fluid.io.load_persistables(exe, str(tmp_path), filename=filename)
    assert steps(exe, loss) == expected
    if filename is None:
        names = {path.name for path in tmp_path.iterdir()}
        assert {"fc_0.w_0", "fc_0.w_0_velocity_0", "learning_rate_0"} <= names
        (tmp_path / ".optimizer.safetensors").unlink()  # as if Paddle had written the rest
        fluid.io.load_persistables(exe, str(tmp_path))
        assert np.allclose(steps(exe, loss), expected)


def test_save_params_and_save_vars_write_what_is_meant(tmp_path: Path) -> None:
    from paddle import fluid

    network()
    main = fluid.default_main_program()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    fluid.io.save_params(exe, str(tmp_path / "params"), main)
    assert (tmp_path / "params" / "batch_norm_0.w_1").is_file()
    chosen = [var for var in main.list_vars() if var.name.endswith("w_0")]
    fluid.io.save_vars(exe, str(tmp_path / "some"), main, vars=chosen, filename="w")
    assert len(tensors.read_all(tmp_path / "some" / "w")) == 3
    before = fluid.io.get_parameter_value_by_name("fc_0.w_0", exe)
    exe.run(fluid.default_startup_program())
    fluid.io.load_vars(exe, str(tmp_path / "some"), main, vars=chosen, filename="w")
    assert np.array_equal(fluid.io.get_parameter_value_by_name("fc_0.w_0", exe), before)
    fluid.io.load_params(exe, str(tmp_path / "params"), main)


def test_program_state_is_a_dict_of_arrays(tmp_path: Path) -> None:
    from paddle import fluid

    network()
    main = fluid.default_main_program()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    fluid.save(main, str(tmp_path / "model"))
    state = fluid.load_program_state(str(tmp_path / "model"))
    assert state["fc_0.w_0"].shape == (4, 3)
    fluid.set_program_state(main, {"fc_0.w_0": state["fc_0.w_0"] * 0 + 2, "of another": np.ones(1)})
    assert np.all(np.array(fluid.global_scope().find_var("fc_0.w_0").get_tensor()) == 2)
    fluid.load(main, str(tmp_path / "model"), exe)
    found = np.array(fluid.global_scope().find_var("fc_0.w_0").get_tensor())
    assert np.array_equal(found, state["fc_0.w_0"])
    from_folder = fluid.load_program_state(str(PADDLE / "vars"))
    assert from_folder["fc_1.w_0"].shape == (3, 1)


def test_eager_states_of_paddle_load(tmp_path: Path) -> None:
    import paddle

    net = paddle.nn.Sequential(
        paddle.nn.Linear(4, 3), paddle.nn.BatchNorm1D(3), paddle.nn.Linear(3, 1)
    )
    state = paddle.load(str(PADDLE / "eager.pdparams"))
    net.set_state_dict(state)
    net.eval()
    found = net(paddle.to_tensor(GOLDEN["x"])).numpy()
    assert np.allclose(found, np.load(PADDLE / "eager.npz")["pred"], atol=1e-6)
    nested = paddle.load(str(PADDLE / "nested.pdtensor"))
    assert nested["n"] == 3
    assert nested["a"].numpy().tolist() == [1.0, 2.0]
    path = str(tmp_path / "again.pdparams")
    paddle.save(net.state_dict(), path)
    again = paddle.load(path)
    assert again.keys() == state.keys()
    assert all(np.array_equal(again[key].numpy(), state[key].numpy()) for key in state)
    assert paddle.load(path).get("epoch", -1) == -1
    assert isinstance(paddle.load(path, return_numpy=True)["0.weight"], np.ndarray)


def test_models_are_saved_for_use_and_foreign_ones_are_refused(tmp_path: Path) -> None:
    import paddle
    from paddle import fluid

    scores, _, test = network()
    main = fluid.default_main_program()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    wanted = exe.run(test, feed={"x": GOLDEN["x"], "y": GOLDEN["y"]}, fetch_list=[scores])[0]
    fluid.io.save_inference_model(
        str(tmp_path / "a"), ["x"], [scores], exe, main, "model", "params"
    )
    assert len(tensors.read_all(tmp_path / "a" / "params")) == 8
    prefix = str(tmp_path / "b" / "net")
    paddle.static.save_inference_model(prefix, [main.var("x")], [scores], exe, program=main)
    for loaded in (
        fluid.io.load_inference_model(str(tmp_path / "a"), exe, "model", "params"),
        paddle.static.load_inference_model(prefix, exe),
    ):
        program, feeds, fetches = loaded
        assert feeds == ["x"]
        found = exe.run(program, feed={feeds[0]: GOLDEN["x"]}, fetch_list=fetches)
        assert np.allclose(found[0], wanted, atol=1e-6)
    config = fluid.core.AnalysisConfig(str(tmp_path / "b" / "net"))
    config.switch_ir_optim(True)
    config.disable_gpu()
    predictor = fluid.core.create_paddle_predictor(config)
    (out,) = predictor.run([fluid.core.PaddleTensor(data=GOLDEN["x"])])
    assert np.allclose(out.as_ndarray(), wanted, atol=1e-6)
    assert out.dtype == fluid.core.PaddleDType.FLOAT32
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "__model__").write_bytes(b"\n\x00")
    with pytest.raises(fluid.core.EnforceNotMet, match="kernels are not here"):
        fluid.io.load_inference_model(str(tmp_path / "foreign"), exe)
