"""Drawing flowers: what they look like is their class, how they are shown is chance."""

import colorsys
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Colour = tuple[int, int, int]
"""Blue, green, red: OpenCV's order."""

_GOLDEN = 0.618034
_SOFT = 2
"""Flowers are drawn this many times larger, for smooth edges."""


@dataclass(frozen=True)
class Species:
    """What all flowers of a class have in common."""

    petals: int
    width: float
    """Of a petal, per length."""
    hue: float
    heart: float
    """The radius of the middle, per length of a petal."""
    ringed: bool
    """Whether a second, darker ring of petals lies inside."""

    @classmethod
    def number(cls, label: int) -> "Species":
        """Neighbouring labels differ in everything; no two of some hundred are alike."""
        return cls(
            petals=4 + (label * 3) % 7,
            width=(0.22, 0.34, 0.46)[label % 3],
            hue=(label * _GOLDEN) % 1.0,
            heart=(0.2, 0.32)[label // 2 % 2],
            ringed=label // 4 % 2 == 1,
        )


def flower(label: int, size: int, numbers: np.random.Generator) -> Pixels:
    """One flower somewhere on a lawn; about ``size`` pixels on its short side."""
    import cv2

    kind = Species.number(label)
    height, width = (int(size * numbers.uniform(1.0, 1.3)) for _ in range(2))
    image = _lawn(height * _SOFT, width * _SOFT, numbers)
    length = min(height, width) * _SOFT * numbers.uniform(0.3, 0.44)
    middle = (
        width * _SOFT * numbers.uniform(0.42, 0.58),
        height * _SOFT * numbers.uniform(0.42, 0.58),
    )
    turn, light = numbers.uniform(0, 2 * math.pi), numbers.uniform(0.8, 1.0)
    _ring(image, kind, middle, (length, turn, light))
    if kind.ringed:
        _ring(image, kind, middle, (length * 0.6, turn + math.pi / kind.petals, light * 0.6))
    centre = (int(middle[0]), int(middle[1]))
    yellow = _colour((kind.hue + 0.45) % 1.0, 0.9, light)
    cv2.circle(image, centre, int(length * kind.heart), yellow, -1, cv2.LINE_AA)
    shown = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA).astype(np.float32)
    noise = numbers.normal(0, 6, size=shown.shape)
    return _bytes(shown + noise)


def jpeg(image: Pixels) -> bytes:
    """The bytes of a JPEG file."""
    import cv2

    done, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 90])
    assert done, "pixels of bytes can always be encoded"
    return data.tobytes()


def _lawn(height: int, width: int, numbers: np.random.Generator) -> Pixels:
    """Blurred greens, lighter on one side."""
    import cv2

    coarse = numbers.uniform(0.5, 1.0, (8, 8)).astype(np.float32)
    shade = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    green = np.array(_colour(numbers.uniform(0.25, 0.38), 0.7, 0.55), np.float32)
    return _bytes(shade[..., None] * green)


def _bytes(values: Any) -> Pixels:
    found: Pixels = np.clip(values, 0, 255).astype(np.uint8)
    return found


def _ring(
    image: Pixels,
    kind: Species,
    middle: tuple[float, float],
    shape: tuple[float, float, float],
) -> None:
    """One ring of petals; ``shape`` is their length, where the first points, and their light."""
    import cv2

    length, turn, light = shape
    colour = _colour(kind.hue, 0.75, light)
    edge = _colour(kind.hue, 0.85, light * 0.7)
    for petal in range(kind.petals):
        angle = turn + 2 * math.pi * petal / kind.petals
        at = (
            int(middle[0] + math.cos(angle) * length * 0.55),
            int(middle[1] + math.sin(angle) * length * 0.55),
        )
        axes = (int(length * 0.5), max(1, int(length * kind.width)))
        degrees = math.degrees(angle)
        cv2.ellipse(image, at, axes, degrees, 0, 360, colour, -1, cv2.LINE_AA)
        cv2.ellipse(image, at, axes, degrees, 0, 360, edge, 2, cv2.LINE_AA)


def _colour(hue: float, saturation: float, value: float) -> Colour:
    red, green, blue = colorsys.hsv_to_rgb(hue, saturation, value)
    return int(blue * 255), int(green * 255), int(red * 255)
