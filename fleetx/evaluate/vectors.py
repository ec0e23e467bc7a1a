"""Vectors in one safetensors file, and in pieces beside it until all of them are there."""

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from fleetx.evaluate.inputs import Reading
from fleetx.io.files import written


@dataclass(frozen=True)
class VectorFile:
    """One vector for each input, and what is needed to read the inputs again."""

    names: list[str]
    labels: Tensor
    checksums: Tensor
    """Of the inputs, so that others are noticed."""
    vectors: Tensor
    reading: Reading
    model: str

    def save(self, path: Path) -> None:
        """Write all of it at once."""
        metadata = {
            "names": json.dumps(self.names),
            "reading": self.reading.to_json(),
            "model": self.model,
        }
        tensors = {"labels": self.labels, "checksums": self.checksums, "vectors": self.vectors}
        with written(path) as beside:
            save_file(tensors, beside, metadata)

    @classmethod
    def load(cls, path: Path) -> "VectorFile":
        """What ``save`` wrote."""
        if not path.is_file():
            raise FileNotFoundError(
                f"there is no file {str(path)!r}; write it with 'fleetx evaluate --output {path}'."
            )
        try:
            with safe_open(path, framework="pt") as opened:
                metadata = opened.metadata() or {}
        except SafetensorError as error:
            raise ValueError(
                f"{str(path)!r} is no safetensors file ({error}); give what 'fleetx evaluate "
                "--output' wrote."
            ) from error
        if "reading" not in metadata:
            raise ValueError(
                f"{str(path)!r} was not written by 'fleetx evaluate'; give the file that its "
                "--output named."
            )
        return cls(
            names=json.loads(metadata["names"]),
            reading=Reading.from_json(metadata["reading"]),
            model=metadata["model"],
            **load_file(path),
        )


class Pieces:
    """Finished parts of a run, each in a file of its own, so that a run can go on later.

    They lie in a folder beside the output and belong to one model and one list: others start anew.
    """

    def __init__(self, output: Path, meaning: str) -> None:
        digest = hashlib.sha256(meaning.encode()).hexdigest()[:16]
        self._folder = output.with_name(output.name + ".pieces") / digest

    def path(self, start: int) -> Path:
        """The file of the piece that begins with an input."""
        return self._folder / f"{start:09d}.safetensors"

    def save(self, start: int, vectors: Tensor, checksums: list[int]) -> None:
        """Write one piece."""
        tensors = {"vectors": vectors.contiguous(), "checksums": torch.tensor(checksums)}
        with written(self.path(start)) as beside:
            save_file(tensors, beside)

    def has(self, start: int) -> bool:
        """Whether a piece is finished."""
        return self.path(start).is_file()

    def join(self, starts: range) -> tuple[Tensor, Tensor]:
        """Vectors and checksums of all pieces, in order."""
        found = [load_file(self.path(start)) for start in starts]
        vectors = torch.cat([piece["vectors"] for piece in found])
        return vectors, torch.cat([piece["checksums"] for piece in found])

    def remove(self) -> None:
        """They are not needed any more."""
        shutil.rmtree(self._folder.parent, ignore_errors=True)
