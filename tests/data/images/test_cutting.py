"""Parts of many images at once: the pixels that OpenCV makes of each."""

from random import Random

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetx.data.images.cutting import TOGETHER, cut
from fleetx.data.images.decoding import Part
from fleetx.data.images.placement import Pixels, lay_pixels
from tests.data.images.pictures import photograph


def by_host(image: Pixels, part: Part, mirrored: bool, size: tuple[int, int]) -> Pixels:
    out: Pixels = np.empty((size[1], size[0], 3), np.uint8)
    inside = image[part.top : part.bottom, part.left : part.right]
    lay_pixels(np.ascontiguousarray(inside[..., ::-1]), out, mirrored=mirrored)
    return out


def drawn_part(width: int, height: int, numbers: Random) -> Part:
    left, top = numbers.randrange(width), numbers.randrange(height)
    return Part(left, top, numbers.randint(left + 1, width), numbers.randint(top + 1, height))


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), width=st.integers(1, 40), height=st.integers(1, 40))
def test_pixels_are_those_of_opencv_to_one_level(seed: int, width: int, height: int) -> None:
    numbers = Random(seed)
    sizes = [(numbers.randint(1, 90), numbers.randint(1, 90)) for _ in range(5)]
    images = [photograph(*size, seed=seed + at) for at, size in enumerate(sizes)]
    parts = [drawn_part(*size, numbers) for size in sizes]
    mirrored = [numbers.random() < 0.5 for _ in sizes]
    tensors = [torch.from_numpy(image).permute(2, 0, 1) for image in images]
    found = cut(tensors, parts, mirrored, (width, height))
    assert found.shape == (5, 3, height, width)
    assert found.is_contiguous(memory_format=torch.channels_last)
    for at, image in enumerate(images):
        expected = by_host(image, parts[at], mirrored[at], (width, height))
        mine = found[at].permute(1, 2, 0).numpy()
        assert np.abs(mine.astype(int) - expected).max() <= 1, (sizes[at], parts[at])


def test_what_has_its_size_already_does_not_change() -> None:
    image = torch.from_numpy(photograph(24, 16)).permute(2, 0, 1)
    found = cut([image], [Part(0, 0, 24, 16)], [False], (24, 16))
    assert torch.equal(found[0], image)


@pytest.mark.parametrize("reduction", [2, 4, 8])
def test_an_image_is_made_smaller_as_its_decoder_makes_it(reduction: int) -> None:
    """libjpeg takes means of squares; colours, which files have coarser, differ a little."""
    flags = {2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4}
    flags[8] = cv2.IMREAD_REDUCED_COLOR_8
    data = cv2.imencode(".jpg", photograph(600, 433), [cv2.IMWRITE_JPEG_QUALITY, 95])[1]
    whole, small = cv2.imdecode(data, cv2.IMREAD_COLOR), cv2.imdecode(data, flags[reduction])
    assert whole is not None
    assert small is not None
    height, width = small.shape[:2]
    tensor = torch.from_numpy(whole).permute(2, 0, 1)
    part = Part(1, 2, width, height - 3, reduction)
    found = cut([tensor], [part], [False], (width - 1, height - 5))
    expected = small[2 : height - 3, 1:]
    difference = np.abs(found[0].permute(1, 2, 0).numpy().astype(int) - expected)
    assert difference.mean() < 1.5
    moved = np.abs(found[0].permute(1, 2, 0).numpy()[:, 1:].astype(int) - expected[:, :-1])
    assert moved.mean() > 2 * difference.mean(), "and a pixel beside it is another one"


def test_many_images_are_cut_in_groups() -> None:
    images = [torch.from_numpy(photograph(20 + n % 7, 30, n)).permute(2, 0, 1) for n in range(70)]
    parts = [Part(n % 5, 0, 20, 30 - n % 11) for n in range(70)]
    assert len(images) > TOGETHER
    found = cut(images, parts, [False] * 70, (8, 8))
    for at in (0, TOGETHER - 1, TOGETHER, 69):
        alone = cut(images[at : at + 1], parts[at : at + 1], [False], (8, 8))
        assert (found[at].int() - alone[0].int()).abs().max() <= 1
