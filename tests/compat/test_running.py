"""The executor, programs, scopes, places and the inner module of Paddle; FleetX 1; paddlenlp."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fleetx
from fleetx.compat import imports, notes


@pytest.fixture(autouse=True)
def anew() -> None:
    notes._said.clear()


def regression() -> tuple[Any, Any, Any]:
    from paddle import fluid

    x = fluid.data("x", [None, 2], "float32")
    y = fluid.layers.data("y", [1], dtype="float32")
    guess = fluid.layers.fc(x, 1, param_attr=fluid.ParamAttr("w"), bias_attr=False)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(guess, y))
    return guess, loss, (x, y)


FEED = {
    "x": np.array([[1.0, 2.0], [3.0, 4.0]], "float32"),
    "y": np.array([[1.0], [2.0]], "float32"),
}


def test_a_card_that_is_not_there_is_the_processor(caplog: pytest.LogCaptureFixture) -> None:
    from paddle import fluid

    place = fluid.CUDAPlace(0)
    for _ in range(2):
        wanted = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        assert fluid.Executor(place).device == wanted
    told = [record.message for record in caplog.records if "CUDAPlace(0)" in record.message]
    assert len(told) == (0 if torch.cuda.is_available() else 1)
    assert isinstance(fluid.cuda_places()[0], fluid.CUDAPlace)
    assert len(fluid.cpu_places()) == len(fluid.cpu_places(1)) == 1
    assert fluid.core.get_cuda_device_count() == torch.cuda.device_count()
    assert fluid.is_compiled_with_cuda() == fluid.core.is_compiled_with_cuda()
    either = fluid.core.Place()
    either.set_place(fluid.NPUPlace(0))
    assert either.gpu_device_id() == 0
    assert fluid.Executor(either).device == fluid.Executor(fluid.CUDAPlace(0)).device


def test_feeds_of_every_kind_and_fetches() -> None:
    import paddle
    from paddle import fluid

    guess, loss, _ = regression()
    exe = fluid.Executor()
    exe.run(program=fluid.default_startup_program())
    wanted = exe.run(feed=FEED, fetch_list=[loss], use_program_cache=True)[0]
    assert wanted.shape == (1,)
    tensor = fluid.LoDTensor()
    tensor.set(FEED["x"], fluid.CPUPlace())
    tensor.set_lod([])
    for given in (
        [FEED],
        {"x": FEED["x"].astype("float64"), "y": [1, 2]},
        {"x": FEED["x"].tolist(), "y": FEED["y"].tolist(), "idle": 3},
        {"x": tensor, "y": FEED["y"].reshape(-1)},
        {"x": torch.from_numpy(FEED["x"]), "y": torch.from_numpy(FEED["y"])},
    ):
        found = exe.run(fluid.default_main_program(), given, [loss.name, guess])
        assert found[0] == wanted
        assert found[1].shape == (2, 1)
    (kept,) = exe.run(feed=FEED, fetch_list=loss, return_numpy=False)
    assert np.array(kept) == wanted
    assert kept.shape() == [1]
    assert kept.lod() == []
    assert float(exe.run(feed=FEED, fetch_list=[loss])[0]) == wanted.item()
    with pytest.raises(fluid.core.EnforceNotMet, match="one for each card"):
        exe.run(feed=[FEED, FEED], fetch_list=[loss])
    with pytest.raises(TypeError, match=r"takes a fluid\.Program"):
        exe.run("program")
    exe.close()
    assert isinstance(exe.run(feed=FEED, fetch_list=[[loss], guess]), list)
    assert paddle.static.Executor is fluid.Executor


def test_scopes_find_values_and_take_them() -> None:
    from paddle import fluid

    guess, _, _ = regression()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    tensor = fluid.global_scope().find_var("w").get_tensor()
    assert tensor._get_dims() == [2, 1]
    tensor.set(np.array([[2.0], [3.0]], "float32"), fluid.CPUPlace())
    assert np.array(fluid.global_scope().find_var("w").get_tensor()).tolist() == [[2.0], [3.0]]
    assert exe.run(feed=FEED, fetch_list=[guess])[0].tolist() == [[8.0], [18.0]]
    assert fluid.global_scope().find_var("nothing") is None
    own = fluid.core.Scope()
    with fluid.scope_guard(own):
        assert fluid.global_scope().find_var("w") is None or own.parameters == {}
        mine = own.var("mine").get_tensor()
        mine.set(np.ones(3, "int64"), fluid.CPUPlace())
        assert fluid.global_scope().find_var("mine").get_tensor()._get_dims() == [3]


def test_values_are_read_and_saved_while_a_program_is_written(tmp_path: Path) -> None:
    from paddle import fluid

    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        regression()
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        operators = len(main.global_block().ops)
        tensor = fluid.global_scope().find_var("w").get_tensor()
        tensor.set(np.zeros(tensor._get_dims(), "float32"), fluid.CPUPlace())
        fluid.io.save_persistables(exe, str(tmp_path), main)
        fluid.save(main, str(tmp_path / "model"))
        fluid.io.load_persistables(exe, str(tmp_path), main)
        assert np.array(tensor).tolist() == [[0.0], [0.0]]
        assert len(main.global_block().ops) == operators


def test_a_scope_has_parameters_of_its_own() -> None:
    from paddle import fluid

    exe = fluid.Executor(fluid.CPUPlace())
    values = []
    for number in (1.0, 2.0):
        with (
            fluid.scope_guard(fluid.core.Scope()),
            fluid.program_guard(fluid.Program(), fluid.Program()),
            fluid.unique_name.guard(),
        ):
            guess, _, _ = regression()
            exe.run(fluid.default_startup_program())
            fluid.global_scope().var("w").get_tensor().set(np.full((2, 1), number, "float32"), None)
            values.append(exe.run(feed=FEED, fetch_list=[guess])[0][0, 0])
    assert values == [3.0, 6.0]


def test_programs_show_what_is_in_them() -> None:
    from paddle import fluid

    main, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 7
    with fluid.program_guard(main_program=main, startup_program=startup):
        guess, loss, (x, _) = regression()
        assert fluid.default_main_program() is main
    block = main.global_block()
    assert block.has_var("w")
    assert block.var("w").name == "w"
    assert isinstance(block.var("w"), fluid.framework.Parameter)
    assert not isinstance(x, fluid.framework.Parameter)
    assert [parameter.name for parameter in block.all_parameters()] == ["w"]
    assert [var.name for var in main.list_vars() if fluid.io.is_persistable(var)] == ["w"]
    assert fluid.io.is_parameter(block.var("w"))
    assert (block.idx, block.parent_idx, main.num_blocks) == (0, -1, 1)
    with pytest.raises(ValueError, match="not in this block"):
        block.var("nothing")
    assert any(guess.name in operator.output_arg_names for operator in block.ops)
    first = block.ops[0]
    assert first.attr("op_device") == ""
    assert first.input_arg_names
    started = startup.global_block().vars
    assert started["w"].shape == [2, 1]
    assert started["w"].persistable
    test = main.clone(for_test=True)
    assert test.global_block().has_var(loss.name)
    with main._lr_schedule_guard():
        pass
    with pytest.raises(fluid.core.EnforceNotMet, match="kernels of its own executor"):
        fluid.Program.parse_from_string(b"")


def test_parameters_and_variables_are_made_in_blocks() -> None:
    from paddle import fluid

    main = fluid.Program()
    block = main.global_block()
    made = block.create_parameter(name="p", shape=[3], dtype="float32", trainable=False)
    assert (made.name, made.stop_gradient) == ("p", True)
    counted = block.create_var(name="c", shape=[1], dtype="float32", persistable=True)
    assert counted.persistable
    described = fluid.framework.Parameter(
        block=block, shape=[2], dtype="float32", name="q", optimize_attr={"learning_rate": 2.0}
    )
    assert described.name == "q"
    with pytest.raises(TypeError, match="no 'colour'"):
        fluid.framework.Parameter(block=block, shape=[2], dtype="float32", colour=1)


def test_guards_of_names_and_devices() -> None:
    from paddle import fluid

    with fluid.name_scope("encoder"), fluid.device_guard("gpu:all"), fluid.device_guard("npu:0"):
        regression()
    before = fluid.default_main_program()
    other = fluid.Program()
    assert fluid.framework.switch_main_program(other) is before
    assert fluid.default_main_program() is other
    fluid.framework.switch_main_program(before)
    startup = fluid.framework.switch_startup_program(fluid.Program())
    fluid.framework.switch_startup_program(startup)
    assert fluid.framework.grad_var_name("x") == "x@GRAD"


def test_compiled_programs_take_settings(caplog: pytest.LogCaptureFixture) -> None:
    from paddle import fluid

    _, loss, _ = regression()
    fluid.optimizer.SGD(0.01).minimize(loss)
    build, execution = fluid.BuildStrategy(), fluid.ExecutionStrategy()
    build.memory_optimize = True
    build.reduce_strategy = fluid.BuildStrategy.ReduceStrategy.Reduce
    build.fuse_elewise_add_act_ops = True
    build.async_mode = False
    build.enable_inplace = True
    build.num_trainers, build.trainer_id = 1, 0
    build.remove_unnecessary_lock = False
    execution.num_threads = 4
    execution.num_iteration_per_drop_scope = 30
    execution.use_experimental_executor = True
    assert (build.reduce_strategy, execution.num_threads) == (1, 4)
    told = [record.message for record in caplog.records]
    assert sum("exec_strategy.num_threads" in line for line in told) == 1
    with pytest.raises(AttributeError, match="has no 'colour'"):
        build.colour = 1
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        loss_name=loss.name, build_strategy=build, exec_strategy=execution
    )
    first = exe.run(compiled, feed=FEED, fetch_list=[loss.name])[0]
    parallel = fluid.ParallelExecutor(
        use_cuda=False,
        loss_name=loss.name,
        main_program=fluid.default_main_program(),
        build_strategy=build,
        exec_strategy=execution,
    )
    second = parallel.run(fetch_list=[loss.name], feed=FEED, return_numpy=True)[0]
    assert second < first
    assert parallel.device_count == 1


def test_what_tuned_paddle_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    from paddle import fluid

    for _ in range(2):
        fluid.memory_optimize(fluid.default_main_program())
        fluid.release_memory(fluid.default_main_program())
        fluid.set_flags({"FLAGS_fraction_of_gpu_memory_to_use": 0.5})
    assert len(caplog.records) == 3
    fluid.require_version("1.6.0")
    assert fluid.get_flags(["FLAGS_x"]) == {"FLAGS_x": None}


def test_the_profiler_writes_a_trace(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from paddle.fluid import profiler

    profiler.start_profiler("All")
    torch.ones(3).sum()
    profiler.stop_profiler("total", str(tmp_path / "profile"))
    assert (tmp_path / "profile").stat().st_size > 0
    with profiler.profiler("CPU", "total", str(tmp_path / "again")):
        torch.ones(3).sum()
    with pytest.raises(ValueError, match="'CPU', 'GPU' or 'All'"):
        profiler.start_profiler("TPU")


def test_kinds_and_roles_of_the_inner_module() -> None:
    import paddle
    from paddle import fluid
    from paddle.fluid.proto import framework_pb2

    kinds = fluid.core.VarDesc.VarType
    x = fluid.data("x", [None, 2], "float32")
    assert x.dtype == kinds.FP32 != kinds.FP16
    assert len({kinds.LOD_TENSOR, kinds.READER, kinds.FETCH_LIST, kinds.FEED_MINIBATCH}) == 4
    maker = fluid.core.op_proto_and_checker_maker
    assert maker.kOpRoleAttrName() == "op_role"
    assert maker.OpRole.Forward != maker.OpRole.Backward
    assert fluid.data_feeder.convert_dtype(kinds.INT64) == "int64"
    assert fluid.data_feeder.convert_dtype("float16") == "float16"
    assert paddle.core.EOFException is fluid.core.EOFException
    desc = framework_pb2.VarType.TensorDesc()
    desc.ParseFromString(b"\x08\x05\x10\x04\x10\x03")
    assert (desc.data_type, desc.dims) == (framework_pb2.VarType.FP32, [4, 3])
    cards = fluid.core.PSGPU()
    cards.set_slot_vector([1])
    cards.init_gpu_ps([0])
    cards.build_gpu_ps(0, 8)


def test_lod_tensors() -> None:
    from paddle import fluid

    made = fluid.create_lod_tensor([[1, 2], [3]], [[2, 1]], fluid.CPUPlace())
    assert np.array(made).tolist() == [[1], [2], [3]]
    assert made.lod() == [[0, 2, 3]]
    with pytest.raises(ValueError, match="add up"):
        fluid.create_lod_tensor(np.ones((3, 1)), [[2, 2]], fluid.CPUPlace())
    drawn = fluid.create_random_int_lodtensor([[2, 1]], [1], fluid.CPUPlace(), 0, 5)
    assert drawn.shape() == [3, 1]
    tensor = fluid.Tensor()
    tensor.set(np.ones((2, 2), "float32"), fluid.CPUPlace())
    assert len(tensor) == 2


def test_gradients_are_variables() -> None:
    import paddle
    from paddle import fluid

    _, loss, (x, _) = regression()
    (pair,) = fluid.append_backward(loss)
    assert pair[0].name == "w"
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    (by_input,) = paddle.static.gradients([loss], [x])
    found = exe.run(feed=FEED, fetch_list=[pair[1], by_input])
    weight = np.array(fluid.global_scope().find_var("w").get_tensor())
    error = FEED["x"] @ weight - FEED["y"]
    assert np.allclose(found[0], FEED["x"].T @ error, atol=1e-5)
    assert np.allclose(found[1], error @ weight.T, atol=1e-5)


def test_input_specs() -> None:
    import paddle

    spec = paddle.static.InputSpec(shape=[None, 3], dtype="int64", name="x")
    assert (spec.shape, spec.dtype) == ((-1, 3), "int64")
    assert spec.batch(2).shape == (2, -1, 3)
    assert spec.unbatch().shape == (-1, 3)
    assert paddle.static.InputSpec.from_numpy(np.ones((2, 3), "float32")).dtype == "float32"


# FleetX 1.


def test_names_of_fleetx_1_are_there_while_an_old_script_runs() -> None:
    native = __import__("fleetx.applications").applications
    import fleetx as X

    assert X.applications.__name__.endswith("fleetx_1.models")
    assert X.version.fleetx_version.replace("-", "")
    assert X.utils.is_first_worker()
    assert X.parse_train_configs([]).momentum == 0.9
    images = importlib.import_module("fleetx.dataset.image_dataset")
    assert callable(images.image_dataloader_from_filelist)
    assert callable(X.util.get_file_shard)
    imports.uninstall()
    assert not hasattr(fleetx, "MultiGPUTrainer")
    assert fleetx.applications.__name__ == "fleetx.applications"
    imports.install()
    del native


def test_a_trainer_fits_a_model_of_clicks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from paddle import fluid

    import fleetx as X

    line = "\t".join(["1", *["3"] * 13, *["68fd1e64"] * 26])
    (tmp_path / "part-0").write_text(f"{line}\n" * 24)
    model = X.applications.MultiSlotCTR(sparse_feature_dim=1000)
    loader = model.load_criteo_from_file(str(tmp_path), batch_size=8)
    fluid.optimizer.SGD(learning_rate=0.1).minimize(model.loss)
    trainer = X.CPUTrainer()
    trainer.fit(model, loader, epoch=2, start_step=0)
    told = [row for row in capsys.readouterr().out.splitlines() if "train_loss" in row]
    losses = [float(row.split("train_loss: ")[1].split(",")[0]) for row in told]
    assert losses[-1] < losses[0]
    assert trainer.val(model, loader, target_list=["acc"])["acc"] == 1.0
    with pytest.raises(ValueError, match="no target 'auc'"):
        trainer.val(model, loader, ["auc"])


@pytest.mark.parametrize(
    "name",
    [
        "Word2vec",
        *(pytest.param(n, marks=pytest.mark.rare) for n in ("BertBase", "Transformer", "VGG16")),
    ],
)
def test_models_of_fleetx_1_have_a_loss(name: str) -> None:
    from paddle import fluid

    import fleetx as X

    small: dict[str, dict[str, Any]] = {
        "BertBase": {"vocab_size": 50, "layers": 1, "width": 8, "heads": 2},
        "Transformer": {"words": 30, "layers": 1, "width": 8, "heads": 2},
        "Word2vec": {"words": 20, "width": 4},
        "VGG16": {"class_dim": 4, "size": 32},
    }
    model = getattr(X.applications, name)(**small[name])
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    feed = {}
    for variable in model.inputs:
        sizes = [3 if size is None else size for size in variable.node.meta["shape"]]
        kind = "float32" if variable.fake.is_floating_point() else "int64"
        feed[variable.name] = np.random.randint(0, 3, sizes).astype(kind)
    (loss,) = exe.run(model.main_prog.clone(for_test=True), feed=feed, fetch_list=[model.loss.name])
    assert loss.shape == (1,)
    assert np.isfinite(loss)
    assert len(model.parameter_list()) > 1


def test_a_model_of_images_has_the_names_of_paddle(monkeypatch: pytest.MonkeyPatch) -> None:
    import fleetx as X

    monkeypatch.setattr("fleetx.compat.fleetx_1.blocks.RESNET50", (1, 1, 0, 0))
    model = X.applications.Resnet50(size=32)
    names = model.parameter_list()
    assert {"conv2d_0.w_0", "batch_norm_0.b_0", "conv2d_8.w_0", "fc_0.w_0"} <= {*names}
    assert len(model.checkpoints) == 2
    assert [variable.name for variable in model.inputs] == ["feed_image", "feed_label"]
    assert {*model.target} == {"acc1", "acc5"}


def test_programs_are_saved_for_people(tmp_path: Path) -> None:
    from paddle import fluid

    import fleetx as X

    _, loss, (x, y) = regression()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    save_program: Any = X.util.save_program  # type: ignore[attr-defined]
    save_program(
        main_prog=fluid.default_main_program(),
        startup_prog=fluid.default_startup_program(),
        program_path=str(tmp_path),
        input_list=[x, y],
        hidden_vars=[],
        loss=loss,
        generator_info=None,
        target=[loss],
        checkpoints=None,
        learning_rate=0.1,
    )
    assert (tmp_path / "w").is_file()
    assert loss.name in (tmp_path / "model_info.json").read_text()


# paddlenlp.


def test_vocabularies_and_batches_of_paddlenlp(tmp_path: Path) -> None:
    from paddlenlp.data import JiebaTokenizer, Pad, Stack, Tuple, Vocab
    from paddlenlp.datasets import load_dataset

    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n好\n不好\n")
    vocab = Vocab.load_vocabulary(str(tmp_path / "vocab.txt"), unk_token="[UNK]", pad_token="[PAD]")
    assert vocab.to_indices(["好", "坏"]) == [2, 1]
    assert vocab.token_to_idx.get("[PAD]", 9) == 0
    assert vocab.to_tokens([2]) == ["好"]
    assert JiebaTokenizer(vocab).encode("不好好") == [3, 2]
    batch = Tuple(Pad(axis=0, pad_val=7), Stack(dtype="int64"))
    texts, lengths = batch([([1, 2, 3], 3), ([4], 1)])
    assert texts.tolist() == [[1, 2, 3], [4, 7, 7]]
    assert lengths.dtype == np.int64
    train, dev = load_dataset("chnsenticorp", splits=["train", "dev"])
    assert {*train[0]} == {"text", "label"}
    assert len(dev) == 128
    with pytest.raises(ValueError, match="only 'chnsenticorp'"):
        load_dataset("glue", splits="train")
