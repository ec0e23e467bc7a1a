"""A user's script: an image classifier of timm, with its optimizer, scheduler, loss and average."""

import importlib
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fleetx as fleet
from tests.libraries import timm

LOST = "--lost" in sys.argv
"""Whether fleet never gets the optimizer, as when the line is forgotten."""


def part(name: str) -> Any:
    return importlib.import_module(f"{timm.__name__}.{name}")


def loaders() -> tuple[Any, DataLoader[Any]]:
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randn(64, 3, 16, 16, generator=generator)
    data = TensorDataset(pictures, torch.randint(0, 4, (64,), generator=generator))
    order = torch.Generator().manual_seed(1)
    train = DataLoader(data, batch_size=4, shuffle=True, drop_last=True, generator=order)
    return fleet.distributed_loader(train), DataLoader(data, batch_size=32)


def build() -> Any:
    torch.manual_seed(42)
    size = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=10, **size)
    model.reset_classifier(4)
    return model


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader[Any]) -> float:
    meter = part("utils").AverageMeter()
    model.eval()
    for pictures, targets in loader:
        (top,) = part("utils").accuracy(model(pictures), targets, topk=(1,))
        meter.update(top.item(), len(targets))
    model.train()
    return float(meter.avg)


def main() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.gradient_merge = True
    strategy.gradient_merge_configs = {"k_steps": 2}
    fleet.init(is_collective=True, strategy=strategy)
    model = build()
    optimizer = part("optim").create_optimizer_v2(model, "adamw", lr=5e-3, weight_decay=0.05)
    if not LOST:
        optimizer = fleet.distributed_optimizer(optimizer)
    model = fleet.distributed_model(model)
    average = part("utils").ModelEmaV3(model, decay=0.9)
    train, test = loaders()
    criterion = part("loss").LabelSmoothingCrossEntropy(0.1)
    schedule, epochs = part("scheduler").create_scheduler_v2(
        optimizer, "cosine", num_epochs=2, warmup_epochs=1, updates_per_epoch=len(train)
    )
    updates = 0
    for epoch in range(epochs):
        for pictures, targets in train:
            loss = criterion(model(pictures), targets)
            if LOST:
                loss.backward()
            else:
                optimizer.backward(loss)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            updates += 1
            schedule.step_update(updates)
            average.update(model)
            if updates % 2 == 0 and fleet.is_first_worker():
                print(f"epoch {epoch}: {loss.item():.3f}, {accuracy(model, test):.1f} %")
        schedule.step(epoch + 1)


if __name__ == "__main__":
    main()
