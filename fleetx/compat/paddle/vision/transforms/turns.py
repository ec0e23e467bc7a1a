"""Pictures that are turned, or of which a part is erased."""

import math
import random
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from fleetx.compat.paddle.vision.image import cv2, is_picture, pil
from fleetx.compat.paddle.vision.transforms.functional import size_of
from fleetx.compat.paddle.vision.transforms.transforms import BaseTransform

Image = Any


def rotate(  # noqa: PLR0917 (the order of Paddle)
    img: Image,
    angle: float,
    interpolation: str = "nearest",
    expand: bool = False,
    center: Any = None,
    fill: Any = 0,
) -> Image:
    """Turned by an angle in degrees, against the clock."""
    if is_picture(img):
        way = getattr(pil().Resampling, interpolation.upper())
        return img.rotate(angle, way, expand, center, fillcolor=fill)
    found = np.asarray(img)
    height, width = found.shape[:2]
    middle = center or ((width - 1) / 2, (height - 1) / 2)
    matrix = cv2().getRotationMatrix2D(middle, angle, 1.0)
    if expand:
        cos, sin = abs(matrix[0, 0]), abs(matrix[0, 1])
        wide, high = round(height * sin + width * cos), round(height * cos + width * sin)
        matrix[:, 2] += ((wide - width) / 2, (high - height) / 2)
        width, height = wide, high
    ways = {"nearest": cv2().INTER_NEAREST, "bilinear": cv2().INTER_LINEAR}
    way = ways.get(interpolation, cv2().INTER_CUBIC)
    made = cv2().warpAffine(found, matrix, (width, height), flags=way, borderValue=fill)
    return made.reshape(height, width, *found.shape[2:])


def erase(img: Image, i: int, j: int, h: int, w: int, v: Any, inplace: bool = False) -> Image:  # noqa: PLR0917
    """A part of a picture replaced: rows from ``i``, columns from ``j``."""
    if isinstance(img, torch.Tensor):
        made = img if inplace else img.clone()
        made[..., i : i + h, j : j + w] = v
        return made
    found = np.asarray(img) if inplace and not is_picture(img) else np.array(img)
    found[i : i + h, j : j + w] = v
    return pil().fromarray(found) if is_picture(img) else found


class RandomRotation(BaseTransform):
    """Turned by an angle that is drawn."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        degrees: Any,
        interpolation: str = "nearest",
        expand: bool = False,
        center: Any = None,
        fill: Any = 0,
        keys: Any = None,
    ) -> None:
        super().__init__(keys)
        plain = isinstance(degrees, int | float)
        self.degrees = (-abs(degrees), abs(degrees)) if plain else tuple(degrees)
        self._options = (interpolation, expand, center, fill)

    @override
    def _apply_image(self, img: Image) -> Image:
        return rotate(img, random.uniform(*self.degrees), *self._options)


class RandomErasing(BaseTransform):
    """A part of the picture erased, with a probability."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        prob: float = 0.5,
        scale: Any = (0.02, 0.33),
        ratio: Any = (0.3, 3.3),
        value: Any = 0,
        inplace: bool = False,
        keys: Any = None,
    ) -> None:
        super().__init__(keys)
        self.prob, self.scale, self.ratio = prob, tuple(scale), tuple(ratio)
        self.value, self.inplace = value, inplace

    @override
    def _apply_image(self, img: Image) -> Image:
        if random.random() >= self.prob:
            return img
        tensor = isinstance(img, torch.Tensor)
        height, width = tuple(img.shape[-2:]) if tensor else size_of(img)
        for _ in range(10):
            area = height * width * random.uniform(*self.scale)
            shape = math.exp(random.uniform(*(math.log(side) for side in self.ratio)))
            high, wide = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if high < height and wide < width:
                top, left = random.randint(0, height - high), random.randint(0, width - wide)
                return erase(img, top, left, high, wide, self._filled(img), self.inplace)
        return img

    def _filled(self, img: Image) -> Any:
        if self.value != "random":
            return self.value
        return torch.randn(()) if isinstance(img, torch.Tensor) else random.randint(0, 255)
