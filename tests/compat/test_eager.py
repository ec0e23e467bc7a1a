"""Eager Paddle: tensors, layers, models; the same layers in programs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fleetx.compat import imports, modes
from fleetx.testing import world
from tests.compat import eager_cases

GOLDEN = np.load(Path(__file__).parent / "data" / "eager.npz")


def _array(part: Any) -> Any:
    found = np.asarray(part.numpy() if hasattr(part, "numpy") else part)
    return found.reshape(1) if found.ndim == 0 else found


@pytest.mark.parametrize("name", eager_cases.CASES)
def test_results_are_those_of_paddle(name: str) -> None:
    import paddle

    made = eager_cases.CASES[name](paddle)
    for at, part in enumerate(made if isinstance(made, (list, tuple)) else [made]):
        wanted, found = _array(GOLDEN[f"{name}/{at}"]), _array(part)
        if wanted.dtype.kind == "U":
            assert list(wanted) == list(found)
            continue
        assert wanted.dtype == found.dtype or wanted.dtype.kind == "f"
        np.testing.assert_allclose(found, wanted, 2e-4, 2e-5, err_msg=f"result {at}")


def test_tensors_have_paddles_attributes() -> None:
    import paddle

    x = paddle.to_tensor([[1.0, 2.0], [3.0, 4.0]])
    assert x.shape == [2, 2]
    assert x.shape + [3] == [2, 2, 3]  # noqa: RUF005
    assert isinstance(x.shape, list)
    assert x.stop_gradient
    assert x.size == 4
    assert x.size(0) == 2
    assert x.ndim == 2
    assert x.dtype == paddle.float32
    assert isinstance(x, paddle.Tensor)
    assert float(paddle.mean(x).numpy()) == 2.5
    assert "%.1f" % paddle.mean(x).numpy() == "2.5"  # noqa: UP031
    assert f"{paddle.mean(x):.1f}" == "2.5"
    assert x[0][1].shape == [1]
    x.stop_gradient = False
    (x * x).backward()  # a sum
    assert x.gradient().tolist() == [[2.0, 4.0], [6.0, 8.0]]
    x.clear_grad()
    assert x.grad is None
    assert x._grad_ivar() is None
    assert np.array(x).sum() == 10.0
    x.set_value(np.zeros((2, 2), "float32"))
    assert not x.numpy().any()
    assert x.place is not None
    assert x.name.startswith("generated_tensor")


def test_torch_means_its_own_by_the_same_names() -> None:
    import paddle

    x = paddle.to_tensor(np.arange(6, dtype="float32").reshape(2, 3))
    assert [tuple(part.shape) for part in torch.split(x, 1)] == [(1, 3), (1, 3)]
    values, places = x.max(dim=1)
    assert values.tolist() == [2.0, 5.0]
    assert places.tolist() == [2, 2]
    assert x.transpose(0, 1).shape == [3, 2]
    assert torch.nn.functional.multi_head_attention_forward is not None
    assert torch.nn.MultiheadAttention(3, 1).to(x.device)(x, x, x)[0].shape == [2, 3]


def test_parameters_are_plain_parameters_with_names() -> None:
    import paddle

    layer = paddle.nn.Linear(2, 3)
    weight: Any = layer.weight
    assert type(weight).__name__ == "Parameter"
    assert weight.name == "linear_0.w_0"
    assert weight.numpy().shape == (2, 3)
    assert not weight.stop_gradient
    assert isinstance(layer.parameters(), list)
    assert next(layer.parameters()) is weight
    imports.uninstall()
    assert not hasattr(torch.Tensor, "stop_gradient")
    assert vars(torch.Tensor).keys().isdisjoint({"name", "numpy", "astype"})
    with pytest.raises(RuntimeError, match="requires grad"):
        weight.cpu().numpy()


def test_layers_have_paddles_methods() -> None:
    import paddle
    from paddle import nn

    class Net(nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
            self.block.add_sublayer("last", nn.Linear(3, 1))
            self.scale = self.create_parameter([1], default_initializer=lambda t: t.fill_(2.0))
            self.register_buffer("seen", paddle.zeros([1]))

        def forward(self, x: Any) -> Any:
            return self.block(x) * self.scale

    net, seen = Net(), []
    net.register_forward_post_hook(lambda layer, given, made: seen.append(made.shape))
    assert net(paddle.ones([4, 2])).shape == [4, 1]
    assert seen == [[4, 1]]
    assert net.full_name() == "net_0"
    assert len(net.sublayers()) == 4
    assert [name for name, _ in net.named_sublayers()] == [
        "block",
        "block.0",
        "block.1",
        "block.last",
    ]
    state = {key: value.numpy() for key, value in net.state_dict().items()}
    assert list(state) == ["scale", "seen", *[f"block.{at}" for at in _pairs()]]
    other = Net()
    assert other.set_state_dict(state) == ([], [])
    assert other.set_dict({**state, "more": 1}) == ([], ["more"])
    by_names = {value.name: value.numpy() for value in net.parameters()}
    missing, _ = net.set_state_dict(by_names, use_structured_name=False)
    assert len(missing) == 1  # the buffer
    with pytest.raises(ValueError, match=r"block.0.weight has the shape \[2, 3\]"):
        net.set_state_dict({"block.0.weight": np.zeros(3)})
    net.eval()
    assert not net.block.training
    paddle.mean(net(paddle.ones([4, 2]))).backward()
    net.clear_gradients()
    assert all(value.grad is None for value in net.parameters())
    assert net.to(dtype="float64").scale.dtype == paddle.float64


def _pairs() -> list[str]:
    return ["0.weight", "0.bias", "last.weight", "last.bias"]


def test_lists_of_layers_and_parameters() -> None:
    import paddle
    from paddle import nn

    layers = nn.LayerList([nn.Linear(2, 2)])
    layers.append(nn.Linear(2, 2))
    layers.insert(0, nn.ReLU())
    assert len(layers) == 3
    assert isinstance(layers[-3], nn.ReLU)
    assert len(layers[1:]) == 2
    del layers[0]
    assert len(list(layers)) == 2
    assert len(layers.parameters()) == 4
    given = nn.ParameterList([paddle.create_parameter([2], "float32", attr=None, is_bias=True)])
    assert len(given) == 1
    assert given[0].name == "create_parameter_0.b_0"
    assert list(nn.LayerDict({"a": nn.ReLU()}).keys()) == ["a"]


def test_dropout_and_random_numbers() -> None:
    import paddle
    import paddle.nn.functional as F

    paddle.seed(7)
    first = paddle.randn([3]).numpy()
    paddle.seed(7).manual_seed(7)
    assert (paddle.randn([3]).numpy() == first).all()
    x = paddle.ones([1000])
    for mode, kept in (("upscale_in_train", 2.0), ("downscale_in_infer", 1.0)):
        assert set(np.unique(F.dropout(x, 0.5, mode=mode).numpy())) == {0.0, kept}
    rows = paddle.nn.Dropout(p=0.5, axis=0)(paddle.ones([50, 4])).numpy()
    assert (rows == rows[:, :1]).all()
    state = paddle.get_cuda_rng_state()
    drawn = paddle.uniform([3], min=2.0, max=3.0).numpy()
    paddle.set_cuda_rng_state(state)
    assert (paddle.uniform([3], min=2.0, max=3.0).numpy() == drawn).all()
    assert (drawn >= 2).all()
    assert paddle.tensor.normal(5.0, 0.1, [100]).numpy().mean() == pytest.approx(5.0, abs=0.1)
    assert sorted(paddle.randperm(5).tolist()) == [0, 1, 2, 3, 4]
    assert paddle.multinomial(paddle.to_tensor([0.0, 1.0])).tolist() == [1]
    from paddle.framework import random

    random.set_random_seed_generator("model", 3)
    with random.guard_random_seed_generator("model"):
        inside = paddle.randn([2]).numpy()
    random.set_random_seed_generator("model", 3)
    with random.guard_random_seed_generator("model"):
        assert (paddle.randn([2]).numpy() == inside).all()


def test_devices_and_formats() -> None:
    import paddle

    assert paddle.set_device("gpu") is not None
    assert paddle.get_device() in {"cpu", "gpu:0"}
    assert paddle.set_device("cpu") is not None
    assert paddle.get_device() == "cpu"
    with pytest.raises(ValueError, match=r"'ipu:0'.* names a device"):
        paddle.set_device("ipu:0")
    paddle.device.forget()
    assert paddle.is_compiled_with_cuda() == torch.cuda.is_available()
    assert not paddle.is_compiled_with_npu()
    paddle.set_default_dtype("float64")
    assert paddle.ones([1]).dtype == paddle.float64
    assert paddle.get_default_dtype() == "float64"
    paddle.set_default_dtype("float32")
    with paddle.no_grad():
        assert paddle.nn.Linear(1, 1)(paddle.ones([1, 1])).stop_gradient


def test_a_step_of_mixed_precision() -> None:
    import paddle

    layer = paddle.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
    before = layer.weight.numpy().copy()
    with paddle.amp.auto_cast(dtype="bfloat16"):
        made = layer(paddle.ones([4, 2]))
    assert made.dtype == paddle.bfloat16
    loss = paddle.mean(made.astype("float32"))
    scaler._enable = True  # as on a card
    scaled = scaler.scale(loss)
    assert float(scaled) == pytest.approx(1024 * float(loss))
    scaled.backward()
    scaler.minimize(optimizer, scaled)
    assert np.allclose(before - layer.weight.numpy(), 0.1, atol=1e-2)
    layer.weight.grad = torch.full_like(layer.weight, float("inf"))
    kept = layer.weight.numpy().copy()
    for _ in range(2):
        scaler.step(optimizer)
        scaler.update()
    assert (layer.weight.numpy() == kept).all()
    assert scaler.state_dict()["scale"] == 512
    assert paddle.amp.decorate(layer, level="O2") is layer


def test_layers_in_programs_have_paddles_names_and_train() -> None:
    import paddle
    from paddle import nn

    paddle.enable_static()
    image = paddle.static.data("image", [None, 1, 28, 28], "float32")
    label = paddle.static.data("label", [None, 1], "int64")
    net = paddle.vision.models.LeNet()
    net.features.add_sublayer("norm", nn.BatchNorm2D(16))
    loss = nn.functional.cross_entropy(net(image), label)
    assert [p.name for p in net.parameters()][:3] == [
        "conv2d_0.w_0",
        "conv2d_0.b_0",
        "conv2d_1.w_0",
    ]
    assert "batch_norm2d_0.w_2" in [p.name for p in net.parameters()]
    assert loss.shape == [1]
    hits = paddle.metric.accuracy(input=net(image), label=label, k=1)
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    feed = {
        "image": np.random.rand(4, 1, 28, 28).astype("float32"),
        "label": np.zeros((4, 1), "int64"),
    }
    found = exe.run(feed=feed, fetch_list=[loss, hits])
    assert found[0].shape == (1,)
    assert 0 <= float(found[1]) <= 1
    assert set(net.state_dict()) >= {"features.0.weight", "features.norm._variance", "fc.2.bias"}


def test_recurrent_layers_of_programs_take_any_length() -> None:
    import paddle

    paddle.enable_static()
    x = paddle.static.data("x", [None, None, 3], "float32")
    made, (hidden, _) = paddle.nn.LSTM(3, 4, num_layers=2, direction="bidirectional")(x)
    encoded = paddle.nn.TransformerEncoderLayer(8, 2, 8)(made)
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    for length in (5, 9):
        feed = {"x": np.ones((2, length, 3), "float32")}
        found = exe.run(feed=feed, fetch_list=[made, hidden, encoded])
        shapes = [part.shape for part in found]
        assert shapes == [(2, length, 8), (4, 2, 4), (2, length, 8)]


def test_functions_in_programs() -> None:
    import paddle

    paddle.enable_static()
    x = paddle.static.data("x", [None, 4], "float32")
    rows = paddle.shape(x)[0]
    outputs = [
        x.transpose([1, 0]).reshape([2, -1]),
        paddle.zeros([rows, 3]) + paddle.full(shape=[1], fill_value=2.0, dtype="float32"),
        paddle.arange(0, 3, dtype="int64").unsqueeze(0).astype("float32"),
        paddle.cumsum(x, axis=1)[:, -1],
    ]
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    found = exe.run(feed={"x": np.ones((6, 4), "float32")}, fetch_list=outputs)
    assert [part.shape for part in found] == [(2, 12), (6, 3), (1, 3), (6,)]
    assert found[1][0, 0] == 2.0
    assert found[3][0] == 4.0


def test_a_layer_is_saved_as_a_program(tmp_path: Path) -> None:
    import paddle

    net = paddle.nn.Sequential(
        paddle.nn.Linear(3, 4), paddle.nn.BatchNorm1D(4), paddle.nn.Dropout(0.5)
    )
    spec = [paddle.static.InputSpec(shape=[None, 3], dtype="float32")]
    model = paddle.jit.to_static(net, input_spec=spec)
    paddle.jit.save(model, str(tmp_path / "net"))
    assert net.training
    x = paddle.randn([5, 3])
    net.eval()
    loaded = paddle.jit.load(str(tmp_path / "net"))
    np.testing.assert_allclose(loaded(x).numpy(), net(x).numpy(), 1e-5, 1e-6)
    with pytest.raises(ValueError, match="input_spec"):
        paddle.jit.save(paddle.nn.Linear(1, 1), str(tmp_path / "other"))


def test_data_sets_of_images() -> None:
    import paddle

    paddle.vision.set_image_backend("cv2")
    digits = paddle.vision.datasets.MNIST(mode="test")
    image, label = digits[0]
    assert image.shape == (28, 28)
    assert label.shape == (1,)
    assert image.dtype == np.float32
    T = paddle.vision.transforms
    change = T.Compose([T.Resize(8), T.RandomHorizontalFlip(), T.RandomCrop(6), T.ToTensor()])
    small = paddle.vision.datasets.Cifar10(mode="test", transform=change, backend="pil")
    assert small[3][0].shape == [3, 6, 6]
    assert len(small) > 100
    paddle.vision.set_image_backend("pil")
    with pytest.raises(ValueError, match="pil, cv2"):
        paddle.vision.set_image_backend("other")


def test_models_of_images_refuse_downloads() -> None:
    from paddle.vision.models import ResNet, resnet50
    from paddle.vision.models.resnet import BottleneckBlock

    with pytest.raises(ValueError, match="set_state_dict"):
        resnet50(pretrained=True)
    with pytest.raises(ValueError, match="18, 34, 50"):
        ResNet(BottleneckBlock, 51)


def test_eager_mode_of_paddle_1() -> None:
    import paddle
    from paddle import fluid

    with fluid.dygraph.guard():
        x = fluid.dygraph.to_variable(np.ones((2, 1, 8, 8), "float32"))
        net = fluid.dygraph.Sequential(
            fluid.dygraph.Conv2D(1, 2, 3, act="relu"),
            fluid.dygraph.Pool2D(pool_size=2, pool_type="max", pool_stride=2),
            fluid.dygraph.BatchNorm(2),
            fluid.dygraph.Dropout(0.5, dropout_implementation="upscale_in_train"),
        )
        made = net(x)
        head = fluid.dygraph.Linear(18, 3, act="softmax")
        loss = paddle.mean(head(made.reshape(shape=[2, -1])))
        loss.backward()
        assert made.shape == [2, 2, 3, 3]
        assert loss.numpy()[0] == pytest.approx(1 / 3)
        assert fluid.dygraph.Embedding([4, 2])(fluid.dygraph.to_variable(np.array([1]))).shape == [
            1,
            2,
        ]
        assert fluid.dygraph.FC("fc", 3)(x).shape == [2, 3]
        assert fluid.dygraph.parallel.ParallelEnv().nranks == 1
        assert fluid.dygraph.enabled()
    assert modes.in_dynamic_mode()


def test_gradients_of_an_own_operator() -> None:
    import paddle
    from paddle.autograd import PyLayer

    class Double(PyLayer):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            assert ctx.saved_tensor()[0].shape == [2]
            return dy * 5

    x = paddle.ones([2])
    x.stop_gradient = False
    Double.apply(x).backward()
    assert x.gradient().tolist() == [5.0, 5.0]


def test_training_in_one_call(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import paddle

    class Points(paddle.io.Dataset):  # type: ignore[misc]
        def __getitem__(self, at: int) -> Any:
            x = np.random.RandomState(at).randn(4).astype("float32")
            return x, np.array([int(x[0] > 0)], "int64")

        def __len__(self) -> int:
            return 64

    model = paddle.Model(paddle.nn.Linear(4, 2))
    optimizer = paddle.optimizer.Adam(0.05, parameters=model.parameters())
    model.prepare(optimizer, paddle.nn.CrossEntropyLoss(), paddle.metric.Accuracy())
    model.fit(Points(), batch_size=16, epochs=8, verbose=1)
    assert model.evaluate(Points(), batch_size=16, verbose=0)["acc"] > 0.8
    model.save(str(tmp_path / "m"))
    model.load(str(tmp_path / "m"))
    assert "epoch 7 step 0" in capsys.readouterr().out
    assert paddle.summary(model.network)["total_params"] == 10


def test_a_weight_without_its_norm_is_the_same() -> None:
    import paddle

    layer = paddle.nn.utils.weight_norm(paddle.nn.Linear(3, 4), dim=1)
    x = paddle.randn([2, 3])
    before = layer(x).numpy()
    assert sorted(layer.state_dict()) == ["bias", "weight_g", "weight_v"]
    paddle.nn.utils.remove_weight_norm(layer)
    assert sorted(layer.state_dict()) == ["bias", "weight"]
    np.testing.assert_allclose(layer(x).numpy(), before, 1e-5)


def test_small_helpers(tmp_path: Path) -> None:
    import paddle
    from paddle.utils.download import _get_unique_endpoints, get_path_from_url

    assert paddle.utils.try_import("re").findall("a", "aba") == ["a", "a"]
    with pytest.raises(ImportError, match="pip install nothing_like_this"):
        paddle.utils.try_import("nothing_like_this")
    ends = ["10.0.0.2:1", "10.0.0.1:2", "10.0.0.1:1"]
    assert _get_unique_endpoints(ends) == ["10.0.0.1:1", "10.0.0.2:1"]
    (tmp_path / "f.txt").write_text("x")
    assert get_path_from_url("http://nowhere/f.txt", str(tmp_path), None) == str(tmp_path / "f.txt")
    paddle.utils.run_check()
    from paddle.nn.layer.transformer import _convert_param_attr_to_list

    attrs = _convert_param_attr_to_list(paddle.ParamAttr(name="w"), 2)
    assert [attr.name for attr in attrs] == ["w_0", "w_1"]
    assert _convert_param_attr_to_list(False, 3) == [False] * 3


def _steps(settings: dict[str, Any]) -> list[Any]:
    """Losses of a layer under a strategy, and the sum of its weights."""
    import fleetx as fleet

    imports.install()
    try:
        import paddle
        import paddle.nn.functional as F
        from paddle import nn

        class Net(nn.Layer):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.table, self.one = nn.Embedding(10, 8), nn.Linear(8, 16)
                self.norm, self.two = nn.BatchNorm1D(16), nn.Linear(16, 2)

            def forward(self, x: Any, ids: Any) -> Any:
                return self.two(F.relu(self.norm(self.one(x + self.table(ids)))))

        strategy = fleet.DistributedStrategy()
        for name, value in settings.items():
            setattr(strategy, name, value)
        fleet.init(is_collective=True, strategy=strategy)
        paddle.seed(3)
        model = fleet.distributed_model(Net())
        rule = torch.optim.SGD(model.parameters(), lr=0.2)
        optimizer = fleet.distributed_optimizer(rule)
        x = eager_cases.numbers(16, 8, seed=fleet.worker_index())
        given = paddle.to_tensor(x), paddle.to_tensor((x[:, 1] > 0).astype("int64"))
        losses = []
        for _ in range(10):
            made = F.cross_entropy(model(*given), paddle.to_tensor((x[:, :1] > 0).astype("int64")))
            made.backward()
            optimizer.step()
            optimizer.clear_grad()
            losses.append(float(made))
        return [losses[0], losses[-1], float(model.state_dict()["one.weight"].sum())]
    finally:
        imports.uninstall()


@pytest.mark.parametrize(
    "settings",
    [
        {"sync_batch_norm": True, "recompute": True, "recompute_configs": {"checkpoints": ["one"]}},
        {"amp": True, "amp_configs": {"use_pure_bf16": True}},
    ],
    ids=["sync_batch_norm, recompute", "bf16"],
)
def test_a_layer_trains_on_two_workers(settings: dict[str, Any]) -> None:
    first, second = world(2).run(_steps, settings)
    assert first[1] < first[0]
    assert second[1] < second[0]
    assert first[2] == second[2]


def test_tensors_are_printed_as_paddle_does() -> None:
    import paddle

    paddle.set_device("cpu")
    text = (
        "Tensor(shape=[2], dtype=float32, place=Place(cpu), stop_gradient=True,\n       [1., 2.])"
    )
    assert repr(paddle.to_tensor([1.0, 2.0])) == text
    paddle.device.forget()
