"""Habits of scripts that people published: what they import, ask, and hand to losses."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetx.compat.moved_modules import MOVED
from fleetx.testing import world
from tests.compat.workers import served


def test_modules_that_moved_are_taken_from_the_one_above_them() -> None:
    for name, module in MOVED.items():
        above, _, last = name.rpartition(".")
        found = getattr(importlib.import_module(above), last)
        assert found is importlib.import_module(module), name
    names: dict[str, Any] = {}
    exec(
        "from paddle import base\n"
        "from paddle.base import unique_name\n"
        "import paddle.base.unique_name\n"
        "from paddle.incubate.distributed.fleet import role_maker\n",
        names,
    )
    assert names["base"] is importlib.import_module("paddle.fluid")
    assert names["unique_name"] is names["base"].unique_name
    assert callable(names["role_maker"].PaddleCloudRoleMaker)


def test_a_star_brings_the_names_of_a_table() -> None:
    names: dict[str, Any] = {}
    exec("from paddle.fluid import *\nfrom paddle.fluid.layers import *", names)
    exec("from paddle.fluid.dygraph.nn import *\nfrom paddle.fluid.dygraph.base import *", names)
    assert {"Executor", "layers", "fc", "cross_entropy", "Embedding", "to_variable"} <= set(names)
    assert not any(name.startswith("_") and name != "__builtins__" for name in names)
    import paddle

    assert {"Adam", "Momentum"} <= set(paddle.optimizer.__all__)
    assert {"ReLU", "Sigmoid", "PReLU"} <= set(paddle.nn.layer.activation.__all__)


def test_workers_are_met_once() -> None:
    import paddle
    import paddle.distributed as dist

    helper = paddle.distributed.parallel.parallel_helper
    assert not helper._is_parallel_ctx_initialized()
    dist.init_parallel_env()
    assert helper._is_parallel_ctx_initialized()
    assert not helper._is_data_parallel_mode()  # one worker


def test_an_initializer_takes_the_block_of_a_parameter() -> None:
    import paddle

    weight = paddle.nn.Linear(2, 2).weight
    paddle.nn.initializer.Constant(3.0)(weight, weight.block)
    assert weight.numpy().tolist() == [[3.0, 3.0], [3.0, 3.0]]


@pytest.mark.parametrize(
    ("sizes", "shape", "options"),
    [
        ([4, 10], [3, 1], {}),  # fewer labels than rows
        ([4, 10], [4, 2], {}),
        ([4, 10], [4, 10], {}),  # one of each class, in whole numbers
        ([4, 10], [4, 1, 1], {}),
        ([4, 10], [4, 1], {"soft_label": True}),
        ([2, 10, 3], [2, 4], {"axis": 1}),
    ],
)
def test_labels_of_other_rows_are_refused(sizes: Any, shape: Any, options: Any) -> None:
    import paddle
    from paddle import fluid

    scores, labels = paddle.zeros(sizes), paddle.zeros(shape, "int64")
    with pytest.raises(ValueError, match="do not belong to predictions"):
        paddle.nn.functional.cross_entropy(scores, labels, **options)
    with pytest.raises(ValueError, match="do not belong to predictions"):
        fluid.layers.softmax_with_cross_entropy(scores, labels, **options)


def test_labels_of_their_rows_are_taken() -> None:
    import paddle

    scores, loss = paddle.zeros([4, 10]), paddle.nn.CrossEntropyLoss()
    for labels in (paddle.zeros([4], "int64"), paddle.zeros([4, 1], "int32")):
        assert np.allclose(loss(scores, labels).numpy(), np.log(10))
    shares = paddle.full([4, 10], 0.1)
    assert np.allclose(paddle.nn.CrossEntropyLoss(soft_label=True)(scores, shares), np.log(10))
    for one in (paddle.nn.functional.log_loss, paddle.nn.functional.smooth_l1_loss):
        with pytest.raises(ValueError, match="one to each number"):
            one(paddle.full([4, 1], 0.5), paddle.zeros([4]))
    with pytest.raises(ValueError, match="do not belong"):
        paddle.metric.accuracy(scores, paddle.zeros([3, 1], "int64"))


def test_shapes_of_what_a_layer_has_are_lists() -> None:
    import paddle

    layer = paddle.nn.BatchNorm1D(2)
    assert layer.weight.shape == [2]
    assert layer.weight.shape.index(2) == 0
    for held in layer.state_dict().values():
        assert held.shape == list(held.shape)  # whoever loads leaves out what differs
    layer.state_dict()["_mean"].set_value(np.array([3.0, 4.0], "float32"))
    assert layer._mean.numpy().tolist() == [3.0, 4.0]


def test_samples_of_one_field_are_a_tensor() -> None:
    import paddle

    rows = [np.full(3, number, "float32") for number in range(4)]
    for batch in paddle.io.DataLoader(rows, batch_size=2):
        assert batch.shape == [2, 3]
    for batch in paddle.io.DataLoader([(row,) for row in rows], batch_size=2):
        assert [field.shape for field in batch] == [[2, 3]]


def test_pieces_of_texts_are_counted() -> None:
    from paddle import fluid

    counted = fluid.metrics.ChunkEvaluator()
    assert counted.eval() == (0.0, 0.0, 0.0)
    counted.update(np.array([10]), np.array([9]), np.array([8]))
    counted.update(2, 3, 1)
    assert counted.eval() == pytest.approx((9 / 12, 9 / 12, 9 / 12))  # as Paddle counts


def test_layers_of_1_6_are_told_apart() -> None:
    from paddle.fluid.dygraph import nn

    with pytest.raises(TypeError, match=r"name_scope, as in Paddle 1\.6"):
        nn.Embedding("table", size=[10, 4])
    assert nn.Embedding(size=[10, 4]).weight.shape == [10, 4]


def parts_of_programs() -> str:
    """A parameter of which each worker of a program would have a part."""
    with served():
        import paddle
        from paddle.distributed import fleet

        paddle.enable_static()
        fleet.init(is_collective=True)
        weight = paddle.static.create_parameter([2, 2], "float32", name="part")
        try:
            weight.is_distributed = True
        except NotImplementedError as error:
            return str(error)
        return ""


def test_parts_of_parameters_are_refused_in_programs() -> None:
    assert all("paddle.distributed.split" in told for told in world(2).run(parts_of_programs))


@pytest.mark.parametrize("old", [True, False])
def test_a_program_that_is_fed_too_few_labels_stops(old: bool) -> None:
    import paddle
    from paddle import fluid

    paddle.enable_static()
    x = fluid.data("x", [None, 3], "float32")
    label = fluid.data("label", [None, 1], "int64")
    cost = (
        fluid.layers.cross_entropy(fluid.layers.softmax(x), label)
        if old
        else paddle.nn.functional.cross_entropy(x, label, reduction="none")
    )
    exe = fluid.Executor(fluid.CPUPlace())
    feed = {"x": np.ones((4, 3), "float32"), "label": np.zeros((4, 1), "int64")}
    assert np.allclose(exe.run(feed=feed, fetch_list=[cost])[0], np.log(3))
    with pytest.raises(Exception, match="size of tensor"):
        exe.run(feed={**feed, "label": np.zeros((3, 1), "int64")}, fetch_list=[cost])


def test_auto_is_switched_off_again_and_stands_in_a_file(tmp_path: Path) -> None:
    from paddle.distributed import fleet

    strategy, read = fleet.DistributedStrategy(), fleet.DistributedStrategy()
    strategy.auto = strategy.amp = True
    strategy.save_to_prototxt(str(tmp_path / "strategy.prototxt"))
    read.load_from_prototxt(str(tmp_path / "strategy.prototxt"))
    assert (read.auto, read.amp) == (True, True)
    strategy.auto = False
    assert strategy.auto is False


def test_a_topology_of_a_script_s_own() -> None:
    from paddle.distributed import fleet

    topology = fleet.CommunicateTopology(["data", "pipe", "model"], [2, 2, 2])
    assert topology.world_size() == 8
    assert topology.get_hybrid_group_names() == ["data", "pipe", "model"]
    assert topology.get_coord(5) == (1, 0, 1)
    assert topology.get_coord(5).model == 1
    assert topology.get_rank(data=1, pipe=0, model=1) == 5
    assert topology.get_rank_from_stage(5, pipe=1) == 7
    assert topology.get_axis_list("data", 1) == [4, 5, 6, 7]
    assert topology.get_comm_list("pipe") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    fleet.init(is_collective=True)
    with pytest.raises(ValueError, match="hybrid_configs"):
        fleet.HybridCommunicateGroup(topology)
    group = fleet.HybridCommunicateGroup(fleet.CommunicateTopology())
    ranks, along = group._set_comm_group("model")
    assert (ranks, along.nranks) == ([0], 1)


def test_one_number_is_formatted() -> None:
    from fleetx.compat.arrays import scalar_like

    assert f"{scalar_like(np.array([0.25])):.1f} {scalar_like(np.array([1, 2]))}" == "0.2 [1 2]"


def beside_the_wrapper() -> Any:
    """A layer is called itself, as scripts of Paddle 1 could; statistics stay a worker's own."""
    with served():
        import paddle
        import paddle.distributed as dist

        dist.init_parallel_env()
        rank = dist.get_rank()
        layer = paddle.nn.Linear(2, 1)
        model = paddle.DataParallel(layer)
        x = paddle.full([3, 2], float(1 + rank))
        loss = model.scale_loss(paddle.sum(layer(x)))
        loss.backward()
        model.apply_collective_grads()
        beside = layer.weight.grad.numpy().ravel().tolist()
        layer.clear_gradients()
        paddle.sum(model(x)).backward()
        model.apply_collective_grads()
        through = layer.weight.grad.numpy().ravel().tolist()
        norm = paddle.DataParallel(paddle.nn.BatchNorm1D(2))
        norm(x)
        norm(x)
        return beside, through, norm._layers._mean.numpy().tolist()


def test_gradients_are_exchanged_once_and_statistics_never() -> None:
    first, second = world(2).run(beside_the_wrapper)
    assert first[:2] == second[:2] == ([4.5, 4.5], [4.5, 4.5])  # the mean of 3 and 6
    assert np.allclose(first[2], 0.19)
    assert np.allclose(second[2], 0.38)
