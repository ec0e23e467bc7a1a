"""A header tells the size, and a file without its lower rows has the same pixels above."""

from itertools import product
from random import Random

import cv2
import numpy as np
import pytest

from fleetx.data.images.decoding import fill
from fleetx.data.images.jpeg import JpegHeader, jpeg_header, without_rows_below
from fleetx.data.images.placement import Pixels

SAMPLINGS = {
    "411": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
    "420": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    "422": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
    "440": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
    "444": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
}
REDUCTIONS = {
    1: cv2.IMREAD_COLOR,
    2: cv2.IMREAD_REDUCED_COLOR_2,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    8: cv2.IMREAD_REDUCED_COLOR_8,
}


def noise(width: int, height: int, seed: int = 0) -> Pixels:
    coarse = np.random.default_rng(seed).integers(0, 256, (height // 3 + 1, width // 3 + 1, 3))
    return cv2.resize(coarse.astype(np.uint8), (width, height), interpolation=cv2.INTER_CUBIC)  # type: ignore[return-value]


def encoded(image: Pixels, *options: int) -> bytes:
    return cv2.imencode(".jpg", image, options)[1].tobytes()


def header_of(data: bytes) -> JpegHeader:
    header = jpeg_header(data)
    assert header is not None
    return header


def decoded(data: bytes, reduction: int = 1) -> Pixels:
    image = cv2.imdecode(np.frombuffer(data, np.uint8), REDUCTIONS[reduction])
    assert image is not None
    return image  # type: ignore[return-value]


def test_the_header_tells_the_size() -> None:
    data = encoded(noise(123, 45))
    header = header_of(data)
    assert (header.width, header.height) == (123, 45)
    assert header.scan is not None
    assert jpeg_header(cv2.imencode(".png", noise(8, 8))[1].tobytes()) is None
    assert jpeg_header(b"\xff\xd8\xff") is None
    assert jpeg_header(b"") is None
    # A marker without a length and padding come before the size.
    padded = header_of(data[:2] + b"\xff\x01\xff" + data[2:])
    assert (padded.width, padded.height) == (123, 45)


def test_any_beginning_of_a_file_is_a_header_or_none() -> None:
    data = encoded(noise(40, 30))
    for length in range(len(data)):
        header = jpeg_header(data[:length])
        assert header is None or (header.width, header.height) == (40, 30)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_rows_above_are_the_same(
    sampling: str, reduction: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """At every place of the cut, those beside the borders of blocks and the last row included."""
    data = encoded(noise(70, 150), cv2.IMWRITE_JPEG_SAMPLING_FACTOR, SAMPLINGS[sampling])
    whole, header = decoded(data, reduction), header_of(data)
    fewer = 0
    for bottom in range(1, 151):
        image = decoded(without_rows_below(data, header, bottom, reduction), reduction)
        rows = -(-bottom // reduction)
        assert image.shape[0] >= rows
        np.testing.assert_array_equal(image[:rows], whole[:rows])
        fewer += image.shape[0] < whole.shape[0]
    assert fewer >= 150 - 4 * reduction
    assert not capfd.readouterr().err, "the decoder has nothing to complain of"


@pytest.mark.parametrize("width", [1, 3, 17])
def test_images_of_hardly_any_bytes(width: int) -> None:
    """Decoders look ahead; here there is next to nothing ahead."""
    flat = np.full((64, width, 3), 90, np.uint8)
    data = encoded(flat)
    for bottom in range(1, 65):
        image = decoded(without_rows_below(data, header_of(data), bottom))
        np.testing.assert_array_equal(image[:bottom], decoded(data)[:bottom])


@pytest.mark.parametrize(
    "options",
    [(cv2.IMWRITE_JPEG_PROGRESSIVE, 1), (cv2.IMWRITE_JPEG_RST_INTERVAL, 4)],
    ids=["progressive", "restarts"],
)
def test_what_is_not_one_run_is_left_whole(options: tuple[int, int]) -> None:
    data = encoded(noise(64, 64), *options)
    assert header_of(data).scan is None
    assert without_rows_below(data, header_of(data), 10) is data


def test_grey_images_and_bytes_behind_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    grey = cv2.imencode(".jpg", noise(64, 64)[..., 0])[1].tobytes()
    short = without_rows_below(grey + b"more", header_of(grey), 20)
    np.testing.assert_array_equal(decoded(short)[:20], decoded(grey)[:20])
    assert len(decoded(short)) == 22
    assert not capfd.readouterr().err


def test_a_camera_file_of_several_images_is_left_whole() -> None:
    """Their list is a segment of its own; that of a colour profile has the same marker."""
    first, second = encoded(noise(64, 64)), encoded(noise(64, 64, seed=1))
    for kind, is_whole in ((b"MPF\0", True), (b"ICC_PROFILE\0", False)):
        segment = b"\xff\xe2" + (len(kind) + 2).to_bytes(2, "big") + kind
        data = first[:2] + segment + first[2:] + (second if is_whole else b"")
        assert (header_of(data).scan is None) == is_whole
        np.testing.assert_array_equal(
            decoded(without_rows_below(data, header_of(data), 20))[:20], decoded(first)[:20]
        )


def test_random_parts_are_those_of_the_whole_image() -> None:
    """Through decoding, cutting and resizing, against the same without any saving."""
    numbers = Random(0)
    for width, height in product((37, 300, 611), (41, 280)):
        image = noise(width, height)
        data = encoded(image)
        whole = decoded(data)
        for _ in range(10):
            down, across = numbers.randint(8, height), numbers.randint(8, width)
            top, left = numbers.randint(0, height - down), numbers.randint(0, width - across)
            out: Pixels = np.zeros((across, across, 3), np.uint8)  # at least as wide: no reduction
            fill(out, data, lambda w, h, box=(left, top, across, down): box)  # type: ignore[misc]
            part = whole[top : top + down, left : left + across]
            expected = cv2.resize(part, (across, across), interpolation=cv2.INTER_LINEAR)
            np.testing.assert_array_equal(out[..., ::-1], expected)
