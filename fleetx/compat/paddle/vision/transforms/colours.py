"""Colours of pictures: brighter, stronger, turned around the circle of hues."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from typing_extensions import override

from fleetx.compat.paddle.vision.image import cv2, is_picture, pil
from fleetx.compat.paddle.vision.transforms.functional import to_grayscale
from fleetx.compat.paddle.vision.transforms.transforms import (
    BaseTransform,
    BrightnessTransform,
    ContrastTransform,
)

Image = Any
Range = tuple[float, float] | None


def _mixed(img: Image, other: Any, amount: float) -> Image:
    """Between a picture and another, or beyond it."""
    found = np.asarray(img)
    made = found.astype("float32") * amount + np.asarray(other, "float32") * (1 - amount)
    clipped = made.clip(0, 255).astype(found.dtype)
    return pil().fromarray(clipped) if is_picture(img) else clipped


def adjust_brightness(img: Image, brightness_factor: float) -> Image:
    """Brighter or darker; 1 changes nothing."""
    return _mixed(img, 0, brightness_factor)


def adjust_contrast(img: Image, contrast_factor: float) -> Image:
    """More or less contrast; 1 changes nothing."""
    mean = round(float(np.asarray(to_grayscale(img)).mean()))
    return _mixed(img, mean, contrast_factor)


def adjust_saturation(img: Image, saturation_factor: float) -> Image:
    """Stronger or weaker colours; 1 changes nothing."""
    grey = np.asarray(to_grayscale(img, 3))
    return _mixed(img, grey, saturation_factor)


def adjust_hue(img: Image, hue_factor: float) -> Image:
    """Other colours, by a part of the circle from -0.5 to 0.5."""
    if not -0.5 <= hue_factor <= 0.5:
        raise ValueError(f"adjust_hue(hue_factor={hue_factor}) lies between -0.5 and 0.5.")
    found = np.asarray(img)
    hsv = cv2().cvtColor(found, cv2().COLOR_RGB2HSV_FULL)
    turned = (hsv[..., 0].astype("int64") + round(hue_factor * 255)) % 256
    hsv[..., 0] = turned.astype("uint8")
    made = cv2().cvtColor(hsv, cv2().COLOR_HSV2RGB_FULL)
    return pil().fromarray(made) if is_picture(img) else made


class SaturationTransform(BaseTransform):
    """Stronger or weaker colours, at random."""

    def __init__(self, value: float, keys: Any = None) -> None:
        super().__init__(keys)
        self.value = float(value)

    @override
    def _apply_image(self, img: Image) -> Image:
        return adjust_saturation(img, random.uniform(max(0.0, 1 - self.value), 1 + self.value))


class HueTransform(BaseTransform):
    """Other colours, at random."""

    def __init__(self, value: float, keys: Any = None) -> None:
        super().__init__(keys)
        if not 0 <= value <= 0.5:
            raise ValueError(f"HueTransform(value={value}) lies between 0 and 0.5.")
        self.value = float(value)

    @override
    def _apply_image(self, img: Image) -> Image:
        return adjust_hue(img, random.uniform(-self.value, self.value))


class ColorJitter(BaseTransform):
    """All of them, in an order that is drawn."""

    def __init__(
        self,
        brightness: float = 0,
        contrast: float = 0,
        saturation: float = 0,
        hue: float = 0,
        keys: Any = None,
    ) -> None:
        super().__init__(keys)
        made: list[tuple[Callable[..., BaseTransform], float]] = [
            (BrightnessTransform, brightness),
            (ContrastTransform, contrast),
            (SaturationTransform, saturation),
            (HueTransform, hue),
        ]
        self._parts = [kind(value) for kind, value in made if value]

    @override
    def _apply_image(self, img: Image) -> Image:
        for part in random.sample(self._parts, len(self._parts)):
            img = part._apply_image(img)
        return img
