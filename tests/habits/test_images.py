"""Loops of image people: models of torchvision and timm, with the helpers of timm."""

import importlib
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx.testing import world
from tests.habits.both import BATCH, STEPS, Here, same


def timm(part: str = "") -> Any:
    """Here: it takes seconds, and only ranks need it."""
    from tests.libraries import timm

    return importlib.import_module(f"{timm.__name__}.{part}") if part else timm


def vit(classes: int = 3) -> Any:
    # The gradient of a key's bias is rounding alone, of which Adam would make an update.
    size: dict[str, Any] = {
        "qkv_bias": False,
        "img_size": 16,
        "patch_size": 8,
        "embed_dim": 16,
        "depth": 1,
        "num_heads": 2,
    }
    return timm().create_model("vit_tiny_patch16_224", num_classes=classes, **size)


def mobile() -> Any:
    from tests.libraries import torchvision

    blocks = [[1, 8, 1, 1], [6, 8, 1, 2]]
    model = torchvision.models.MobileNetV2(
        num_classes=4, width_mult=0.1, inverted_residual_setting=blocks, dropout=0.0
    )
    model.classifier[1] = nn.Linear(model.last_channel, 3)  # the usual way to another task
    return model


def pictures(here: Here) -> Any:
    generator = torch.Generator().manual_seed(7)
    for _ in range(STEPS):
        x = torch.randn(BATCH, 3, 16, 16, generator=generator)
        yield here.share((x, torch.randint(0, 3, (BATCH,), generator=generator)))


def by_the_book(here: Here) -> nn.Module:
    """A new head before, AdamW with groups, timm's scheduler, clipping and average."""
    plain = vit(10)
    plain.reset_classifier(3)
    model = here.model(plain)
    optim, scheduler, utils = timm("optim"), timm("scheduler"), timm("utils")
    optimizer = here.optimizer(
        optim.create_optimizer_v2(model, "adamw", lr=0.01, weight_decay=0.1, layer_decay=0.7)
    )
    plan, _ = scheduler.create_scheduler_v2(
        optimizer,
        "cosine",
        num_epochs=2,
        warmup_epochs=1,
        updates_per_epoch=2,
        step_on_epochs=False,
    )
    average = utils.ModelEmaV3(model, decay=0.5)
    smooth = timm("loss").LabelSmoothingCrossEntropy(0.1)
    for at, (x, y) in enumerate(pictures(here)):
        optimizer.zero_grad()
        smooth(model(x), y).backward()
        utils.dispatch_clip_grad(timm("models").model_parameters(model), 0.5, mode="norm")
        optimizer.step()
        plan.step_update(at + 1)
        average.update(model, step=at)
    assert utils.unwrap_model(model) is model
    assert [*utils.get_state_dict(model)] == [*model.state_dict()]
    found: nn.Module = average.module
    return found


def scaled(here: Here) -> nn.Module:
    """With timm's scaler, which goes backward, clips and steps by itself."""
    model = here.model(vit())
    optimizer = here.optimizer(timm("optim").create_optimizer_v2(model, "sgd", lr=0.1))
    scaler = timm("utils").NativeScaler("cpu")
    scaler._scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for at, (x, y) in enumerate(pictures(here)):
        loss = F.cross_entropy(model(x), y) / 2
        scaler(loss, optimizer, 0.5, parameters=model.parameters(), need_update=bool(at % 2))
        if at % 2:
            optimizer.zero_grad()
    return model


def rule(name: str, here: Here) -> nn.Module:
    """Optimizers of timm, which torch does not know."""
    model = here.model(vit())
    optimizer = here.optimizer(timm("optim").create_optimizer_v2(model, name, lr=0.01))
    for x, y in pictures(here):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def fine_tuned(here: Here) -> nn.Module:
    """A convolutional model whose backbone is frozen, its statistics included."""
    plain = mobile()
    plain.features.requires_grad_(False)
    model = here.model(plain)
    optimizer = here.optimizer(torch.optim.SGD(model.classifier.parameters(), lr=0.1))
    for x, y in pictures(here):
        model.train()
        model.features.eval()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def normalized(here: Here) -> nn.Module:
    """The whole model, with statistics of the global batch, and evaluation in between."""
    model = here.model(mobile())
    optimizer = here.optimizer(torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9))
    for x, y in pictures(here):
        model.train()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.inference_mode():
            assert model(x).shape == (len(y), 3)
    return model


@pytest.mark.parametrize("workers", [1, 2])
def test_timm(workers: int) -> None:
    for loop in (by_the_book, scaled, partial(rule, "lookahead_adamw"), partial(rule, "nadamw")):
        world(workers, timeout=300).run(same, loop)


@pytest.mark.parametrize("workers", [1, 2])
def test_torchvision(workers: int) -> None:
    world(workers, timeout=300).run(same, fine_tuned)
    world(workers).run(same, normalized, sync_batch_norm=workers > 1)


@world(2, timeout=300)
def test_a_head_that_comes_too_late_is_named() -> None:
    fleet.init(is_collective=True)
    x, _ = next(pictures(Here(distributed=True)))
    late: Any = fleet.distributed_model(vit())
    late.reset_classifier(5)
    with pytest.raises(RuntimeError, match=r"was changed .*replaced: head\.weight, head\.bias\)"):
        late(x)
    headless: Any = fleet.distributed_model(vit(0))
    headless.reset_classifier(5)
    with pytest.raises(RuntimeError, match=r"was changed .*new: head\.weight, head\.bias\)"):
        headless(x)
    mobile_: Any = fleet.distributed_model(mobile())
    mobile_.classifier = nn.Linear(mobile_.last_channel, 5)
    gone = r"new: classifier\.weight, classifier\.bias; gone: classifier\.1\.weight"
    with pytest.raises(RuntimeError, match=gone):
        mobile_(x)
