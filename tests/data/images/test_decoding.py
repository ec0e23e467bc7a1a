"""Pixels come out where they were, at any size, and half a file is told from a whole one."""

from pathlib import Path
from random import Random

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetx.data.images import View
from fleetx.data.images.decoding import BrokenImageError, fill
from fleetx.data.images.placement import Pixels
from fleetx.data.images.views import Box, parsed_shape


def gradient(width: int, height: int) -> Pixels:
    """Red grows to the right, green downwards."""
    image = np.zeros((height, width, 3), np.uint8)
    image[..., 2] = np.linspace(0, 255, width)[None, :]
    image[..., 1] = np.linspace(0, 255, height)[:, None]
    return image


def encoded(image: Pixels, kind: str = ".jpg") -> bytes:
    return cv2.imencode(kind, image, [cv2.IMWRITE_JPEG_QUALITY, 98])[1].tobytes()


def whole(width: int, height: int) -> Box:
    return 0, 0, width, height


@pytest.mark.parametrize("kind", [".jpg", ".png"])
@pytest.mark.parametrize("size", [(400, 300), (1700, 1300), (40, 30)])
def test_a_box_lands_where_it_was(kind: str, size: tuple[int, int]) -> None:
    """The largest one is decoded at an eighth, or a quarter, of its size."""
    out = np.zeros((32, 48, 3), np.uint8)
    fill(out, encoded(gradient(*size), kind), lambda w, h: (w * 0.25, h * 0.5, w * 0.5, h * 0.25))
    across, down = np.linspace(64, 191, 48), np.linspace(127, 191, 32)
    assert np.abs(out[..., 0].mean(0) - across).max() < 10
    assert np.abs(out[..., 1].mean(1) - down).max() < 10
    assert out[..., 2].max() < 40, "blue comes last, and there is none"


@pytest.mark.parametrize(
    "data",
    [b"", b"hello", encoded(gradient(200, 200))[:-500], encoded(gradient(200, 200))[:200]],
)
def test_broken_bytes_are_told(data: bytes) -> None:
    with pytest.raises(BrokenImageError):
        fill(np.zeros((8, 8, 3), np.uint8), data, whole)


def with_preview(data: bytes) -> bytes:
    """A JPEG that has a small JPEG in its header, as cameras write it."""
    told = b"Exif\0\0" + bytes(30000) + encoded(gradient(40, 40))
    return data[:2] + b"\xff\xe1" + (len(told) + 2).to_bytes(2, "big") + told + data[2:]


@pytest.mark.parametrize("progressive", [0, 1])
@pytest.mark.parametrize("preview", [False, True])
def test_a_file_cut_off_below_the_part_is_told(progressive: int, preview: bool) -> None:
    """Rows that nobody looks at are not decoded, and the end of the file must still be there."""
    data = cv2.imencode(".jpg", gradient(400, 400), [cv2.IMWRITE_JPEG_PROGRESSIVE, progressive])[
        1
    ].tobytes()
    data = with_preview(data) if preview else data
    out = np.zeros((8, 8, 3), np.uint8)
    fill(out, data, lambda w, h: (0, 0, w, h / 8))
    for lost in (2, 100, 2000):
        with pytest.raises(BrokenImageError, match="ends too early"):
            fill(out, data[:-lost], lambda w, h: (0, 0, w, h / 8))


@pytest.mark.parametrize("more", [50, 1 << 20])
def test_bytes_behind_the_end_do_no_harm(more: int) -> None:
    fill(np.zeros((8, 8, 3), np.uint8), encoded(gradient(200, 200)) + bytes(more), whole)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.floats(0.01, 1.0),
    st.floats(0.2, 1.0),
    st.floats(1.0, 5.0),
    st.integers(0, 9),
)
def test_random_boxes_keep_the_bounds(  # noqa: PLR0917
    width: int, height: int, scale: float, low: float, high: float, seed: int
) -> None:
    view = View(lower_scale=scale, lower_ratio=low, upper_ratio=high)
    left, top, across, down = view.random(width, height, Random(seed))
    slack = 1e-6 * max(width, height)
    assert left >= -slack
    assert top >= -slack
    assert left + across <= width + slack
    assert top + down <= height + slack
    assert low - 1e-6 <= across / down <= high + 1e-6
    possible = min(1.0, width / height / (across / down), across / down * height / width)
    assert across * down >= min(scale, possible) * width * height * (1 - 1e-6)


def test_the_centre_is_that_of_the_resized_image() -> None:
    view = View(image_shape=(3, 224, 224), resize_short_size=256)
    assert view.centre(512, 1024) == (32.0, 288.0, 448.0, 448.0)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"lower_scale": 0.0}, "lower_scale=0.0"),
        ({"lower_ratio": 2.0, "upper_ratio": 1.0}, "are no range"),
        ({"resize_short_size": 200}, "set it to at least 224"),
        ({"image_shape": (1, 8, 8)}, "image_shape"),
    ],
)
def test_wrong_views_are_clear_errors(options: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        View(**options)  # type: ignore[arg-type]


def test_shapes_of_command_lines() -> None:
    assert parsed_shape("3,64,32") == (3, 64, 32)
    with pytest.raises(ValueError, match="must be like"):
        parsed_shape("224")


def test_the_file_is_only_read(tmp_path: Path) -> None:
    data = encoded(gradient(64, 64))
    copy = bytes(data)
    fill(np.zeros((8, 8, 3), np.uint8), data, whole)
    assert data == copy
