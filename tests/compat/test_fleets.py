"""Fleets of all generations on two workers, and what eager scripts exchange by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fleetx.testing import world
from tests.compat.workers import served


def line(step: int, rank: int) -> tuple[Any, Any]:
    """A batch of points of a line."""
    chance = np.random.RandomState(10 * step + rank)
    x = chance.randn(8, 4).astype("float32")
    return x, x.sum(1, keepdims=True)


def eager_model() -> Any:
    """``fleet.distributed_model`` and ``distributed_optimizer``."""
    import paddle
    from paddle.distributed import fleet

    fleet.init(is_collective=True, strategy=fleet.DistributedStrategy())
    paddle.seed(3)
    layer = paddle.nn.Sequential(paddle.nn.Linear(4, 8), paddle.nn.ReLU(), paddle.nn.Linear(8, 1))
    scheduler = paddle.optimizer.lr.PiecewiseDecay(boundaries=[10], values=[0.05, 0.02])
    plain = paddle.optimizer.Momentum(
        learning_rate=scheduler,
        momentum=0.9,
        weight_decay=1e-4,
        parameters=layer.parameters(),
        grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0),
    )
    optimizer = fleet.distributed_optimizer(plain)
    model = fleet.distributed_model(layer)
    losses = []
    for step in range(20):
        x, y = line(step, fleet.worker_index())
        loss = paddle.nn.functional.mse_loss(model(paddle.to_tensor(x)), paddle.to_tensor(y))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        scheduler.step()
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 2
    assert optimizer.get_lr() == pytest.approx(0.02)
    return [np.array(p.numpy()).tolist() for p in model.parameters()]


def data_parallel() -> Any:
    """``paddle.DataParallel`` and ``minimize``."""
    import paddle
    import paddle.distributed as dist

    dist.init_parallel_env()
    paddle.seed(dist.get_rank())
    model = paddle.DataParallel(paddle.nn.Linear(4, 1))
    optimizer = paddle.optimizer.Adam(0.1, parameters=model.parameters())
    first = last = 0.0
    for _ in range(10):
        x, y = line(0, dist.get_rank())
        loss = paddle.mean((model(paddle.to_tensor(x)) - paddle.to_tensor(y)) ** 2)
        loss = model.scale_loss(loss)
        loss.backward()
        model.apply_collective_grads()
        optimizer.minimize(loss)
        model.clear_gradients()
        first, last = first or float(loss), float(loss)
    assert last < first
    assert sorted(model.state_dict()) == ["bias", "weight"]
    return [np.array(p.numpy()).tolist() for p in model.parameters()]


def by_hand() -> Any:
    """Collectives."""
    import paddle
    import paddle.distributed as dist

    dist.init_parallel_env()
    rank, env = dist.get_rank(), dist.ParallelEnv()
    assert (env.local_rank, env.world_size, env.nranks) == (rank, 2, 2)
    value = paddle.to_tensor([1.0 + rank])
    dist.all_reduce(value)
    assert value.numpy().tolist() == [3.0]
    dist.broadcast(value, 0)
    parts: list[Any] = []
    dist.all_gather(parts, paddle.to_tensor([rank]))
    assert [int(part) for part in parts] == [0, 1]
    largest = paddle.to_tensor([rank])
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    out: list[Any] = []
    dist.alltoall([paddle.to_tensor([rank * 10 + i]) for i in range(2)], out)
    mean, place = paddle.to_tensor([1.0 + rank]), paddle.to_tensor([0.0])
    dist.reduce(mean, 0, op=dist.ReduceOp.AVG)
    assert float(mean) == (1.5 if rank == 0 else 2.0)
    dist.reduce_scatter(place, [paddle.to_tensor([1.0 + rank])] * 2, op=dist.ReduceOp.AVG)
    assert float(place) == 1.5
    own = paddle.to_tensor([0.0])
    dist.scatter(own, [paddle.to_tensor([5.0]), paddle.to_tensor([6.0])], src=1)
    dist.barrier()
    group = dist.new_group([0, 1])
    assert group.nranks == 2
    return [int(largest), [int(entry) for entry in out], float(own)]


def cut_layers() -> Any:
    """Layers cut over two workers compute what whole ones do."""
    import paddle
    from paddle.distributed import collective, fleet
    from paddle.distributed.fleet import meta_parallel as parts

    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 2, "pp_degree": 1}
    fleet.init(is_collective=True, strategy=strategy)
    group = fleet.get_hybrid_communicate_group()
    rank = group.get_model_parallel_rank()
    assert group.get_model_parallel_world_size() == 2
    assert (group.get_data_parallel_rank(), group.get_stage_id()) == (0, 0)

    class Net(paddle.nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            assign = paddle.nn.initializer.Assign
            chance = np.random.RandomState(0)
            shapes = {"table": (6, 4), "up": (4, 8), "down": (8, 6)}
            self.whole = {k: chance.randn(*s).astype("float32") for k, s in shapes.items()}
            attr = {k: paddle.ParamAttr(initializer=assign(v)) for k, v in self.whole.items()}
            self.table = parts.VocabParallelEmbedding(6, 4, weight_attr=attr["table"])
            self.up = parts.ColumnParallelLinear(
                4, 8, weight_attr=attr["up"], has_bias=True, gather_output=False
            )
            self.down = parts.RowParallelLinear(
                8, 6, weight_attr=attr["down"], has_bias=True, input_is_parallel=True
            )
            self.loss = parts.ParallelCrossEntropy()

        def forward(self, ids: Any, labels: Any) -> Any:
            out = self.down(paddle.tanh(self.up(self.table(ids))))
            own = collective._c_split(out, group=group.get_model_parallel_group())
            return out, self.loss(own, labels)

    net = Net()
    assert list(net.up.weight.shape) == [4, 4]
    model = fleet.distributed_model(net)
    plain = paddle.optimizer.SGD(
        0.5, parameters=model.parameters(), grad_clip=paddle.nn.ClipGradByGlobalNorm(0.1)
    )
    optimizer = fleet.distributed_optimizer(plain)
    ids, labels = paddle.to_tensor([0, 5, 3]), paddle.to_tensor([[1], [4], [0]])
    out, loss = model(ids, labels)
    whole = net.whole
    hidden = np.tanh(whole["table"][[0, 5, 3]] @ whole["up"])
    expected = hidden @ whole["down"]
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-4, atol=1e-5)
    powers = np.exp(expected)
    told = -np.log(powers[np.arange(3), [1, 4, 0]] / powers.sum(1))
    np.testing.assert_allclose(loss.numpy().ravel(), told, rtol=1e-4)
    before = np.array(net.down.weight.numpy())
    loss.mean().backward()
    optimizer.step()
    optimizer.clear_grad()
    slope = powers / powers.sum(1, keepdims=True)
    slope[np.arange(3), [1, 4, 0]] -= 1
    moved = (before - np.array(net.down.weight.numpy())) / 0.5
    whole_gradient = (hidden.T @ slope / 3)[4 * rank : 4 * rank + 4]
    ratio = moved / whole_gradient
    np.testing.assert_allclose(ratio, ratio.mean(), rtol=1e-3)
    return float(ratio.mean())


def local_steps() -> Any:
    """LocalSGD of Paddle 1: by turns alone and together."""
    from paddle import fluid
    from paddle.fluid.incubate.fleet.base import role_maker
    from paddle.fluid.incubate.fleet.collective import DistributedStrategy, fleet

    fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))
    x = fluid.layers.data(name="x", shape=[4], dtype="float32")
    y = fluid.layers.data(name="y", shape=[1], dtype="float32")
    loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(input=x, size=1) - y))
    strategy = DistributedStrategy()
    strategy.use_local_sgd = True
    strategy.mode, strategy.collective_mode = "collective", "local_sgd"
    optimizer = fleet.distributed_optimizer(
        fluid.optimizer.SGD(learning_rate=0.05), strategy=strategy
    )
    optimizer.minimize(loss, fluid.default_startup_program())
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fleet.startup_program())
    values = []
    for step in range(6):
        a, b = line(step, fleet.worker_index())
        chosen = fleet.main_program if step % 3 == 2 else fleet._origin_program
        exe.run(chosen, feed={"x": a, "y": b}, fetch_list=[loss.name])
        found = fluid.global_scope().find_var("fc_0.w_0").get_tensor()
        values.append(np.array(found).ravel().tolist())
    return values


def pipeline() -> Any:
    """A ``PipelineLayer`` over two workers."""
    import paddle
    from paddle.distributed import fleet
    from paddle.distributed.fleet.meta_parallel import LayerDesc, PipelineLayer

    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 1, "pp_degree": 2}
    strategy.pipeline_configs = {"accumulate_steps": 2, "micro_batch_size": 4}
    fleet.init(is_collective=True, strategy=strategy)
    paddle.seed(7)
    layers = [
        LayerDesc(paddle.nn.Linear, 4, 16),
        LayerDesc(paddle.nn.ReLU),
        LayerDesc(paddle.nn.Linear, 16, 16),
        paddle.tanh,
        LayerDesc(paddle.nn.Linear, 16, 1),
    ]
    net = PipelineLayer(layers=layers, num_stages=2, loss_fn=paddle.nn.MSELoss())
    model = fleet.distributed_model(net)
    optimizer = fleet.distributed_optimizer(
        paddle.optimizer.SGD(learning_rate=0.1, parameters=net.parameters())
    )
    losses = []
    for step in range(8):
        x, y = line(step % 2, 0)
        loss = model.train_batch([paddle.to_tensor(x), paddle.to_tensor(y)], optimizer, None)
        losses.append(float(loss.numpy()[0]))
    assert losses[-1] < losses[0]
    return losses


def shared_layer() -> Any:
    """One table at both ends of a pipeline, and pairs of tensors between the stages."""
    import paddle
    from paddle.distributed import fleet
    from paddle.distributed.fleet.meta_parallel import LayerDesc, PipelineLayer, SharedLayerDesc

    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 1, "pp_degree": 2}
    strategy.pipeline_configs = {"accumulate_steps": 2, "micro_batch_size": 4}
    fleet.init(is_collective=True, strategy=strategy)

    class Words(paddle.nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = paddle.nn.Embedding(10, 6)

        def forward(self, given: Any) -> Any:
            ids, extra = given
            return self.table(ids), extra

    class Mixed(paddle.nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = paddle.nn.Linear(6, 6)

        def forward(self, given: Any) -> Any:
            words, extra = given
            return self.inner(words) + extra.unsqueeze(-1), extra

    def logits(words: Any, given: Any) -> Any:
        return paddle.matmul(given[0], words.table.weight, transpose_y=True)

    def loss_of(made: Any, labels: Any) -> Any:
        return paddle.nn.functional.cross_entropy(made, labels[0])

    paddle.seed(11)
    net = PipelineLayer(
        layers=[
            SharedLayerDesc("words", Words, shared_weight_attr="table"),
            LayerDesc(Mixed),
            LayerDesc(Mixed),
            SharedLayerDesc("words", Words, forward_func=logits, shared_weight_attr="table"),
        ],
        loss_fn=loss_of,
        seg_method="layer:Mixed",
        recompute_interval=1,
    )
    optimizer = paddle.optimizer.SGD(learning_rate=0.5, parameters=net.parameters())
    model = fleet.distributed_model(net)
    optimizer = fleet.distributed_optimizer(optimizer)
    keys = sorted(net.state_dict())
    chance = np.random.RandomState(5)
    ids = paddle.to_tensor(chance.randint(0, 10, (8, 3)))
    extra = paddle.to_tensor(chance.randn(8, 3).astype("float32"))
    losses = [float(model.train_batch([(ids, extra), (ids,)], optimizer)) for _ in range(6)]
    assert losses[-1] < losses[0]
    checked = float(model.eval_batch([(ids, extra), (ids,)]))
    assert checked < losses[-1]
    return keys, losses, net.shared_layers["words"].table.weight.numpy().tolist()


def spread() -> Any:
    """States, gradients and parameters spread over two workers train as one worker does."""
    import paddle
    import paddle.distributed as dist
    from paddle.distributed.sharding import group_sharded_parallel

    dist.init_parallel_env()
    x, y = line(0, 0)
    half = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
    found = []
    for level in ("os", "p_g_os", None):
        paddle.seed(4)
        net = paddle.nn.Sequential(paddle.nn.Linear(4, 8), paddle.nn.Tanh(), paddle.nn.Linear(8, 1))
        net[0].weight.set_value(np.linspace(-1, 1, 32).reshape(4, 8).astype("float32"))
        net[2].weight.set_value(np.linspace(1, -1, 8).reshape(8, 1).astype("float32"))
        optimizer = paddle.optimizer.Adam(0.1, parameters=net.parameters())
        given = (x, y)
        if level is not None:
            scaler = paddle.amp.GradScaler(init_loss_scaling=8.0)
            net, optimizer, scaler = group_sharded_parallel(net, optimizer, level, scaler)
            given = (x[half], y[half])
        for _ in range(3):
            loss = ((net(paddle.to_tensor(given[0])) - paddle.to_tensor(given[1])) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
        found.append([p.numpy().ravel().tolist() for p in net.parameters()])
    for spread_out in found[:2]:
        for one, other in zip(spread_out, found[2], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    return len(found)


def changed_gradients() -> Any:
    """Gradients that a script limits by hand, between the halves of ``minimize``."""
    from paddle import fluid
    from paddle.fluid.incubate.fleet.base import role_maker
    from paddle.fluid.incubate.fleet.collective import fleet

    fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))
    layers = fluid.layers
    x = layers.data("x", [2])
    attr = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(1.0))
    loss = layers.mean(layers.square(layers.fc(x, 1, param_attr=attr, bias_attr=False)))
    optimizer = fleet.distributed_optimizer(fluid.optimizer.SGD(0.1))
    ((weight, gradient),) = optimizer.backward(loss)
    optimizer.apply_gradients([(weight, layers.clip(gradient, -1.0, 3.0))])
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    rows = [[1.0, 2.0], [3.0, -1.0]][fleet.worker_index()]
    found = exe.run(
        fleet.main_program, feed={"x": np.array([rows], "float32")}, fetch_list=[gradient]
    )
    held = np.array(fluid.global_scope().find_var("w").get_tensor())
    return found[0].ravel().tolist(), held.ravel().tolist()


def staged_reader() -> Any:
    """A pipeline of a program: its reader delivers micro-batches, and the last stage fetches."""
    import paddle
    from paddle import fluid
    from paddle.distributed import fleet

    paddle.enable_static()
    fleet.init(is_collective=True)
    strategy = fleet.DistributedStrategy()
    strategy.sharding = True
    strategy.sharding_configs = {
        **{"pp_degree": 2, "sharding_degree": 1, "mp_degree": 1, "pure_dp_degree": 1},
        **{"acc_steps": 2, "pp_bz": 4, "schedule_mode": 1, "hybrid_dp": True},
    }
    strategy.amp = False
    strategy.amp_configs = {"use_fp16_guard": False}
    attr = fluid.ParamAttr(initializer=fluid.initializer.Constant(0.5))
    with fluid.device_guard("gpu:0"):
        x, y = fluid.data("x", [-1, 4], "float32"), fluid.data("y", [-1, 1], "float32")
        loader = fluid.io.DataLoader.from_generator([x, y], capacity=8, iterable=False)
        hidden = fluid.layers.fc(x, 2, param_attr=attr)
    with fluid.device_guard("gpu:1"):
        made = fluid.layers.fc(hidden, 1, param_attr=attr)
        loss = fluid.layers.mean(fluid.layers.square_error_cost(made, y))
    fleet.distributed_optimizer(fluid.optimizer.SGD(0.05), strategy).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    loader.set_batch_generator(lambda: (line(step, 0) for step in range(7)))
    loader.start()
    shown = []
    try:
        while True:
            fetches = [loss] if fleet.worker_index() else []
            shown.append([float(v[0]) for v in exe.run(fleet.main_program, fetch_list=fetches)])
    except fluid.core.EOFException:
        loader.reset()
    return shown


SCENES: dict[str, Callable[[], Any]] = {
    scene.__name__: scene
    for scene in (
        *(eager_model, data_parallel, by_hand, cut_layers, local_steps, pipeline),
        *(shared_layer, spread, changed_gradients, staged_reader),
    )
}


def all_scenes(*names: str) -> dict[str, Any]:
    """One script after another, on one of two workers."""
    made = {}
    for name, scene in SCENES.items():
        if names and name not in names:
            continue
        with served():
            made[name] = scene()
    return made


def test_two_workers() -> None:
    first, second = world(2, timeout=120).run(all_scenes)
    for name in ("eager_model", "data_parallel", "pipeline"):
        for one, other in zip(first[name], second[name], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
    (keys, losses, table), (others, same_losses, same_table) = (
        made["shared_layer"] for made in (first, second)
    )
    assert keys == ["1.inner.bias", "1.inner.weight", "shared_layers.words.table.weight"]
    assert others == ["2.inner.bias", "2.inner.weight", "shared_layers.words.table.weight"]
    assert losses == same_losses
    np.testing.assert_allclose(table, same_table, rtol=1e-6)
    assert first["spread"] == second["spread"] == 3
    # [6, 12] and [12, -4] have the mean [9, 4], of which three are left.
    assert first["changed_gradients"] == second["changed_gradients"]
    assert first["changed_gradients"][0] == pytest.approx([9, 4])
    assert first["changed_gradients"][1] == pytest.approx([0.7, 0.7])
    # Seven micro-batches are three runs of two; half of the inputs is half of the sums.
    assert first["staged_reader"] == [[], [], []]
    error = np.concatenate([line(step, 0)[1] for step in range(2)]) / 2
    (begun,), _, (ended,) = second["staged_reader"]
    assert begun == pytest.approx(float(np.mean(error**2)), rel=1e-4)
    assert ended < begun / 2
    assert first["by_hand"] == [1, [0, 10], 5.0]
    assert second["by_hand"] == [1, [1, 11], 6.0]
    assert first["cut_layers"] == pytest.approx(second["cut_layers"], rel=1e-4)
    same = [
        np.allclose(a, b) for a, b in zip(first["local_steps"], second["local_steps"], strict=True)
    ]
    assert same == [False, False, True, False, False, True]
