"""Loops that everybody writes around torch: with fleetx they train what they train without."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler

import fleetx as fleet
from fleetx.testing import world
from tests.habits.both import Here, Loop, begun, net, same


def accumulated(here: Here) -> nn.Module:
    model, optimizer = begun(here)
    for at, (x, y) in enumerate(here.batches()):
        (F.cross_entropy(model(x), y) / 2).backward()
        if at % 2:
            optimizer.step()
            optimizer.zero_grad()
    return model


def scaled(here: Here) -> nn.Module:
    model, optimizer = begun(here)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for x, y in here.batches():
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.get_scale() == 256.0
    return model


def scaled_by_minimize(here: Here) -> nn.Module:
    """The same without a look at the gradients, and with a batch that overflows."""
    model, optimizer = begun(here)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for at, (x, y) in enumerate(here.batches()):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) * (float("inf") if at == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 128.0
    return model


def clipped(here: Here) -> nn.Module:
    model, optimizer = begun(here)
    for at, (x, y) in enumerate(here.batches()):
        F.cross_entropy(model(x), y).backward()
        if at % 2:
            assert clip_grad_norm_(model.parameters(), 0.05) > 0.05
        else:
            clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
    return model


def gradients_by_hand(here: Here) -> nn.Module:
    """Reads, scales and replaces gradients between backward and step."""
    model, optimizer = begun(here)
    for x, y in here.batches():
        F.cross_entropy(model(x), y).backward()
        for parameter in model.parameters():
            parameter.grad = parameter.grad / (parameter.grad.norm() + 1e-3)
        optimizer.step()
        model.zero_grad(set_to_none=False)
        assert all(not p.grad.any() for p in model.parameters())
    return model


def several_losses(here: Here) -> nn.Module:
    """Of one forward, added up; and of several forwards, each with a backward of its own."""
    model, optimizer = begun(here)
    for x, y in here.batches():
        out = model(x)
        loss = F.cross_entropy(out, y) + 0.1 * out.pow(2).mean()
        loss.backward()
        (0.5 * model(x + 0.1).pow(2).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def closures(here: Here) -> nn.Module:
    model, optimizer = begun(here)
    for x, y in here.batches():

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        assert optimizer.step(closure) > 0
    return model


def fixed_statistics(here: Here) -> nn.Module:
    """Trains in evaluation mode, as fine-tuning with fixed statistics does."""
    plain = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
    model = here.model(plain)
    optimizer = here.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in here.batches():
        model.eval()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def evaluated_alone(here: Here) -> nn.Module:
    """One worker measures in between, the others go on."""
    model, optimizer = begun(here)
    for at, (x, y) in enumerate(here.batches()):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if not here.distributed or fleet.is_first_worker():
            model.eval()
            with torch.inference_mode() if at % 2 else torch.no_grad():
                assert model(x).argmax(-1).shape == y.shape
            model.train()
    return model


def adversaries(here: Here) -> nn.Module:
    """Two models, each with an optimizer and a rate of its own; one trains the other."""
    maker, judge = here.model(nn.Linear(6, 6)), here.model(nn.Linear(6, 1))
    making = here.optimizer(torch.optim.SGD(maker.parameters(), lr=0.05))
    judging = here.optimizer(torch.optim.SGD(judge.parameters(), lr=0.2))
    slower = lr_scheduler.ExponentialLR(judging, 0.5)
    for x, _ in here.batches():
        made = maker(x)
        judging.zero_grad()
        (F.softplus(-judge(x)).mean() + F.softplus(judge(made.detach())).mean()).backward()
        judging.step()
        slower.step()
        making.zero_grad()
        F.softplus(-judge(made)).mean().backward()
        making.step()
    return nn.ModuleList([maker, judge])


def adversaries_by_turns(here: Here) -> nn.Module:
    """The judge is frozen while the other one learns, as in pix2pix and CycleGAN."""
    maker, judge = here.model(nn.Linear(6, 6)), here.model(nn.Linear(6, 1))
    making = here.optimizer(torch.optim.SGD(maker.parameters(), lr=0.05))
    judging = here.optimizer(torch.optim.SGD(judge.parameters(), lr=0.2))
    for x, _ in here.batches():
        made = maker(x)
        judge.requires_grad_(False)
        making.zero_grad()
        F.softplus(-judge(made)).mean().backward()
        making.step()
        judge.requires_grad_(True)
        judging.zero_grad()
        (F.softplus(-judge(x)).mean() + F.softplus(judge(made.detach())).mean()).backward()
        judging.step()
    return nn.ModuleList([maker, judge])


def cleared_by_the_model(here: Here) -> nn.Module:
    """Between forward and backward; a second backward comes between update and clearing."""
    model, optimizer = begun(here)
    for x, y in here.batches():
        loss = F.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        model(x).pow(2).mean().backward()
    return model


def cleared_by_hand(here: Here) -> nn.Module:
    """Between forward and backward, each time in another way that torch's recipes know."""
    model, optimizer = begun(here)
    for at, (x, y) in enumerate(here.batches(6)):
        loss = F.cross_entropy(model(x), y)
        if at % 3 == 0:
            for parameter in model.parameters():
                parameter.grad = None
        elif at % 3 == 1:
            for layer in model:
                layer.zero_grad()
        else:
            for parameter in model.parameters():
                parameter.grad.zero_()
        loss.backward()
        optimizer.step()
    return model


def cleared_in_part(here: Here) -> nn.Module:
    """A layer's gradient is dropped between forward and backward, the others add up."""
    model, optimizer = begun(here)
    for at, (x, y) in enumerate(here.batches(6)):
        loss = F.cross_entropy(model(x), y)
        if at % 2:
            model[0].zero_grad()
        loss.backward()
        optimizer.step()
        if not at % 2:
            continue
        optimizer.zero_grad()
    return model


def looked_at_in_between(here: Here) -> nn.Module:
    """Measures between backward and the limit on gradients."""
    model, optimizer = begun(here)
    for x, y in here.batches():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            assert model(x).shape == (len(x), 3)
            assert model[3](model[2](model[1](model[0](x)))).shape == (len(x), 3)
        assert clip_grad_norm_(model.parameters(), 0.05) > 0.05
        optimizer.step()
        model(x)  # with gradients on, and no backward
    return model


def weights_in_the_loss(here: Here) -> nn.Module:
    """An L2 penalty by hand, beside gradients that wait."""
    model, optimizer = begun(here)
    for at, (x, y) in enumerate(here.batches(6)):
        loss = F.cross_entropy(model(x), y)
        (loss + 0.1 * sum(p.pow(2).sum() for p in model.parameters())).backward()
        if at % 2:
            optimizer.step()
            optimizer.zero_grad()
    return model


def followed_by_momentum(here: Here) -> nn.Module:
    """MoCo and BYOL: another model, also distributed, is an average of the one that learns."""
    model, optimizer = begun(here)
    torch.manual_seed(3)
    follower = here.model(net())
    for x, y in here.batches(6):
        with torch.no_grad():
            for own, other in zip(follower.parameters(), model.parameters(), strict=True):
                own.data.mul_(0.9).add_(other.data, alpha=0.1)
            key = follower(x)
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y) + F.mse_loss(model(x), key)).backward()
        optimizer.step()
    return nn.ModuleList([model, follower])


def sharpened(here: Here) -> nn.Module:
    """Sharpness-aware: a step up, gradients there, a step back, and the update."""
    model, optimizer = begun(here)
    for x, y in here.batches():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            ups = [p.grad * (0.05 / (norm + 1e-12)) for p in model.parameters()]
            for parameter, up in zip(model.parameters(), ups, strict=True):
                parameter.add_(up)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for parameter, up in zip(model.parameters(), ups, strict=True):
                parameter.sub_(up)
        optimizer.step()
    return model


def looked_ahead(here: Here) -> nn.Module:
    """Slow weights by hand, and weights that are clipped as in WGAN."""
    model, optimizer = begun(here)
    slow = [p.detach().clone() for p in model.parameters()]
    for at, (x, y) in enumerate(here.batches(6)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        for parameter in model.parameters():
            parameter.data.clamp_(-0.3, 0.3)
        if at % 2:
            with torch.no_grad():
                for kept, parameter in zip(slow, model.parameters(), strict=True):
                    kept.add_(parameter - kept, alpha=0.5)
                    parameter.copy_(kept)
    return model


def one_backward_of_many(here: Here) -> nn.Module:
    """As learning from episodes does it: a forward for each sample, then all losses at once."""
    model, optimizer = begun(here)
    for x, y in here.batches():
        losses = [F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]) for i in range(len(x))]
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
    return model


def twice_differentiated(here: Here) -> nn.Module:
    """A penalty on gradients with respect to inputs."""
    model, optimizer = begun(here)
    for x, y in here.batches():
        out = model(x.requires_grad_())
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        optimizer.zero_grad()
        (F.cross_entropy(out, y) + (slope.norm(dim=1) - 1).pow(2).mean()).backward()
        optimizer.step()
    return model


LOOPS: list[Loop] = [
    accumulated,
    scaled,
    scaled_by_minimize,
    clipped,
    gradients_by_hand,
    several_losses,
    closures,
    fixed_statistics,
    evaluated_alone,
    adversaries,
    adversaries_by_turns,
    cleared_by_the_model,
    cleared_by_hand,
    cleared_in_part,
    looked_at_in_between,
    weights_in_the_loss,
    followed_by_momentum,
    sharpened,
    looked_ahead,
    one_backward_of_many,
    twice_differentiated,
]
SPREAD: list[Loop] = [
    adversaries_by_turns,
    cleared_by_the_model,
    cleared_by_hand,
    cleared_in_part,
    looked_at_in_between,
    followed_by_momentum,
    sharpened,
    looked_ahead,
    one_backward_of_many,
]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_of_torch_trains_the_same(loop: Loop, workers: int) -> None:
    world(workers).run(same, loop)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("loop", SPREAD)
def test_a_loop_of_torch_trains_the_same_when_spread(loop: Loop, stage: int) -> None:
    world(2).run(same, loop, sharding=True, sharding_configs={"stage": stage})


@pytest.mark.parametrize("stage", [1, 2])
def test_weights_that_stay_gathered_may_be_in_the_loss(stage: int) -> None:
    world(2).run(same, weights_in_the_loss, sharding=True, sharding_configs={"stage": stage})
