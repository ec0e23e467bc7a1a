"""What is distributed, called once by one worker with the keywords that scripts pass."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetx import roles


@pytest.fixture(autouse=True)
def one_job() -> Iterator[None]:
    """Leave the job that a test began."""
    yield
    if roles.started():
        roles.stop()


def test_flags_of_the_old_launcher() -> None:
    from paddle.distributed.launch import translated

    old = "--cluster_node_ips=1.2.3.4 --node_ip 1.2.3.4 --started_port=6170 --print_config=True"
    assert translated([*old.split(), "--selected_gpus=0,1", "train.py", "--devices", "x"]) == [
        *("--cluster_node_ips", "1.2.3.4", "--node_ip", "1.2.3.4", "--started_port", "6170"),
        *("--selected_gpus", "0,1", "train.py", "--devices", "x"),
    ]
    assert translated(["--devices", "0", "--job_id", "a", "t.py"]) == ["--gpus", "0", "t.py"]
    with pytest.raises(SystemExit, match="heter_workers"):
        translated(["--heter_workers=a:1", "train.py"])


def test_strategies_of_paddle_1_and_2() -> None:
    from paddle import fluid
    from paddle.distributed import fleet
    from paddle.fluid.incubate.fleet.collective import DistributedStrategy
    from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import StrategyFactory

    old = DistributedStrategy()
    old.nccl_comm_num, old.use_hierarchical_allreduce = 2, True
    old.fuse_all_reduce_ops = old.fuse_elewise_add_act_ops = old.fuse_bn_act_ops = True
    old.enable_inplace, old.enable_sequential_execution = True, True
    old.exec_strategy = fluid.ExecutionStrategy()
    old.use_amp, old.amp_loss_scaling = True, 128.0
    old.forward_recompute, old.recompute_checkpoints = True, ["a"]
    made = old.native()
    assert made.amp_configs["init_loss_scaling"] == 128.0
    assert made.recompute_configs["checkpoints"] == ("a",)
    old.recompute_checkpoints = []
    with pytest.raises(ValueError, match="recompute_checkpoints"):
        old.native()
    new = fleet.DistributedStrategy()
    new._fuse_grad_size_in_TFLOPS, new.nccl_comm_num = 20, 2
    new.build_strategy = fluid.BuildStrategy()
    new.execution_strategy = fluid.ExecutionStrategy()
    new.amp = True
    assert new.request().changed == {}
    assert new.request().strategies["amp"]["decr_ratio"] == 0.8
    base = fleet.DistributedStrategy()
    assert StrategyFactory.create_sync_strategy().strategy(base).a_sync is False
    geo = StrategyFactory.create_geo_strategy(20).strategy(base)
    assert geo.a_sync_configs["k_steps"] == 20
    config = fluid.DistributeTranspilerConfig()
    config.mode, config.geo_sgd_need_push_num = "nccl2", 3
    assert config.mode == "nccl2"


def test_a_program_of_one_worker_becomes_one_of_all() -> None:
    from paddle import fluid

    x = fluid.layers.data(name="x", shape=[2], dtype="float32")
    loss = fluid.layers.mean(fluid.layers.fc(input=x, size=1))
    fluid.optimizer.SGD(learning_rate=0.1).minimize(loss)
    config = fluid.DistributeTranspilerConfig()
    config.mode = "nccl2"
    fluid.DistributeTranspiler(config=config).transpile(
        0,
        trainers="127.0.0.1:6170",
        current_endpoint="127.0.0.1:6170",
        startup_program=fluid.default_startup_program(),
        program=fluid.default_main_program(),
    )
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    exe.run(feed={"x": np.ones((2, 2), "float32")}, fetch_list=[loss])


def test_questions_of_one_worker(tmp_path: Path) -> None:
    import paddle
    import paddle.distributed as dist
    from paddle.distributed import fleet

    fleet.init(is_collective=True)
    assert (fleet.worker_index(), fleet.worker_num(), fleet.is_first_worker()) == (0, 1, True)
    assert fleet.util.get_file_shard(["a"]) == ["a"]
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    assert fleet.metrics.acc(np.array([3.0]), np.array([4.0])) == 0.75
    assert fleet.metrics.rmse(np.array([8.0]), np.array([2.0])) == 2.0
    assert fleet.metrics.sum(np.array([1.0, 2.0])).tolist() == [1.0, 2.0]
    group = fleet.get_hybrid_communicate_group()
    assert group.get_model_parallel_world_size() == 1
    assert group._topo.get_coord(0)._asdict() == dict.fromkeys(group._topo._axes, 0)
    value = paddle.to_tensor([[1.0, 2.0]])
    kept = dist.collective._c_identity(value, group=group.get_model_parallel_group())
    assert kept.numpy().tolist() == [[1.0, 2.0]]
    assert fleet._get_applied_meta_list() == []
    fs = fleet.utils.LocalFS()
    fs.mkdirs(str(tmp_path / "a"))
    fs.touch(str(tmp_path / "a" / "b"))
    assert fs.ls_dir(str(tmp_path / "a")) == ([], ["b"])


def test_results_that_are_computed_again() -> None:
    import paddle
    from paddle.distributed.fleet.utils import recompute

    layer = paddle.nn.Linear(2, 2)
    x = paddle.to_tensor(np.ones((1, 2), "float32"), stop_gradient=False)
    recompute(layer, x).sum().backward()
    assert layer.weight.grad.numpy().tolist() == [[1, 1], [1, 1]]
    with pytest.raises(ValueError, match="use_reentrant"):
        recompute(layer, x, y=1)


def test_layers_that_nobody_cuts() -> None:
    import paddle

    paddle.enable_static()
    x = paddle.static.data(name="x", shape=[None, 4], dtype="float32")
    made: Any = paddle.distributed.split(
        x,
        size=(4, 6),
        operation="linear",
        axis=1,
        num_partitions=2,
        gather_out=True,
        weight_attr=paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(0.5)),
        bias_attr=False,
    )
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    (found,) = exe.run(feed={"x": np.ones((2, 4), "float32")}, fetch_list=[made])
    assert np.array(found).tolist() == [[2.0] * 6] * 2
    with pytest.raises(NotImplementedError, match="strategies"):
        paddle.distributed.auto_parallel.shard_tensor(x, dist_attr={})
