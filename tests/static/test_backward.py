"""Gradients as variables."""

import numpy as np
import torch
from torch import nn

import fleetx as fleet
from fleetx import static
from fleetx.testing import world


def test_append_backward_gives_every_parameter_its_gradient() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    loss = model(static.data("x", [None, 3])).mean()
    pairs = static.append_backward(loss, no_grad_set=["sequential_0.2.bias"])
    names = [parameter.name for parameter, _ in pairs]
    assert names == [f"sequential_0.{n}" for n in ("0.weight", "0.bias", "2.weight")]
    batch = torch.randn(5, 3)
    found = static.Executor().run(feed={"x": batch}, fetch_list=[g for _, g in pairs])
    model(batch).mean().backward()
    for name, gradient in zip(names, found, strict=True):
        expected = model.get_parameter(name.removeprefix("sequential_0.")).grad
        assert expected is not None
        assert np.array_equal(gradient, expected.numpy())


def test_gradients_by_inputs_and_intermediate_variables() -> None:
    x = static.data("x", [3])
    y = x * x
    z = (y * 2).sum()
    unrelated = static.data("other", [3])
    by_x, by_y, by_other = static.gradients([z], [x, y, unrelated])
    assert by_other is None
    assert by_x is not None
    assert by_y is not None
    assert by_x.name == "x@GRAD"
    found = static.Executor().run(feed={"x": [1.0, 2, 3]}, fetch_list=[by_x, by_y])
    assert found[0].tolist() == [4.0, 8, 12]
    assert found[1].tolist() == [2.0, 2, 2]


def test_a_gradient_penalty_is_differentiated_again() -> None:
    layer = nn.Linear(3, 1)
    x = static.data("x", [None, 3])
    score = layer(x).pow(2).sum()
    (slope,) = static.gradients(score, x)
    assert slope is not None
    loss = score + slope.pow(2).sum()
    static.Optimizer(torch.optim.SGD, lr=0.1).minimize(loss)
    twin = nn.Linear(3, 1)
    twin.load_state_dict(layer.state_dict())
    batch = torch.randn(4, 3)
    static.Executor().run(feed={"x": batch}, fetch_list=[loss])

    inputs = batch.clone().requires_grad_()
    score_2 = twin(inputs).pow(2).sum()
    (slope_2,) = torch.autograd.grad(score_2, inputs, create_graph=True)
    (score_2 + slope_2.pow(2).sum()).backward()
    with torch.no_grad():
        assert twin.weight.grad is not None
        twin.weight -= 0.1 * twin.weight.grad
    assert torch.allclose(layer.weight, twin.weight, rtol=0, atol=1e-6)


def test_weights_of_several_targets() -> None:
    x = static.data("x", [2])
    seeds = static.data("seeds", [2])
    (found,) = static.gradients(x * 3, x, target_gradients=seeds)
    assert found is not None
    feed = {"x": [1.0, 1.0], "seeds": [1.0, 10.0]}
    assert static.Executor().run(feed=feed, fetch_list=[found])[0].tolist() == [3.0, 30.0]


def test_stop_gradient() -> None:
    layer = nn.Linear(2, 2)
    hidden = layer(static.data("x", [None, 2]))
    hidden.stop_gradient = True
    loss = nn.Linear(2, 1)(hidden).sum()
    static.Optimizer(torch.optim.SGD, lr=1.0).minimize(loss)
    before = layer.weight.detach().clone()
    static.Executor().run(feed={"x": torch.ones(1, 2)}, fetch_list=[loss])
    assert torch.equal(layer.weight, before)


@world(1)
def test_gradients_do_not_show_the_loss_scale() -> None:
    layer = nn.Linear(4, 1)
    loss = layer(static.data("x", [None, 4])).mean()
    strategy = fleet.DistributedStrategy()
    strategy.amp, strategy.amp_configs = True, {"dtype": "float16", "init_loss_scaling": 1024.0}
    fleet.init(is_collective=True)
    optimizer = static.Optimizer(torch.optim.SGD, lr=0.5)
    fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
    exe, before = static.Executor(), layer.weight.detach().clone()
    for step in range(1, 3):
        feed, names = {"x": torch.full((2, 4), 3.0)}, ["linear_0.weight@GRAD", "linear_0.bias@GRAD"]
        weight, bias = exe.run(feed=feed, fetch_list=names)
        assert (weight.tolist(), bias.tolist()) == ([[3.0] * 4], [1.0])
        assert torch.allclose(layer.weight, before - 1.5 * step)


def test_the_gradient_behind_a_detach_is_zero() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    x = static.data("x", [None, 2])
    loss = (first(x) + second(x).detach()).sum()
    static.Optimizer(torch.optim.SGD, lr=1.0).minimize(loss)
    names = ["linear_1.weight@GRAD", "linear_0.bias@GRAD"]
    found = static.Executor().run(feed={"x": torch.ones(1, 2)}, fetch_list=names)
    assert [value.tolist() for value in found] == [[[0.0, 0.0], [0.0, 0.0]], [1.0, 1.0]]
