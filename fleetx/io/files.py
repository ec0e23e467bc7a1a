"""Tensors in safetensors files, written whole or not at all."""

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

Folder = str | os.PathLike[str]


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """A path to write to that becomes ``path`` at the end; readers never see half a file."""
    # Several workers may write the same file at once; the last one stays.
    folder = path.parent / f".{uuid.uuid4().hex}"
    folder.mkdir(parents=True)
    try:
        yield folder / path.name
        os.replace(folder / path.name, path)
    finally:
        shutil.rmtree(folder)


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by name into one file."""
    whole = {name: _whole(tensor) for name, tensor in tensors.items()}
    with written(path) as beside:
        save_file(whole, beside)


def _whole(tensor: Tensor) -> Tensor:
    """On the host, in memory of its own; what is spread over workers is gathered by all of them."""
    tensor = tensor.detach()
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return tensor.cpu().contiguous().clone()


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a file."""
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {str(path)!r} to load from; look at the folder, or at filename, "
            "which must be the one that was given when it was saved."
        )
    return dict(load_file(path))


def one_each(folder: Folder, tensors: Mapping[str, Tensor]) -> None:
    """Write every tensor into a file of its own name."""
    for name, tensor in tensors.items():
        save_tensors(Path(folder) / name, {name: tensor})
