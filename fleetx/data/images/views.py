"""What of an image a network sees: the crop, its size and the scale of its numbers."""

import math
from dataclasses import dataclass
from random import Random

Box = tuple[float, float, float, float]
"""Left, top, width and height, in pixels of the whole image."""


@dataclass(frozen=True, kw_only=True)
class View:
    """The options of the ImageNet reference job.

    A training image is a random part of the file, a validation image its centre. Both are cut and
    brought to size in one step.
    """

    image_shape: tuple[int, int, int] = (3, 224, 224)
    """Channels, height and width of what the network sees."""
    lower_scale: float = 0.08
    """The smallest share of the area that a random crop keeps."""
    lower_ratio: float = 3 / 4
    """The smallest width per height of a random crop."""
    upper_ratio: float = 4 / 3
    """The largest width per height of a random crop."""
    resize_short_size: int = 256
    """To validate, the short side is brought to this size before the centre is cut out."""
    image_mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Of red, green and blue between 0 and 1; taken off."""
    image_std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """By which is divided."""

    def __post_init__(self) -> None:
        """Refuse what cannot be cut."""
        channels, height, width = self.image_shape
        if channels != 3 or min(height, width) < 1:
            raise ValueError(f"image_shape={self.image_shape}: set it to 3, height, width.")
        if not 0 < self.lower_scale <= 1:
            raise ValueError(
                f"lower_scale={self.lower_scale} is no share of an area; set it above 0 and to at "
                "most 1."
            )
        if not 0 < self.lower_ratio <= self.upper_ratio:
            raise ValueError(
                f"lower_ratio={self.lower_ratio} and upper_ratio={self.upper_ratio} are no range; "
                "set both above 0 and the lower one first."
            )
        if self.resize_short_size < max(height, width):
            raise ValueError(
                f"resize_short_size={self.resize_short_size} is smaller than the image_shape "
                f"{height} x {width} that is cut out of it; set it to at least "
                f"{max(height, width)} (for 224, 256 is usual)."
            )

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.image_shape[2], self.image_shape[1]

    def centre(self, width: int, height: int) -> Box:
        """The middle of an image, as if its short side were resized first."""
        scale = min(width, height) / self.resize_short_size
        across, down = self.size[0] * scale, self.size[1] * scale
        return (width - across) / 2, (height - down) / 2, across, down

    def random(self, width: int, height: int, numbers: Random) -> Box:
        """A part of random size, shape and place, always inside the image."""
        low, high = math.log(self.lower_ratio), math.log(self.upper_ratio)
        area, ratio, right, down = (numbers.random() for _ in range(4))
        shape = math.exp(low + (high - low) * ratio)
        # The largest crop of that shape bounds the area, so that no draw is thrown away.
        most = min(1.0, width / (height * shape), height * shape / width)
        least = min(self.lower_scale, most)
        kept = (least + (most - least) * area) * width * height
        across, tall = math.sqrt(kept * shape), math.sqrt(kept / shape)
        return (width - across) * right, (height - tall) * down, across, tall


def parsed_shape(text: str) -> tuple[int, int, int]:
    """``"3,224,224"``, as command lines spell it."""
    try:
        channels, height, width = (int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"image_shape={text!r} must be like '3,224,224'") from None
    return channels, height, width
