"""Both layouts of a batch show the same picture, enlarged or not, mirrored or not."""

import cv2
import numpy as np
import pytest

from fleetx.data.images.placement import Pixels, lay_pixels, lay_planes


@pytest.mark.parametrize("size", [(20, 30), (20, 200), (200, 30), (150, 170), (64, 48)])
@pytest.mark.parametrize("mirrored", [False, True])
def test_the_layouts_agree(size: tuple[int, int], mirrored: bool) -> None:
    numbers = np.random.default_rng(0)
    part: Pixels = numbers.integers(0, 256, (*size, 3)).astype(np.uint8)
    pixels: Pixels = np.zeros((64, 48, 3), np.uint8)
    planes: Pixels = np.zeros((3, 64, 48), np.uint8)
    lay_pixels(part, pixels, mirrored=mirrored)
    lay_planes(part, planes, mirrored=mirrored)
    expected = cv2.resize(part, (48, 64))[..., ::-1].astype(np.int16)
    expected = expected[:, ::-1] if mirrored else expected
    np.testing.assert_array_equal(pixels, expected)
    # OpenCV rounds differently where it enlarges one colour at a time.
    assert np.abs(planes.transpose(1, 2, 0) - expected).max() <= 2
