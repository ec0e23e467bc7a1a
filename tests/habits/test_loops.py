"""Loops that everybody writes around torch: with fleetx they train what they train without."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import fleetx as fleet
from fleetx.testing import world
from tests.habits.both import STEPS, Here, Loop, same


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 3))


def begun(here: Here, **options: Any) -> tuple[Any, Any]:
    model = here.model(net())
    return model, here.optimizer(torch.optim.AdamW(model.parameters(), lr=0.01, **options))


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


def averaged(here: Here) -> nn.Module:
    model, optimizer = begun(here)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for x, y in here.batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
    assert type(average.module) is nn.Sequential
    x, _ = next(here.batches())
    average(x).sum().backward()  # a copy is plain: no other worker need call it
    assert int(average.n_averaged) == STEPS
    found: nn.Module = average.module
    return found


def averaged_from_before(here: Here) -> nn.Module:
    plain = net()
    average = AveragedModel(plain, use_buffers=True)
    model = here.model(plain)
    optimizer = here.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in here.batches():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        average.update_parameters(model)
    assert int(average.n_averaged) == STEPS
    found: nn.Module = average.module
    return found


def frozen(here: Here) -> nn.Module:
    plain = net()
    plain[0].requires_grad_(False)
    model = here.model(plain)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = here.optimizer(torch.optim.SGD(trained, lr=0.1, momentum=0.9))
    kept = model[0].weight.detach().clone()
    for x, y in here.batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(model[0].weight, kept)
    return model


def head_alone(here: Here) -> nn.Module:
    """The backbone is trained by nobody, but not frozen: torch computes its gradients in vain."""
    model = here.model(net())
    optimizer = here.optimizer(torch.optim.SGD(model[-1].parameters(), lr=0.1))
    for x, y in here.batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def grouped(here: Here) -> nn.Module:
    model = here.model(net())
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.3}, {"params": others, "lr": 0.05}]
    optimizer = here.optimizer(torch.optim.AdamW(groups, lr=0.01, weight_decay=0.0))
    for x, y in here.batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return model


def scheduled(here: Here) -> nn.Module:
    """A scheduler stepped with each batch, one with each epoch, one that looks at losses."""
    model = here.model(net())
    optimizer = here.optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    each_batch = lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=2 * STEPS + 1)
    for epoch in range(2):
        for x, y in here.batches():
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            each_batch.step()
        assert epoch or optimizer.param_groups[0]["lr"] != 0.1
    each_epoch = lr_scheduler.SequentialLR(
        optimizer,
        [
            lr_scheduler.LinearLR(optimizer, 0.5, total_iters=1),
            lr_scheduler.CosineAnnealingLR(optimizer, 2),
        ],
        milestones=[1],
    )
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    for _ in range(2):
        for x, y in here.batches():
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        each_epoch.step()
        plateau.step(1.0)
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


def saved_and_loaded(here: Here) -> nn.Module:
    """Goes on from a file in a new model with a new optimizer."""
    model, optimizer = begun(here)
    for at, (x, y) in enumerate(here.batches()):
        if at == 2:
            kept = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
            del model, optimizer
            model, optimizer = begun(here)
            model.load_state_dict(kept[0])
            optimizer.load_state_dict(kept[1])
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def loaded_before(here: Here) -> nn.Module:
    """Weights of a plain run, and its optimizer's state, given before anything is distributed."""
    plain = net()
    first = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for x, y in Here(distributed=False).batches():
        first.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        first.step()
    twin = net()
    twin.load_state_dict(plain.state_dict())
    optimizer: Any = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    optimizer.load_state_dict(first.state_dict())
    model, optimizer = here.model(twin), here.optimizer(optimizer)
    for x, y in here.batches():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
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


LOOPS: list[Loop] = [
    adversaries,
    accumulated,
    scaled,
    scaled_by_minimize,
    clipped,
    gradients_by_hand,
    averaged,
    averaged_from_before,
    frozen,
    head_alone,
    grouped,
    scheduled,
    evaluated_alone,
    fixed_statistics,
    several_losses,
    closures,
    saved_and_loaded,
    loaded_before,
]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_of_torch_trains_the_same(loop: Loop, workers: int) -> None:
    world(workers).run(same, loop)
