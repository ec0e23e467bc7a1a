"""Training end to end: k workers on batch b are one process on batch k * b."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx.testing import world
from tests.engine.training import (
    LOOPS,
    OPTIMIZERS,
    data,
    distributed,
    net,
    plain,
    spread,
    weights,
)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_workers_equal_one_process_on_the_whole_batch(name: str, workers: int) -> None:
    expected = plain(name, batch=8 * workers)
    for found in world(workers).run(distributed, name, batch=8):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert float((expected - weights(net())).abs().max()) > 0.05, "the job must have moved"


@pytest.mark.parametrize("how", LOOPS)
def test_every_way_to_write_the_loop_is_the_same(how: str) -> None:
    expected = plain("momentum", batch=16)
    for found in world(2).run(distributed, "momentum", batch=8, how=how):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def _start(**settings: object) -> fleet.DistributedStrategy:
    strategy = fleet.DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    return strategy


@world(2)
def test_parameters_and_buffers_start_equal() -> None:
    _start()
    torch.manual_seed(fleet.worker_index())
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model.get_buffer("1.running_mean").fill_(fleet.worker_index())
    fleet.distributed_model(model)
    tensors = torch.cat([t.detach().flatten().float() for t in model.state_dict().values()])
    assert spread(tensors) == 0


@world(2)
def test_a_model_without_gradients_starts_equal_too() -> None:
    _start()
    model = net(seed=fleet.worker_index()).requires_grad_(False)
    assert spread(weights(fleet.distributed_model(model))) == 0


@world(2)
def test_the_user_gets_the_same_module_with_the_same_names() -> None:
    _start()
    model = net()
    names = [name for name, _ in model.named_parameters()]
    distributed = fleet.distributed_model(model)
    assert distributed is model
    assert list(distributed.state_dict()) == names
    net().load_state_dict(distributed.state_dict())


@world(2)
def test_a_copy_or_pickle_of_the_model_is_plain() -> None:
    _start()
    model = fleet.distributed_model(net())
    inputs, _ = data()
    twins: list[nn.Sequential] = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for twin in twins:
        torch.testing.assert_close(twin(inputs), model(inputs))
        # Only one rank calls its copy: a replica would wait for the other rank here.
        if fleet.is_first_worker():
            twin(inputs).sum().backward()
            twin.get_parameter("0.weight").data.zero_()
        assert model.get_parameter("0.weight").abs().sum() > 0


@world(2)
def test_the_optimizer_may_come_first_and_the_scheduler_goes_on() -> None:
    _start()
    model = net()
    inner = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer = fleet.distributed_optimizer(inner)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    model = fleet.distributed_model(model)
    inputs, targets = data()
    optimizer.minimize(F.cross_entropy(model(inputs), targets))
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    assert inner.param_groups[0]["lr"] == pytest.approx(0.05)


@world(2)
def test_evaluation_does_not_count_as_a_batch() -> None:
    _start()
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, targets = data()
    with torch.no_grad():
        model.train()(inputs)
        model.eval()(inputs)
    with pytest.raises(RuntimeError, match="but the model was not"):
        optimizer.step()
    optimizer.minimize(F.cross_entropy(model(inputs), targets))


@world(2)
def test_a_forward_past_the_model_is_refused() -> None:
    _start()
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    loss = model[0](torch.ones(2, 6)).sum()
    with pytest.raises(RuntimeError, match="not one of its methods or submodules"):
        optimizer.minimize(loss)


@world(2)
def test_gradients_stay_until_they_are_cleared() -> None:
    _start()
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, targets = data()
    optimizer.backward(F.cross_entropy(model(inputs), targets))
    optimizer.step()
    assert model[0].weight.grad is not None
    optimizer.zero_grad()
    assert model[0].weight.grad is None
    optimizer.minimize(F.cross_entropy(model(inputs), targets))
    assert model[0].weight.grad is None


@world(2)
def test_two_models_with_an_optimizer_each() -> None:
    _start()
    first, second = fleet.distributed_model(net(1)), fleet.distributed_model(net(2))
    optimizers = [
        fleet.distributed_optimizer(torch.optim.SGD(m.parameters(), lr=0.1))
        for m in (second, first)
    ]
    inputs, targets = data()
    mine = slice(fleet.worker_index(), None, fleet.worker_num())
    for _ in range(3):
        optimizers[1].minimize(F.cross_entropy(first(inputs[mine]), targets[mine]))
        optimizers[0].minimize(F.cross_entropy(second(inputs[mine]), targets[mine]))
    assert spread(torch.cat([weights(first), weights(second)])) == 0
    assert not torch.equal(weights(first), weights(net(1)))


@world(2)
def test_state_survives_and_loads_into_plain_torch() -> None:
    _start()
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.Adam(model.parameters(), lr=0.1))
    inputs, targets = data()
    optimizer.minimize(F.cross_entropy(model(inputs), targets))
    twin = net()
    alone = torch.optim.Adam(twin.parameters(), lr=0.5)
    alone.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert alone.param_groups[0]["lr"] == 0.1
    kept = optimizer.state[model.get_parameter("0.weight")]["exp_avg"].clone()
    torch.testing.assert_close(alone.state[twin.get_parameter("0.weight")]["exp_avg"], kept)
    optimizer.minimize(F.cross_entropy(model(inputs), targets))
    optimizer.load_state_dict(alone.state_dict())
    torch.testing.assert_close(optimizer.state[model.get_parameter("0.weight")]["exp_avg"], kept)


@world(1)
def test_misuse_is_answered_in_a_sentence() -> None:
    with pytest.raises(fleet.NotInitializedError, match=r"distributed_model\(\) was called before"):
        fleet.distributed_model(net())
    with pytest.raises(fleet.NotInitializedError, match=r"distributed_optimizer\(\) was called be"):
        fleet.distributed_optimizer(torch.optim.SGD(net().parameters(), lr=1))
    with pytest.raises(TypeError, match=r"strategy=fleet\.DistributedStrategy\(\), got 'fast"):
        fleet.init(is_collective=True, strategy="fast")  # type: ignore[arg-type]
    _start()
    model = fleet.distributed_model(net())
    with pytest.raises(fleet.PlanError, match="called twice with the same module"):
        fleet.distributed_model(model)
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.Module"):
        fleet.distributed_model("net")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"takes a torch\.optim optimizer"):
        fleet.distributed_optimizer("adam")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="got LBFGS"):
        fleet.distributed_optimizer(torch.optim.LBFGS(model.parameters()))
    stray = nn.Parameter(torch.ones(3))
    with pytest.raises(fleet.PlanError, match=r"shape \[3\] that is not the model's"):
        fleet.distributed_optimizer(torch.optim.SGD([*model.parameters(), stray], lr=1))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=1))
    with pytest.raises(fleet.PlanError, match="already has a distributed optimizer"):
        fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=1))
    with pytest.raises(ValueError, match="a group cannot be added"):
        optimizer.add_param_group({"params": [stray]})
    lost = fleet.distributed_optimizer(torch.optim.SGD(net().parameters(), lr=1))
    with pytest.raises(RuntimeError, match="before its model was distributed"):
        lost.minimize(torch.ones((), requires_grad=True))


@world(1)
def test_a_strategy_may_come_with_the_optimizer_but_not_too_late() -> None:
    _start()
    strategy = fleet.DistributedStrategy()
    strategy.auto = True
    model = net()
    fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=1), strategy)
    with pytest.raises(fleet.PlanError, match=r"strategy\.auto = True cannot .* sample=inputs"):
        fleet.distributed_model(model)
    strategy.auto = False
    fleet.distributed_model(model)
    with pytest.raises(ValueError, match="in force already"):
        strategy.auto = True
    late = fleet.DistributedStrategy()
    late.find_unused_parameters = True
    with pytest.raises(fleet.PlanError, match="differs from the one under which the model was"):
        fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=1), late)


@world(2)
def test_fine_tuning_in_eval_mode_trains() -> None:
    _start()
    model = fleet.distributed_model(net()).eval()
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, targets = data()
    mine = slice(fleet.worker_index(), None, 2)
    before = weights(model)
    optimizer.minimize(F.cross_entropy(model(inputs[mine]), targets[mine]))
    assert not torch.equal(weights(model), before)
    assert spread(weights(model)) == 0


@world(2)
def test_one_worker_may_evaluate_alone_and_statistics_are_equal_everywhere() -> None:
    _start()
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, targets = data()
    mine = slice(fleet.worker_index(), None, 2)
    for _ in range(3):
        optimizer.minimize(F.cross_entropy(model(inputs[mine]), targets[mine]))
        assert spread(torch.cat([b.float().flatten() for b in model.buffers()])) == 0
    if fleet.is_first_worker():
        with torch.no_grad():
            model.eval()(inputs)
    model.train()
    optimizer.minimize(F.cross_entropy(model(inputs[mine]), targets[mine]))
    assert spread(weights(model)) == 0


@world(2)
def test_thawing_a_parameter_later_is_refused() -> None:
    _start()
    model = net()
    model[0].requires_grad_(False)
    fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, targets = data()
    optimizer.minimize(F.cross_entropy(model(inputs), targets))
    model[0].requires_grad_(True)
    with pytest.raises(fleet.PlanError, match="requires_grad of a parameter changed after"):
        model(inputs)


@world(1)
def test_a_distributed_optimizer_is_not_copied_and_keeps_torchs_hooks() -> None:
    _start()
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for copying in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            copying(optimizer)
    called = []
    optimizer.register_step_post_hook(lambda *args: called.append("post"))
    inputs, targets = data()
    optimizer.minimize(F.cross_entropy(model(inputs), targets))
    assert called == ["post"]


@world(2)
def test_a_second_init_keeps_the_job() -> None:
    _start()
    model = net()
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    fleet.init(is_collective=True)
    fleet.distributed_model(model)
    inputs, targets = data()
    optimizer.minimize(F.cross_entropy(model(inputs), targets))
    fleet.init(is_collective=True)
    with pytest.raises(fleet.PlanError, match="called twice with the same module"):
        fleet.distributed_model(model)
