"""Tensors in safetensors files, written whole or not at all."""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from fleetx.api.session import may_save

Folder = str | os.PathLike[str]


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """A path to write to that becomes ``path`` at the end; readers never see half a file."""
    with written_together(path.parent) as folder:
        yield folder / path.name
        assert (folder / path.name).exists(), "whoever asks for a path writes to it"


@contextmanager
def written_together(folder: Path, *, unless_written: Sequence[str] = ()) -> Iterator[Path]:
    """A folder to write to, whose files move to ``folder`` at the end; none if anything fails.

    Args:
        folder: where they shall be.
        unless_written: files there that make no sense beside the new ones.
    """
    if not may_save():
        with tempfile.TemporaryDirectory(prefix="fleetx-unsaved-") as nowhere:
            yield Path(nowhere)
        return
    # Several workers may write the same file at once; the last one stays.
    beside = folder / f".{uuid.uuid4().hex}"
    beside.mkdir(parents=True)
    try:
        yield beside
        fresh = sorted(beside.iterdir())
        for path in fresh:
            os.replace(path, folder / path.name)
        for name in set(unless_written) - {path.name for path in fresh}:
            (folder / name).unlink(missing_ok=True)
    finally:
        shutil.rmtree(beside)


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
