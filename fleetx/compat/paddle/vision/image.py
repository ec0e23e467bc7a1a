"""``paddle.vision.image``: what reads pictures."""

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np

BACKENDS = ("pil", "cv2", "tensor")


@dataclass
class _Chosen:
    backend: str = "pil"


_chosen = _Chosen()


def set_image_backend(backend: str) -> None:
    """What data sets give: pictures of PIL, or arrays [height, width, channels] ("cv2")."""
    if backend not in BACKENDS:
        raise ValueError(f"set_image_backend({backend!r}): one of {', '.join(BACKENDS)}.")
    _chosen.backend = backend


def get_image_backend() -> str:
    """What data sets give."""
    return _chosen.backend


def image_load(path: str, backend: str | None = None) -> Any:
    """A picture of a file; arrays have blue first, as cv2 has it."""
    if (backend or _chosen.backend) == "pil":
        return pil().open(path).convert("RGB")
    found = cv2().imread(str(path))
    if found is None:
        raise FileNotFoundError(f"{path!r} is no picture that can be read.")
    return found


def pil() -> Any:
    """The module of PIL, which only scripts need that ask for its pictures."""
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise ImportError(
            "pictures of PIL are asked for (Paddle's default), and it is not installed; "
            "`pip install pillow`, or call paddle.vision.set_image_backend('cv2')."
        ) from error


def cv2() -> Any:
    """The module of OpenCV, which resizes arrays and reads files."""
    try:
        return importlib.import_module("cv2")
    except ImportError as error:
        raise ImportError(
            "pictures are read and resized by OpenCV; `pip install opencv-python-headless`."
        ) from error


def is_picture(img: Any) -> bool:
    """Whether it is one of PIL."""
    return hasattr(img, "convert") and hasattr(img, "getbands")


def as_backend(pixels: Any, backend: str) -> Any:
    """Pixels as the data set's backend has them: a picture of PIL, or numbers."""
    if backend == "pil" and importlib.util.find_spec("PIL") is not None:
        return pil().fromarray(pixels)
    return pixels.astype(np.float32)


def forget() -> None:
    """Begin as a new process does."""
    _chosen.backend = "pil"
