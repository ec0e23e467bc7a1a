"""What a checkpoint says of itself: who wrote it, and which files make it whole."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fleetx.io.agreement import CheckpointError

NAME = "manifest.json"
FORMAT = 2
"""That of one file with whole weights and one for each worker was 1, and had no manifest."""
TENSORS = "tensors"
"""The folder with what is bound to names of the model."""
WORKER = "workers/{}.safetensors"
"""What a worker keeps besides: parts, numbers, random states."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Written last of all, before the checkpoint gets its name."""

    step: int
    workers: int
    mesh: Mapping[str, int]
    shares: list[int]
    """Which share of the data each worker worked on."""
    rule: list[str]
    """The kinds of the optimizer, its own first."""
    options: Mapping[str, list[str]]
    """Which options of the optimizer each parameter had."""
    tied: Mapping[str, str]
    """Name of a tied parameter -> the name under which it is kept."""
    parts: list[Mapping[str, str]]
    """Digests of the parts of each worker, by which one knows whether all had the same."""
    files: Mapping[str, int]
    """Path -> bytes."""
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Leave it in the folder."""
        (folder / NAME).write_text(json.dumps(asdict(self), indent=1))

    @property
    def alike(self) -> set[str]:
        """The names of parts that were the same on all workers."""
        first = self.parts[0]
        return {name for name in first if all(p.get(name) == first[name] for p in self.parts)}


def read(folder: Path) -> Manifest:
    """The manifest of a checkpoint that is whole."""
    try:
        told: dict[str, Any] = json.loads((folder / NAME).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{str(folder / NAME)!r} cannot be read ({error}): the checkpoint is not whole, or the "
            "machines do not share the folder. Load from one that all of them see."
        ) from error
    if told["format"] != FORMAT:
        raise CheckpointError(
            f"{str(folder)!r} has the format {told['format']}, and this fleetx reads {FORMAT}; "
            "load it with the fleetx that wrote it."
        )
    found = Manifest(**told)
    for name, size in found.files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            there = f"{path.stat().st_size} bytes" if path.is_file() else "nothing"
            raise CheckpointError(
                f"{str(path)!r} should have {size} bytes and has {there}: the checkpoint is not "
                "whole, as after a copy that was cut short. Load another one of the folder."
            )
    return found


def files_below(folder: Path) -> dict[str, int]:
    """Path -> bytes of everything in a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.stat().st_size for path in paths}
