"""Models that nobody here wrote: import ``timm``, ``torchvision`` and ``transformers`` from here.

The build of torchvision that package indices carry is for CUDA. Next to a CPU build of torch its
compiled operators do not load, and it then stops at describing two of them; models need neither.
"""

import importlib.util
from pathlib import Path

import torch

_kept: list[torch.library.Library] = []  # a library takes its operators along when it is freed


def _name_missing_operators() -> None:
    spec = importlib.util.find_spec("torchvision")
    assert spec is not None, "the dev extra installs torchvision"
    assert spec.origin is not None
    try:
        for compiled in Path(spec.origin).parent.glob("_C*.so"):
            torch.ops.load_library(str(compiled))
    except OSError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)


_name_missing_operators()

import timm  # noqa: E402
import torchvision  # noqa: E402
import transformers  # noqa: E402

__all__ = ["timm", "torchvision", "transformers"]
