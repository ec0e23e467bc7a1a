"""Groups, schedules, averages, frozen layers and saved states around an ordinary loop of torch."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from fleetx.testing import world
from tests.habits.both import STEPS, Here, Loop, begun, net, same


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


LOOPS: list[Loop] = [
    averaged,
    averaged_from_before,
    frozen,
    head_alone,
    grouped,
    scheduled,
    saved_and_loaded,
    loaded_before,
]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("loop", LOOPS)
def test_what_is_around_the_loop_works_as_in_torch(loop: Loop, workers: int) -> None:
    world(workers).run(same, loop)
