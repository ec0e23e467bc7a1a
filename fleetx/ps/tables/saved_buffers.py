"""Buffers of models, such as running statistics, which no server has: a file beside its tables.

Its name follows from what it holds, and the list of the save has it: a save over another one
leaves the old list with the old file, or the new one with the new file.
"""

from collections.abc import Mapping
from pathlib import Path

from fleetx.ps.tables import checksums, safetensors_file
from fleetx.ps.tables.checksums import DamagedError
from fleetx.ps.wire.arrays import Array


def write(root: Path, buffers: Mapping[str, Array]) -> str:
    """Write them beside the tables, and return what the list of the save is to say of them."""
    if not buffers:
        return ""
    checksum = checksums.of_arrays(buffers)
    safetensors_file.write(_path(root, checksum), buffers)
    return checksum


def read(root: Path, checksum: str) -> dict[str, Array]:
    """Those of the save whose list says so."""
    if not checksum:
        return {}
    if not _path(root, checksum).is_file():
        raise DamagedError(
            f"{_path(root, checksum)} is missing, which holds the running statistics of the save; "
            "copy the whole folder again from where it was written, or take another save"
        )
    return safetensors_file.read(_path(root, checksum), checksum)


def remove_others(root: Path, checksum: str) -> None:
    """Remove those of saves that were in the folder before."""
    for path in root.glob("buffers-*.safetensors"):
        if path != _path(root, checksum):
            path.unlink(missing_ok=True)


def _path(root: Path, checksum: str) -> Path:
    return root / f"buffers-{checksum}.safetensors"
