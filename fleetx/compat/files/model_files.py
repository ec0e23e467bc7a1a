"""A model as one file, where fleetx has a folder: the folder in an archive, without compression."""

import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fleetx.io.inference import SIGNATURE
from fleetx.ps.tables.save_folder import TABLES


def is_model(path: Path) -> bool:
    """Whether a file, or a folder of an earlier release, holds a model."""
    if path.is_dir():
        return (path / SIGNATURE).is_file()
    if not path.is_file() or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return SIGNATURE in archive.namelist()


def remove(path: Path) -> None:
    """Make room for another file: a folder there is a model of an earlier release."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """A folder to write a model into; the file has all of it afterwards, or stays as it was.

    A worker that leaves the folder empty, since another one writes, leaves the file alone. Tables
    of parameter servers may be large and are read where they lie: with them it stays a folder.
    """
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield folder
        if (folder / TABLES).is_dir():
            remove(path)
            folder.chmod(0o755)
            folder.rename(path)
        elif (folder / SIGNATURE).is_file():
            archive = _archived(folder)
            remove(path)
            archive.rename(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _archived(folder: Path) -> Path:
    parts = [part for part in sorted(folder.rglob("*")) if part.is_file()]
    made = folder / ".archive"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for part in parts:
            archive.write(part, part.relative_to(folder))
    return made


@contextmanager
def opened(path: Path) -> Iterator[Path]:
    """The folder that a file holds."""
    if path.is_dir():
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
        yield Path(folder)
