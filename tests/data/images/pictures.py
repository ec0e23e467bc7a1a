"""Files of all kinds that look like photographs."""

import io
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from fleetx.data.images import LabelledFiles
from fleetx.data.images.placement import Pixels

KINDS = ("plain", "4:4:4", "grey", "progressive", "restarts", "cmyk", "rgb", "png")
"""How a file may be written."""


def photograph(width: int, height: int, seed: int = 0) -> Pixels:
    """Large forms with edges, and a little grain."""
    numbers = np.random.default_rng(seed)
    coarse = numbers.normal(128, 60, (height // 32 + 2, width // 32 + 2, 3)).astype(np.float32)
    image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    cv2.circle(image, (width // 3, height // 2), min(width, height) // 4, (240, 200, 30), -1)
    noise = numbers.normal(0, 20, (height, width, 3)).astype(np.float32)
    return np.clip(image + cv2.GaussianBlur(noise, (0, 0), 1.2), 0, 255).astype(np.uint8)


def written(image: Pixels, kind: str = "plain") -> bytes:
    """The bytes of a file."""
    picture, out = Image.fromarray(image), io.BytesIO()
    match kind:
        case "plain":
            picture.save(out, "JPEG", quality=92)
        case "4:4:4":
            picture.save(out, "JPEG", quality=92, subsampling=0)
        case "grey":
            picture.convert("L").save(out, "JPEG", quality=92)
        case "progressive":
            picture.save(out, "JPEG", quality=92, progressive=True)
        case "restarts":
            picture.save(out, "JPEG", quality=92, restart_marker_rows=1)
        case "cmyk":
            picture.convert("CMYK").save(out, "JPEG", quality=92)
        case "rgb":
            picture.save(out, "JPEG", quality=92, keep_rgb=True)
        case _:
            picture.save(out, kind)
    return out.getvalue()


def laid_out(folder: Path, files: list[bytes]) -> LabelledFiles:
    """Files in a folder; each has its number for a label."""
    for number, data in enumerate(files):
        (folder / f"{number}.jpg").write_bytes(data)
    return LabelledFiles.of(folder, [f"{n}.jpg" for n in range(len(files))], range(len(files)))
