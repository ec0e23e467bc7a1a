"""``paddle.utils.download``: files by their addresses."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from fleetx.compat.paddle.dataset.common import download, md5file
from fleetx.roles import dataset_variables

WEIGHTS_HOME = str(Path(dataset_variables.home()) / "weights")


def _get_unique_endpoints(trainer_endpoints: Any) -> list[str]:
    """One address of each machine, of a list of all."""
    found: dict[str, str] = {}
    for endpoint in sorted(trainer_endpoints):
        found.setdefault(str(endpoint).partition(":")[0], endpoint)
    return sorted(found.values())


def is_url(path: str) -> bool:
    """Whether it is an address."""
    return path.startswith(("http://", "https://"))


def get_path_from_url(
    url: str,
    root_dir: str,
    md5sum: str | None = None,
    check_exist: bool = True,
    decompress: bool = True,
    method: str = "get",
) -> str:
    """A file in a folder: there already, of the mirror, or from its address; archives unpacked."""
    target = Path(root_dir) / url.rpartition("/")[2]
    there = check_exist and target.exists() and (not md5sum or md5file(str(target)) == md5sum)
    if not there:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(download(url, Path(root_dir).name or "files", md5sum), target)
    return str(_unpacked(target)) if decompress else str(target)


def _unpacked(path: Path) -> Path:
    """The folder of an archive; any other file is its own."""
    if tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            names = archive.getnames()
            archive.extractall(path.parent, filter="data")
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive_of_zip:
            names = archive_of_zip.namelist()
            archive_of_zip.extractall(path.parent)
    else:
        return path
    tops = {name.strip("/").partition("/")[0] for name in names}
    if len(tops) == 1:
        return path.parent / tops.pop()
    return path.parent


def get_weights_path_from_url(url: str, md5sum: str | None = None) -> str:
    """Weights in the folder of weights."""
    return get_path_from_url(url, WEIGHTS_HOME, md5sum)
