"""A small network, a folder of small images, and the network exported."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from fleetx import static
from fleetx.evaluate.inputs import Inputs, Reading
from fleetx.evaluate.pictures import png
from fleetx.io import save_inference_model

SIDE, CLASSES = 16, 7


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


def images(folder: Path, count: int) -> Reading:
    """Image files, their list, and how to read them."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = np.random.default_rng(0)
    lines = []
    for at in range(count):
        picture = numbers.normal(size=(3, 20 + at % 3, 24)).astype(np.float32)
        (folder / f"image {at}.png").write_bytes(png(picture))
        lines.append(f"image {at}.png {at % CLASSES}")
    (folder / "val.txt").write_text("\n".join(lines) + "\n")
    return reading(folder)


def reading(folder: Path) -> Reading:
    return Reading(data_dir=str(folder), image_shape=(3, SIDE, SIDE), resize_short_size=18)


def direct(model: nn.Module, inputs: Inputs) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(inputs.batch(0, len(inputs)))


def export(model: nn.Module, folder: Path) -> None:
    program = static.Program()
    with static.program_guard(program, static.Program()):
        seen = static.data("image", [None, 3, SIDE, SIDE])
        scores = model(seen)
        scores.name = "scores"
    save_inference_model(static.Executor(), folder, ["image"], [scores], program)
