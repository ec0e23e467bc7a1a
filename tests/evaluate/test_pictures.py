"""Pictures are real PNG files that show the input."""

import io

import numpy as np
import pytest
from PIL import Image

from fleetx.data.images import View
from fleetx.evaluate.pictures import png


def test_an_image_is_shown_in_its_colours() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    normal = (pixels / 255 - np.array(View.image_mean)) / np.array(View.image_std)
    opened = Image.open(io.BytesIO(png(normal.transpose(2, 0, 1).astype(np.float32))))
    assert np.abs(np.asarray(opened).astype(int) - pixels).max() <= 1


@pytest.mark.parametrize("shape", [(6,), (4, 9), (1, 8, 8), (2, 3, 4)])
def test_anything_else_is_shown_as_grey(shape: tuple[int, ...]) -> None:
    value = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    opened = Image.open(io.BytesIO(png(value)))
    shades = np.asarray(opened)
    assert opened.mode == "L"
    assert (shades.min(), shades.max()) == (0, 255)
