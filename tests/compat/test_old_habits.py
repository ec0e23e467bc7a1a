"""What old scripts do though no manual says so: real ones stumbled here."""

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fleetx import roles
from fleetx.compat.moved_modules import MOVED


@pytest.fixture(autouse=True)
def no_job_is_left() -> Iterator[None]:
    """Stop the job that a test began."""
    yield
    if roles.started():
        roles.stop()


def computed(*fetches: Any, **feed: Any) -> list[Any]:
    """One run of the default program."""
    import paddle

    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    return list(exe.run(feed=feed, fetch_list=list(fetches)))


def test_modules_have_their_other_names() -> None:
    for name, module in MOVED.items():
        assert importlib.import_module(name) is importlib.import_module(module)
    from paddle.distributed import fleet

    assert callable(fleet.utils.recompute)
    assert callable(fleet.fleet.worker_num)


def test_a_loss_is_given_twice_to_its_optimizer(capsys: pytest.CaptureFixture[str]) -> None:
    import paddle
    from paddle import fluid

    paddle.enable_static()
    x = fluid.data("x", [None, 1], "float32")
    attr = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(1.0))
    loss = fluid.layers.mean(fluid.layers.fc(x, 1, param_attr=attr, bias_attr=False))
    optimizer = fluid.optimizer.SGD(0.5)
    optimizer.minimize(loss)
    optimizer.minimize(loss)
    computed(loss, x=np.ones((2, 1), "float32"))
    held = np.array(fluid.global_scope().find_var("w").get_tensor())
    assert held.ravel().tolist() == [0.5]  # one update
    other = fluid.optimizer.SGD(0.1)
    with pytest.raises(Exception, match="has an optimizer already"):
        other.minimize(loss)


def test_networks_are_written_before_their_job_begins() -> None:
    import paddle
    from paddle import fluid
    from paddle.distributed.fleet.base import role_maker

    from fleetx.nn import SparseEmbedding

    paddle.enable_static()

    def tables() -> list[str]:
        with fluid.program_guard(fluid.Program(), fluid.Program()):
            ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
            rows = fluid.contrib.layers.sparse_embedding(
                ids, [10, 4], entry=paddle.distributed.CountFilterEntry(2)
            )
            fluid.layers.embedding(ids, [10, 4], is_sparse=True)
            assert list(rows.shape)[1:] == [4]
            modules = fluid.default_main_program().state.root.modules()
            return [type(m).__name__ for m in modules if isinstance(m, SparseEmbedding)]

    assert tables() == []
    role = role_maker.UserDefinedRoleMaker(
        current_id=0,
        role=role_maker.Role.WORKER,
        worker_num=1,
        server_endpoints=["127.0.0.1:1", "127.0.0.1:2"],
    )
    assert tables() == ["SparseEmbedding", "SparseEmbedding"]
    assert role.server_num() == 2


def test_layers_of_contrib() -> None:
    import paddle
    from paddle import fluid

    paddle.enable_static()
    layers = fluid.contrib.layers
    a, b = fluid.data("a", [None, 3], "float32"), fluid.data("b", [None, 3], "float32")
    slots = fluid.data("slots", [2, 4, 3], "float32")
    one = fluid.ParamAttr(initializer=fluid.initializer.Constant(1.0))
    score, label = fluid.data("p", [None, 1], "float32"), fluid.data("y", [None, 1], "float32")
    given = {
        "a": np.arange(12, dtype="float32").reshape(4, 3),
        "b": np.ones((4, 3), "float32"),
        "slots": np.ones((2, 4, 3), "float32"),
        "p": np.array([[0.25], [0.75]], "float32"),
        "y": np.array([[0.0], [1.0]], "float32"),
    }
    mixed = layers.fused_elemwise_activation(a, b, ["elementwise_add", "scale"], scale=2.0)
    beside, added, deep, shuffled, same, *sums = computed(
        layers.partial_concat([a, b], start_index=1, length=2),
        layers.partial_sum([a, b], start_index=-1),
        layers.batch_fc(slots, [2, 3, 5], one, [2, 5], one, act="relu"),
        layers.shuffle_batch(a),
        mixed,
        *layers.ctr_metric_bundle(score, label),
        **given,
    )
    assert beside.tolist()[1] == [4.0, 5.0, 1.0, 1.0]
    assert added.ravel().tolist() == [3.0, 6.0, 9.0, 12.0]
    assert deep.shape == (2, 4, 5)
    assert np.unique(deep).tolist() == [4.0]
    assert sorted(shuffled.tolist()) == given["a"].tolist()
    np.testing.assert_allclose(same, given["a"] + 2.0)
    squared, absolute, scores, sigmoids, positive, count = (float(v[0]) for v in sums)
    assert (squared, absolute, scores) == (0.125, 0.5, 1.0)
    assert sigmoids == pytest.approx(float((1 / (1 + np.exp(-given["p"]))).sum()))
    assert (positive, count) == (1.0, 2.0)


def test_options_of_strategies_that_change_nothing() -> None:
    from paddle.distributed import fleet

    strategy = fleet.DistributedStrategy()
    strategy.trainer_desc_configs = {"dump_fields_path": "dump", "dump_fields": ["x"]}
    strategy.sparse_table_configs = {"table_class": "MemorySparseTable"}
    strategy.sharding_configs = {"acc_steps": 4, "pure_dp_degree": 2, "pp_bz": 1}
    assert strategy.trainer_desc_configs["dump_fields"] == ["x"]
    assert strategy.sharding_configs["gradient_merge_acc_step"] == 4
    assert strategy.sharding_configs["dp_degree"] == 2
    with pytest.raises(ValueError, match="no option 'acc_stops'"):
        strategy.sharding_configs = {"acc_stops": 4}


def test_means_and_cards(capsys: pytest.CaptureFixture[str]) -> None:
    import paddle
    from paddle import fluid

    mean = fluid.average.WeightedAverage()
    with pytest.raises(ValueError, match="no data"):
        mean.eval()
    mean.add(value=2.0, weight=1)
    mean.add(value=4.0, weight=3)
    assert mean.eval() == 3.5
    paddle.version.show()
    assert "full_version" in capsys.readouterr().out
    cards = paddle.device.cuda
    assert cards.max_memory_allocated() >= 0
    with cards.stream_guard(cards.current_stream()):
        cards.synchronize()


def test_operators_of_images_and_draws() -> None:
    import paddle
    from paddle import fluid

    paddle.enable_static()
    layers = fluid.layers
    x, i = fluid.data("x", [None, 4, 6, 8], "float32"), fluid.data("i", [None, 1], "int64")
    y, s = fluid.data("y", [None, 3], "float32"), fluid.data("s", [None, 5, 6], "float32")
    two, one = (layers.fill_constant([4], "float32", value) for value in (2.0, 1.0))
    chance = np.random.RandomState(0)
    given = {
        "x": chance.rand(2, 4, 6, 8).astype("float32"),
        "y": np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], "float32"),
        "i": np.array([[1], [0]]),
        "s": np.zeros((2, 5, 6), "float32"),
    }
    small = layers.image_resize_short(x, 3)
    part = layers.crop_tensor(x, [-1, 2, 3, 4], [0, 1, 1, 1])
    found = computed(
        small,
        layers.affine_channel(x, two, one),
        layers.shuffle_channel(x, 2),
        part,
        layers.pad_constant_like(x, part, 7.0),
        layers.multiplex([y, y * 2], i),
        layers.uniform_random_batch_size_like(x, [-1, 9], min=2.0, max=3.0),
        layers.sampling_id(y),
        layers.add_position_encoding(s, 1.0, 1.0),
        layers.scatter_nd(i, y[:, 2], [5]),
        layers.random_crop(x, [4, 3, 3]),
        *layers.mean_iou(i, i, 3),
        **given,
    )
    resized, scaled, shuffled, cut, padded, mixed, drawn, ids, places, spread, window, *mean = found
    assert resized.shape == (2, 4, 3, 4)
    np.testing.assert_allclose(scaled, given["x"] * 2 + 1, rtol=1e-6)
    np.testing.assert_array_equal(shuffled[:, 1], given["x"][:, 2])
    np.testing.assert_array_equal(cut, given["x"][:, 1:3, 1:4, 1:5])
    assert np.all(padded[:, 2:] == 7.0)
    assert mixed.tolist() == [[0.0, 0.0, 2.0], [1.0, 0.0, 0.0]]
    assert drawn.shape == (2, 9)
    assert np.all((drawn >= 2) & (drawn < 3))
    assert ids.tolist() == [2.0, 0.0]
    # As Paddle 2.6 gives it: sines first, then cosines.
    np.testing.assert_allclose(
        places[0, 1], [0.841471, 0.01, 1e-4, 0.540302, 0.99995, 1], atol=1e-6
    )
    assert spread.tolist() == [0.0, 1.0, 0.0, 0.0, 0.0]
    rows = np.lib.stride_tricks.sliding_window_view(given["x"], (3, 3), axis=(2, 3))
    assert any(np.array_equal(window, rows[:, :, a, b]) for a in range(4) for b in range(6))
    assert [np.asarray(value).ravel().tolist() for value in mean] == [[1.0], [0, 0, 0], [1, 1, 0]]


def test_graphs_and_distributions() -> None:
    import paddle

    rows = paddle.to_tensor([[0.0, 2.0, 3.0], [1.0, 4.0, 5.0], [2.0, 6.0, 7.0]])
    sent = paddle.incubate.graph_send_recv(
        rows, paddle.to_tensor([0, 1, 2, 0]), paddle.to_tensor([1, 2, 1, 0]), pool_type="sum"
    )
    assert sent.numpy().tolist() == [[0.0, 2.0, 3.0], [2.0, 8.0, 10.0], [1.0, 4.0, 5.0]]
    ids = paddle.to_tensor([0, 0, 1])
    assert paddle.incubate.segment_mean(rows, ids).numpy().tolist() == [[0.5, 3, 4], [2, 6, 7]]
    assert paddle.incubate.segment_max(rows, ids).numpy().tolist() == [[1, 4, 5], [2, 6, 7]]
    scores = paddle.ones([1, 1, 3, 3])
    shares = paddle.incubate.softmax_mask_fuse_upper_triangle(scores).numpy()[0, 0]
    np.testing.assert_allclose(shares[1], [0.5, 0.5, 0.0])
    normal = paddle.distribution.Normal(0.0, 1.0)
    assert normal.sample([2]).shape == [2]
    assert float(normal.log_prob(paddle.to_tensor(0.5))) == pytest.approx(-1.0439385)
    assert float(normal.entropy()) == pytest.approx(1.4189385)
    other = paddle.distribution.Normal(1.0, 1.0)
    assert float(paddle.distribution.kl_divergence(normal, other)) == pytest.approx(0.5)
    drawn = paddle.distribution.Categorical(paddle.to_tensor([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]]))
    assert drawn.sample([3]).shape == [3, 2]
    np.testing.assert_allclose(
        drawn.probs(paddle.to_tensor([2, 1])).numpy(), [[0.5, 0.3], [0.8, 0.1]], rtol=1e-6
    )


def test_pictures_texts_and_times() -> None:
    import paddle
    from paddle.vision import transforms

    image = (np.random.RandomState(1).rand(12, 16, 3) * 255).astype("uint8")
    for change in (
        transforms.ColorJitter(0.4, 0.4, 0.4, 0.2),
        transforms.RandomRotation(30),
        transforms.RandomErasing(1.0, value="random"),
    ):
        assert np.asarray(change(image)).shape == image.shape
    np.testing.assert_array_equal(transforms.adjust_brightness(image, 1.0), image)
    np.testing.assert_allclose(
        transforms.adjust_hue(image, 0.0), image, atol=8
    )  # hues have eight bits
    turned = transforms.rotate(image[:12, :12], 90)
    np.testing.assert_array_equal(turned, np.rot90(image[:12, :12]))
    blank = transforms.erase(paddle.ones([3, 4, 4]), 1, 1, 2, 2, 0.0)
    assert float(blank.sum()) == 36.0
    houses = paddle.text.UCIHousing(mode="test")
    assert houses[0][0].shape == (13,)
    assert houses[0][0].dtype == np.float32
    told: list[int] = []
    with paddle.profiler.Profiler(
        targets=[paddle.profiler.ProfilerTarget.CPU],
        scheduler=(1, 3),
        on_trace_ready=lambda found: told.append(found.step_num),
    ) as times:
        for _ in range(4):
            with paddle.profiler.RecordEvent("a step"):
                paddle.ones([2]) + 1
            times.step()
    assert told == [3]


def test_predictors_of_2_x(tmp_path: Any) -> None:
    import paddle
    from paddle import inference

    paddle.enable_static()
    x = paddle.static.data("x", [None, 3], "float32")
    one = paddle.nn.initializer.Constant(1.0)
    y = paddle.static.nn.fc(x, 2, weight_attr=paddle.ParamAttr(initializer=one))
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    path = str(tmp_path / "m")
    paddle.static.save_inference_model(path, [x], [y], exe)
    config = inference.Config(f"{path}.pdmodel", f"{path}.pdiparams")
    config.enable_memory_optim()
    predictor = inference.create_predictor(config)
    given = predictor.get_input_handle(predictor.get_input_names()[0])
    given.reshape([2, 3])
    given.copy_from_cpu(np.ones((2, 3), "float32"))
    predictor.run()
    shown = predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()
    assert shown.tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_numbered_checkpoints(tmp_path: Any) -> None:
    from paddle import fluid
    from paddle.fluid.incubate.fleet.base import role_maker
    from paddle.fluid.incubate.fleet.collective import TrainStatus, fleet
    from paddle.fluid.incubate.fleet.utils.fs import LocalFS

    fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))
    x = fluid.data("x", [None, 1], "float32")
    attr = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(1.0))
    loss = fluid.layers.mean(fluid.layers.fc(x, 1, param_attr=attr, bias_attr=False))
    fleet.distributed_optimizer(fluid.optimizer.SGD(0.5)).minimize(loss)
    exe, path = fluid.Executor(fluid.CPUPlace()), str(tmp_path / "kept")
    exe.run(fluid.default_startup_program())
    assert fleet.load_checkpoint(exe, path, 0, LocalFS()) is None
    with pytest.raises(FileNotFoundError, match="ignore_empty"):
        fleet.load_checkpoint(exe, path, 0, LocalFS(), ignore_empty=False)
    for epoch in range(3):
        exe.run(fleet.main_program, {"x": np.ones((1, 1), "float32")}, [])
        fleet.save_checkpoint(
            exe, path, 0, TrainStatus(epoch), LocalFS(), remain_all_checkpoint=epoch < 2
        )
    assert [p.name for p in (tmp_path / "kept").iterdir()] == ["__paddle_fleet_checkpoint__.2"]
    held = fluid.global_scope().find_var("w").get_tensor()
    held.set(np.zeros((1, 1), "float32"), exe.place)
    status = fleet.load_checkpoint(exe, path, 0, LocalFS())
    assert status == TrainStatus(2)
    assert status.next() == 3
    assert np.array(held).ravel().tolist() == [-0.5]


def test_eager_rates_and_units_of_1_8() -> None:
    from paddle import fluid

    dygraph = fluid.dygraph
    with dygraph.guard(fluid.CPUPlace()):
        linear = dygraph.Linear(1, 1, bias_attr=False)
        linear.weight.set_value(np.ones((1, 1), "float32"))
        rates = dygraph.PiecewiseDecay([1, 2], [0.5, 0.25, 0.125], 0)
        optimizer = fluid.optimizer.SGD(rates, parameter_list=linear.parameters())
        strategy, used = dygraph.BackwardStrategy(), []
        strategy.sort_sum_gradient = True
        for _ in range(3):
            loss = fluid.layers.mean(linear(dygraph.to_variable(np.ones((2, 1), "float32"))))
            loss.backward(strategy)
            optimizer.minimize(loss)
            linear.clear_gradients()
            used.append(float(optimizer._global_learning_rate().numpy()))
        assert used == [0.5, 0.25, 0.125]
        assert linear.weight.numpy().ravel().tolist() == [0.125]
        kept = optimizer.state_dict()
        other = fluid.optimizer.SGD(
            dygraph.PiecewiseDecay([1, 2], [0.5, 0.25, 0.125], 0),
            parameter_list=linear.parameters(),
        )
        other.set_dict(kept)
        assert other.current_step_lr() == 0.125

        base: Any = dygraph.learning_rate_scheduler.LearningRateDecay

        class Halved(base):  # type: ignore[misc]
            def step(self) -> float:
                return float(0.5**self.step_num)

        warm = dygraph.LinearLrWarmup(Halved(), 4, 0.0, 1.0, begin=0)
        assert [warm(at) for at in range(6)] == [0.0, 0.25, 0.5, 0.75, 0.5**4, 0.5**5]
        assert [Halved()() for _ in range(2)] == [1.0, 1.0]
        by_epoch = dygraph.StepDecay(1.0, 2, decay_rate=0.1)
        for _ in range(2):
            by_epoch.epoch()
        assert by_epoch() == pytest.approx(0.1)
        noam = dygraph.NoamDecay(16, 4)
        assert noam(3) == pytest.approx(16**-0.5 * 4**-0.5)
        poly = dygraph.PolynomialDecay(1.0, 4, 0.0, power=2.0)
        assert [poly(at) for at in (0, 2, 9)] == [1.0, 0.25, 0.0]
        state = dygraph.to_variable(np.zeros((2, 4), "float32"))
        row = dygraph.to_variable(np.ones((2, 12), "float32"))
        new, reset, gates = dygraph.GRUUnit(12)(row, state)
        gate, candidate = 1 / (1 + np.exp(-1.0)), np.tanh(1.0)
        np.testing.assert_allclose(new.numpy(), gate * candidate, rtol=1e-6)
        assert reset.shape == [2, 4]
        assert gates.shape == [2, 12]
        cube = dygraph.to_variable(np.ones((1, 2, 5, 5, 5), "float32"))
        assert dygraph.Conv3D(2, 3, 3)(cube).shape == [1, 3, 3, 3, 3]
        assert dygraph.BilinearTensorProduct(4, 12, 5)(state, row).shape == [2, 5]
        shown = dygraph.InstanceNorm(2)(
            dygraph.to_variable(np.random.rand(2, 2, 3, 3).astype("float32"))
        )
        np.testing.assert_allclose(shown.numpy().mean((2, 3)), 0.0, atol=1e-6)
