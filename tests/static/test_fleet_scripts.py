"""Scripts of the manual of Paddle's Fleet in the names of fleetx: the weights of eager code."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx import static
from fleetx.testing import world
from tests.static.models import ResNet

STEPS = 6


def gen_data(step: int, rank: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(100 * step + rank)
    return {
        "x": rng.random((16, 32), dtype=np.float32),
        "y": rng.integers(0, 2, (16, 1)),
    }


def mlp(input_x: Tensor, input_y: Tensor, hid_dim: int = 24, label_dim: int = 2) -> static.Variable:
    fc_1 = static.nn.fc(input_x, hid_dim, activation="tanh")
    fc_2 = static.nn.fc(fc_1, hid_dim, activation="tanh")
    prediction = static.nn.fc([fc_2], label_dim, activation="softmax")
    avg_cost = static.nn.cross_entropy(prediction, input_y).mean()
    assert isinstance(avg_cost, static.Variable)
    return avg_cost


class EagerMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 24), nn.Linear(24, 24), nn.Linear(24, 2)])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers[:2]:
            x = layer(x).tanh()
        return -self.layers[2](x).softmax(-1).gather(1, y).log().mean()


def weights(parameters: Any) -> Tensor:
    return torch.cat([p.detach().flatten() for p in parameters])


def eager_weights(rank: int = 0, averaged: bool = False) -> Tensor:
    torch.manual_seed(2)
    model = EagerMLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        feed = {k: torch.from_numpy(v) for k, v in gen_data(step, rank).items()}
        model(**feed).backward()
        if averaged:
            for p in model.parameters():
                assert p.grad is not None
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model.parameters())


def test_the_single_card_script(tmp_path: Path) -> None:
    input_x = static.data("x", [None, 32])
    input_y = static.data("y", [None, 1], "int64")
    cost = mlp(input_x, input_y)
    static.Optimizer(torch.optim.SGD, lr=0.1).minimize(cost)

    train_prog = static.default_main_program()
    exe = static.Executor(static.CPUPlace())
    torch.manual_seed(2)
    exe.run(static.default_startup_program())

    def if_exist(var: Any) -> bool:
        return (tmp_path / var.name).exists()

    fleet.load_vars(exe, tmp_path, predicate=if_exist)
    for step in range(STEPS):
        cost_val = exe.run(program=train_prog, feed=gen_data(step), fetch_list=[cost.name])
        print("step%d cost = %f" % (step, cost_val[0]))  # noqa: UP031 (as in the manual)
    assert torch.equal(weights(train_prog.parameters()), eager_weights())

    fleet.save_persistables(exe, tmp_path)
    trained = {n: p.detach().clone() for n, p in train_prog.state.trained().items()}
    exe.run(static.default_startup_program())
    assert not torch.equal(weights(train_prog.parameters()), weights(trained.values()))
    fleet.load_vars(exe, tmp_path, predicate=if_exist)
    assert torch.equal(weights(train_prog.parameters()), weights(trained.values()))


def four_steps(folder: Path) -> tuple[Tensor, Tensor]:
    static.reset()
    cost = mlp(static.data("x", [None, 32]), static.data("y", [None, 1], "int64"))
    optimizer = static.Optimizer(torch.optim.SGD, lr=0.1)

    dist_strategy = fleet.DistributedStrategy()
    fleet.init(fleet.PaddleCloudRoleMaker(is_collective=True))
    optimizer = fleet.distributed_optimizer(optimizer, strategy=dist_strategy)
    optimizer.minimize(cost, static.default_startup_program())

    train_prog = fleet.main_program
    exe = static.Executor(static.CPUPlace())
    torch.manual_seed(2 + 5 * fleet.worker_index())  # rank 0 decides
    exe.run(fleet.startup_program)
    for step in range(STEPS):
        feed = gen_data(step, fleet.worker_index())
        exe.run(program=train_prog, feed=feed, fetch_list=[cost.name])
    if fleet.worker_index() == 0:
        fleet.save_persistables(exe, folder / "first")
    fleet.save_persistables(exe, folder / str(fleet.worker_index()))
    fleet.save_persistables(exe, folder / "all")
    static.reset()
    return weights(train_prog.parameters()), eager_weights(fleet.worker_index(), averaged=True)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_four_steps(workers: int, tmp_path: Path) -> None:
    for ours, theirs in world(workers).run(four_steps, tmp_path):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)
    names = {"fc_0.weight", "fc_0.bias", "fc_1.weight", "fc_1.bias", "fc_2.weight", "fc_2.bias"}
    for folder in ("first", "0", "all", str(workers - 1)):
        assert {path.name for path in (tmp_path / folder).iterdir()} == {*names, "@ticks"}


def resnet(step: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(10 * step + rank)
    return rng.standard_normal((4, 3, 32, 32), dtype=np.float32), rng.integers(0, 10, (4, 1))


def resnet_script() -> tuple[Tensor, Tensor]:
    static.reset()
    torch.manual_seed(0)
    model = ResNet((1, 1), width=4)
    twin = ResNet((1, 1), width=4)
    twin.load_state_dict(model.state_dict())

    image = static.data(name="x", shape=[None, 3, 32, 32], dtype="float32")
    label = static.data(name="y", shape=[None, 1], dtype="int64")
    out = model(image)
    avg_cost = F.cross_entropy(out, label.squeeze(1))
    acc_top1 = static.accuracy(input=out, label=label, k=1)
    acc_top5 = static.accuracy(input=out, label=label, k=5)

    def batches() -> Iterator[Any]:
        for step in range(STEPS):
            yield resnet(step, fleet.worker_index())

    loader = static.DataLoader.from_generator(feed_list=[image, label], capacity=4)
    train_loader = loader.set_batch_generator(batches)

    fleet.init(is_collective=True, strategy=fleet.DistributedStrategy())
    optimizer = fleet.distributed_optimizer(
        static.Optimizer(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-4)
    )
    optimizer.minimize(avg_cost)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    for data in train_loader():
        loss, acc1, acc5 = exe.run(
            static.default_main_program(), feed=data, fetch_list=[avg_cost, acc_top1, acc_top5]
        )
        assert math.isfinite(loss)
        assert 0 <= acc1 <= acc5 <= 1
    static.reset()
    return weights(model.parameters()), _resnet_by_hand(twin)


def _resnet_by_hand(model: nn.Module) -> Tensor:
    model = fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    )
    for step in range(STEPS):
        x, y = (torch.from_numpy(part) for part in resnet(step, fleet.worker_index()))
        optimizer.minimize(F.cross_entropy(model(x), y.squeeze(1)))
    return weights(model.parameters())


@pytest.mark.parametrize("workers", [1, 2])
def test_the_resnet_script(workers: int) -> None:
    for ours, theirs in world(workers).run(resnet_script):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)


LARS: Any = {
    "lars_coeff": 0.001,
    "lars_weight_decay": 0.0005,
    "exclude_from_weight_decay": ["bn", "bias"],
}


def combined_strategy(checkpoints: list[str]) -> fleet.DistributedStrategy:
    made = fleet.DistributedStrategy()
    made.amp = True
    made.amp_configs = {"dtype": "bfloat16"}
    made.recompute = True
    made.recompute_configs = {"checkpoints": checkpoints}
    made.lars = True
    made.lars_configs = LARS
    return made


def combined_script() -> tuple[Tensor, Tensor]:
    static.reset()
    torch.manual_seed(0)
    model = ResNet((1, 1), width=4)
    twin = ResNet((1, 1), width=4)
    twin.load_state_dict(model.state_dict())
    fleet.init(is_collective=True)
    image = static.data("x", [None, 3, 32, 32])
    label = static.data("y", [None, 1], "int64")
    loss: Any = F.cross_entropy(model(image), label.squeeze(1))
    optimizer = fleet.distributed_optimizer(
        static.Optimizer(torch.optim.SGD, lr=0.01, momentum=0.9),
        combined_strategy(["resnet_0.stem", "resnet_0.layers.0"]),
    )
    optimizer.minimize(loss)
    exe = static.Executor()
    exe.run(fleet.startup_program)
    for step in range(STEPS):
        feed = dict(zip("xy", resnet(step, fleet.worker_index()), strict=True))
        cost_val = exe.run(fleet.main_program, feed=feed, fetch_list=[loss.name])
        assert math.isfinite(cost_val[0])
    trained = weights(model.parameters())
    static.reset()

    fleet.init(is_collective=True, strategy=combined_strategy(["stem", "layers.0"]))
    eager = fleet.distributed_model(twin)
    optimizer = fleet.distributed_optimizer(
        torch.optim.SGD(eager.parameters(), lr=0.01, momentum=0.9)
    )
    for step in range(STEPS):
        x, y = (torch.from_numpy(part) for part in resnet(step, fleet.worker_index()))
        optimizer.minimize(F.cross_entropy(eager(x), y.squeeze(1)))
    return trained, weights(eager.parameters())


@pytest.mark.parametrize("workers", [1, 2])
def test_the_script_that_combines_strategies(workers: int) -> None:
    for ours, theirs in world(workers).run(combined_script):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)


def get_local_sgd_steps(passid: int, local_sgd_steps: int, local_sgd_warmup: int) -> int:
    offset = passid - local_sgd_warmup
    if offset < 0:
        return 1
    warm_up = [2**i for i in range(local_sgd_steps) if 2**i <= local_sgd_steps]
    return local_sgd_steps if offset >= len(warm_up) else warm_up[offset]


def local_sgd_loop(**optimizer: Any) -> tuple[Tensor, Tensor, int]:
    static.reset()
    cost = mlp(static.data("x", [None, 32]), static.data("y", [None, 1], "int64"))
    fleet.init(is_collective=True)
    dist_strategy = fleet.DistributedStrategy()
    dist_strategy.use_local_sgd = True
    made = fleet.distributed_optimizer(
        static.Optimizer(torch.optim.SGD, **optimizer), dist_strategy
    )
    made.minimize(cost)
    exe = static.Executor()
    torch.manual_seed(2)
    exe.run(fleet.startup_program)
    step_cnt, met = 0, []
    for pass_id in range(5):
        cur_local_sgd = get_local_sgd_steps(pass_id, 4, 1)
        for _ in range(4):
            together = step_cnt % cur_local_sgd == 0
            current_prog = fleet.main_program if together else fleet._origin_program
            met.append(together)
            feed = gen_data(step_cnt, fleet.worker_index())
            exe.run(current_prog, feed, [cost.name], use_program_cache=True)
            step_cnt += 1
    ours = weights(fleet.main_program.parameters())
    static.reset()
    return ours, _local_sgd_by_hand(met, **optimizer), sum(met)


def _local_sgd_by_hand(met: list[bool], rates: Any = None, **options: Any) -> Tensor:
    torch.manual_seed(2)
    model = EagerMLP()
    optimizer = torch.optim.SGD(model.parameters(), **options)
    for step, together in enumerate(met):
        if rates is not None:
            optimizer.param_groups[0]["lr"] = rates[step]
        feed = {k: torch.from_numpy(v) for k, v in gen_data(step, dist.get_rank()).items()}
        model(**feed).backward()
        optimizer.step()
        optimizer.zero_grad()
        if together:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data /= dist.get_world_size()
    return weights(model.parameters())


@pytest.mark.parametrize("workers", [1, 2])
def test_the_loop_of_local_sgd(workers: int) -> None:
    for ours, theirs, meetings in world(workers).run(local_sgd_loop, lr=0.1, momentum=0.9):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)
        assert 8 <= meetings < 20


def test_the_origin_program_exchanges_nothing() -> None:
    with_origin = world(2).run(_parted, "_origin_program")
    with_main = world(2).run(_parted, "main_program")
    assert not torch.equal(with_origin[0], with_origin[1])
    assert torch.equal(with_main[0], with_main[1])


def _parted(name: str) -> Tensor:
    static.reset()
    cost = mlp(static.data("x", [None, 32]), static.data("y", [None, 1], "int64"))
    fleet.init(is_collective=True)
    fleet.distributed_optimizer(static.Optimizer(torch.optim.SGD, lr=0.1)).minimize(cost)
    exe = static.Executor()
    exe.run(fleet.startup_program)
    exe.run(getattr(fleet, name), gen_data(0, fleet.worker_index()), [cost])
    static.reset()
    return weights(fleet.main_program.parameters())


def adaptive_loop() -> tuple[list[int], list[Tensor], Tensor, Tensor]:
    """The loss of all workers decides how often they meet."""
    static.reset()
    cost = mlp(static.data("x", [None, 32]), static.data("y", [None, 1], "int64"))
    lr = static.lr.piecewise_decay([8], [0.1, 0.05])
    fleet.init(is_collective=True)
    dist_strategy = fleet.DistributedStrategy()
    dist_strategy.use_local_sgd = True
    fleet.distributed_optimizer(static.Optimizer(torch.optim.SGD, lr=lr), dist_strategy)
    fleet.minimize(cost)

    all_train_prog, all_startup_prog = static.Program(), static.Program()
    with static.program_guard(all_train_prog, all_startup_prog):
        result = static.all_reduce(static.data("tindata", [1]))
    exe = static.Executor()
    torch.manual_seed(2)
    exe.run(fleet.startup_program)

    steps, at_meetings, met = [], [], []
    ini_loss, ini_lr, pre_step, step_cnt = None, None, 1, 0
    for _ in range(4):
        for _ in range(4):
            together = step_cnt % pre_step == 0
            met.append(together)
            current_prog = fleet.main_program if together else fleet._origin_program
            feed = gen_data(step_cnt, fleet.worker_index())
            train_loss, cur_lr = exe.run(current_prog, feed, [cost, lr])
            if together:
                at_meetings.append(weights(fleet.main_program.parameters()).clone())
            step_cnt += 1
        all_loss = exe.run(
            all_train_prog, feed={"tindata": train_loss.reshape(1)}, fetch_list=[result]
        )
        reduce_loss = float(all_loss[0][0]) / fleet.worker_num()
        ini_loss, ini_lr = ini_loss or reduce_loss, ini_lr or float(cur_lr)
        ratio = ini_lr * max(reduce_loss - 0.1, 0) / (float(cur_lr) * max(ini_loss - 0.1, 1e-12))
        pre_step = max(int(2 * math.sqrt(ratio)), 1)
        steps.append(pre_step)
    ours = weights(fleet.main_program.parameters())
    static.reset()
    return steps, at_meetings, ours, _local_sgd_by_hand(met, rates=[0.1] * 8 + [0.05] * 8)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_adaptive_loop_of_local_sgd(workers: int) -> None:
    ranks = world(workers).run(adaptive_loop)
    first, last = ranks[0], ranks[-1]
    assert first[0] == last[0], "the loss that decides is that of all workers"
    assert max(first[0]) > 1
    for ours, theirs in zip(first[1], last[1], strict=True):
        assert torch.equal(ours, theirs)
    for _, _, ours, theirs in ranks:
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)
