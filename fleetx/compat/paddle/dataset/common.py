"""``paddle.dataset.common``: files of data sets."""

import glob
import hashlib
import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fleetx.compat.files import pickles
from fleetx.compat.notes import note
from fleetx.data.downloads.sources import Source, SourceError, source_of
from fleetx.roles import dataset_variables

DATA_HOME = str(dataset_variables.home())
_PIECE = 1 << 20

Reader = Callable[[], Iterable[Any]]


def must_mkdirs(path: str) -> None:
    """Make a folder, and those above it."""
    Path(path).mkdir(parents=True, exist_ok=True)


def md5file(fname: str) -> str:
    """The MD5 sum of a file."""
    with open(fname, "rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _fetch(source: Source, name: str, target: Path) -> None:
    part = target.with_name(f"{target.name}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open(name) as opened, part.open("wb") as file:
        shutil.copyfileobj(opened.stream, file, _PIECE)
    part.replace(target)


def found(module_name: str, name: str) -> Path | None:
    """A file of a data set on this machine, or from the mirror; None if neither has it."""
    target = Path(DATA_HOME) / module_name / name
    if target.is_file():
        return target
    mirror = dataset_variables.mirror()
    if mirror is None:
        return None
    source = source_of(mirror)
    for there in (f"{module_name}/{name}", name):
        try:
            _fetch(source, there, target)
        except SourceError:
            continue
        return target
    return None


def download(url: str, module_name: str, md5sum: str | None, save_name: str | None = None) -> str:
    """A file by its address: of this machine, of the mirror, or from there."""
    name = save_name or Path(urlsplit(url).path).name
    target = found(module_name, name)
    if target is None:
        target = Path(DATA_HOME) / module_name / name
        folder, _, last = url.rpartition("/")
        try:
            _fetch(source_of(folder), last, target)
        except SourceError as error:
            raise RuntimeError(
                f"Cannot download {url} ({error}); put the file at {target}, or name a mirror by "
                f"{dataset_variables.MIRROR}."
            ) from error
    if md5sum and md5file(str(target)) != md5sum:
        raise RuntimeError(f"{target} has another MD5 sum than {md5sum}; remove it, and try again.")
    return str(target)


def drawn(name: str, why: str = "") -> None:
    """Say once that a data set is no real one."""
    note(
        f"paddle.dataset.{name}",
        f"its files are neither in {DATA_HOME} nor at {dataset_variables.MIRROR}, so a small data "
        f"set of the same form is drawn{why}.",
    )


def split(
    reader: Reader,
    line_count: int,
    suffix: str = "%05d.pickle",
    dumper: Callable[[Any, Any], None] = pickle.dump,
) -> None:
    """Write the samples of a reader to files of so many."""
    group: list[Any] = []
    number = 0
    for sample in reader():
        group.append(sample)
        if len(group) == line_count:
            with open(suffix % number, "wb") as file:
                dumper(group, file)
            group, number = [], number + 1
    if group:
        with open(suffix % number, "wb") as file:
            dumper(group, file)


def cluster_files_reader(
    files_pattern: str,
    trainer_count: int,
    trainer_id: int,
    loader: Callable[[Any], Any] = pickles.read_stream,
) -> Reader:
    """The samples of every n-th file of a pattern."""

    def read() -> Iterator[Any]:
        names = sorted(glob.glob(files_pattern))
        for name in names[trainer_id::trainer_count]:
            with open(name, "rb") as file:
                yield from loader(file)

    return read
