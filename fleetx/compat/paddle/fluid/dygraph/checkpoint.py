"""``paddle.fluid.dygraph.checkpoint``: files of eager scripts of Paddle 1."""

from pathlib import Path
from typing import Any

import torch

from fleetx.compat.files import pickles


def save_dygraph(state_dict: Any, model_path: str) -> None:
    """Write parameters to ``.pdparams``, or an optimizer's state to ``.pdopt``."""
    is_weights = all(isinstance(value, torch.nn.Parameter) for value in state_dict.values())
    ending = ".pdparams" if is_weights else ".pdopt"
    pickles.write(f"{model_path}{ending}", dict(state_dict))


def load_dygraph(model_path: str, **configs: Any) -> tuple[Any, Any]:
    """Parameters and the optimizer's state; None for the one that has no file."""
    plain = model_path.removesuffix(".pdparams").removesuffix(".pdopt")
    files = [Path(f"{plain}.pdparams"), Path(f"{plain}.pdopt")]
    if not any(path.exists() for path in files):
        raise FileNotFoundError(f"there is neither {files[0]} nor {files[1]}.")
    found = [pickles.read(path) if path.exists() else None for path in files]
    return found[0], found[1]
