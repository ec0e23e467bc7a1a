"""The weights of ``--pretrained_model``, taken over by a model."""

from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor, nn

from fleetx.io import checkpoint_weights, manifest
from fleetx.io.files import load_tensors

WHOLE = "model.safetensors"
"""The weights in a folder that training wrote; what lies beside them is the workers' own."""


def load_weights(model: nn.Module, path: Path, hint: str) -> None:
    """Load a file or a folder; every value of the model must be in it, and nothing else.

    Args:
        model: gets the weights; it may translate their names, as VGG-16 does.
        path: a safetensors file, a checkpoint, or a folder with one file per value.
        hint: what else may be wrong where sizes differ.
    """
    state = _state(path)
    try:
        found = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        why = str(error).splitlines()  # a headline, and a line for each value of another size
        told = "; ".join(line.strip().rstrip(".") for line in why[1:3] or why)
        raise ValueError(
            f"--pretrained_model {path} is not one of this model ({told}); give the weights of "
            f"the same model{hint}."
        ) from error
    if found.missing_keys or found.unexpected_keys:
        raise ValueError(
            f"--pretrained_model {path} is not one of this model: it lacks "
            f"{sorted(found.missing_keys)[:3]} and has {sorted(found.unexpected_keys)[:3]}, which "
            "the model does not know; give the weights of the same model."
        )


def _state(path: Path) -> dict[str, Tensor]:
    if not path.is_dir():
        return _tensors(path)
    if (path / WHOLE).is_file():
        return _tensors(path / WHOLE)
    if (path / manifest.NAME).is_file():
        return checkpoint_weights(path)
    files = [file for file in sorted(path.iterdir()) if file.is_file()]
    if not files:
        raise FileNotFoundError(
            f"--pretrained_model {path} has no file in it; give a safetensors file, a folder with "
            f"{WHOLE}, or one with a file per value."
        )
    return {name: value for file in files for name, value in _tensors(file).items()}


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_tensors(path)
    except SafetensorError as error:
        raise ValueError(
            f"--pretrained_model: {str(path)!r} is no safetensors file ({error}). Weights that "
            "torch.save() wrote become one with safetensors.torch.save_file(torch.load(path, "
            "weights_only=True), 'weights.safetensors')."
        ) from error
