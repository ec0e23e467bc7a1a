"""Models that nobody here wrote: import ``timm``, ``torchvision`` and ``transformers`` from here.

The build of torchvision that package indices carry is for CUDA. Next to a CPU build of torch its
compiled operators do not load, and it then stops at describing two of them; models need neither.
"""

import torch

_kept: list[torch.library.Library] = []  # a library takes its operators along when it is freed


def _name_missing_operators() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(library)


if not torch.cuda.is_available():
    _name_missing_operators()

import timm  # noqa: E402
import torchvision  # noqa: E402
import transformers  # noqa: E402

__all__ = ["timm", "torchvision", "transformers"]
