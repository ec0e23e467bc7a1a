"""Files with a sum: fetched beside their place, checked, and only then put there.

Why not pooch: it begins a broken download anew, which for a data set of 150 GB never ends, and
knows no lock between the processes of a machine.
"""

import hashlib
import logging
import re
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fleetx.data.downloads.sources import PastTheEndError, Source, SourceError

logger = logging.getLogger(__name__)

CHUNK = 1 << 20
PART = ".part"
"""Behind the name of a file that is being fetched; it stays when that is interrupted."""
TRIES = 3
ARCHIVES = (".tar", ".tar.gz", ".tgz")
SUM = re.compile(r"[0-9a-f]{32}")


class ChecksumError(ValueError):
    """What came is not what was announced."""


@dataclass(frozen=True)
class Listed:
    """One line of a list."""

    name: str
    md5: str

    def is_in(self, folder: Path) -> bool:
        """Whether the very file is there."""
        path = folder / self.name
        return path.is_file() and md5_of(path) == self.md5


def listed(text: str, place: str) -> list[Listed]:
    """The files of a list of 'name md5' lines."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or not SUM.fullmatch(words[1].lower()) or not _inside(words[0]):
            raise ValueError(
                f"{place}, line {number}: {line!r} is not 'name md5' with a name inside of the "
                "folder and 32 hexadecimal digits."
            )
        found.append(Listed(words[0], words[1].lower()))
    return found


def fetch(file: Listed, sources: Sequence[Source], folder: Path, bar: Any) -> None:
    """Bring one file here from the first source that has it, and has the right one."""
    part = folder / (file.name + PART)
    part.parent.mkdir(parents=True, exist_ok=True)
    for at, source in enumerate(sources, 1):
        try:
            _complete(file, source, part, bar)
        except (SourceError, ChecksumError) as error:
            if at == len(sources):
                raise
            if isinstance(error, ChecksumError):
                logger.warning("%s It is fetched from %s.", error, sources[at])
        else:
            break
    part.replace(folder / file.name)


def unpack(file: Listed, folder: Path) -> None:
    """Unpack an archive into the folder; other files are left alone."""
    if not file.name.endswith(ARCHIVES):
        return
    try:
        with tarfile.open(folder / file.name) as archive:
            archive.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ValueError(
            f"{str(folder / file.name)!r} is no archive ({type(error).__name__}); its sum is the "
            "announced one, so correct it where it comes from."
        ) from error


def md5_of(path: Path) -> str:
    """The sum of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _complete(file: Listed, source: Source, part: Path, bar: Any) -> None:
    """All of a file from one source, going on from what is there if that is its beginning."""
    begun = part.is_file()
    if begun and md5_of(part) == file.md5:
        return
    _copy(file, source, part, bar)
    if begun and md5_of(part) != file.md5:  # the rest of another file; a new one may be right
        part.unlink()
        _copy(file, source, part, bar)
    if (got := md5_of(part)) != file.md5:
        part.unlink()
        raise ChecksumError(
            f"{file.name} of {source} has the md5 sum {got}, and {file.md5} was announced, so it "
            "is damaged or another file; nothing of it was kept. Correct it there, or in the list."
        )


def _copy(file: Listed, source: Source, part: Path, bar: Any) -> None:
    """A line that breaks is taken up again a few times."""
    for attempt in range(1, TRIES + 1):
        try:
            _append(file, source, part, bar)
        except SourceError as error:
            if isinstance(error, PastTheEndError):
                part.unlink(missing_ok=True)
            if attempt == TRIES:
                raise
        else:
            return


def _append(file: Listed, source: Source, part: Path, bar: Any) -> None:
    have = part.stat().st_size if part.is_file() else 0
    with source.open(file.name, have) as opened, part.open("ab") as target:
        target.truncate(opened.start)
        while chunk := opened.stream.read(CHUNK):
            target.write(chunk)
            bar.update(len(chunk))
        got = target.tell()
    if opened.size is not None and got < opened.size:
        raise SourceError(
            f"{file.name} ended after {got} of {opened.size} bytes; call again to go on from there"
        )


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts
