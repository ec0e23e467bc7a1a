"""Where files come from: an address, or a folder of this machine."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from os import SEEK_END
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

from typing_extensions import override

TIMEOUT = 30
"""Seconds without a byte after which a server counts as gone."""


class SourceError(OSError):
    """A file cannot be had from here."""


class PastTheEndError(SourceError):
    """There is nothing behind what was fetched before."""


@dataclass(frozen=True)
class Opened:
    """A file that is being read."""

    stream: BinaryIO
    start: int
    """The first byte that comes; a server may begin anew."""
    size: int | None
    """Of the whole file, where that is known."""


class Source(ABC):
    """A place with files."""

    def __init__(self, place: str) -> None:
        self.place = place.rstrip("/") or place[:1]  # the root of a disk has no other name

    @override
    def __str__(self) -> str:
        return self.place

    @abstractmethod
    @contextlib.contextmanager
    def open(self, name: str, start: int = 0) -> Iterator[Opened]:
        """A file from one of its bytes on."""
        yield NotImplemented

    def text(self, name: str) -> str:
        """A whole small file."""
        with self.open(name) as opened:
            return opened.stream.read().decode()


class Folder(Source):
    """A folder."""

    @override
    @contextlib.contextmanager
    def open(self, name: str, start: int = 0) -> Iterator[Opened]:
        path = Path(self.place) / name
        try:
            stream = path.open("rb")
        except OSError as error:
            raise SourceError(f"{str(path)!r} cannot be read: {error.strerror}") from error
        with stream:
            size = stream.seek(0, SEEK_END)
            stream.seek(min(start, size))
            yield Opened(stream, min(start, size), size)


class Server(Source):
    """An http or https server."""

    @override
    @contextlib.contextmanager
    def open(self, name: str, start: int = 0) -> Iterator[Opened]:
        address = f"{self.place}/{quote(name)}"
        headers = {"Range": f"bytes={start}-"} if start else {}
        try:
            with urlopen(Request(address, headers=headers), timeout=TIMEOUT) as answer:
                begun = start if answer.status == 206 else 0
                rest = answer.headers["Content-Length"]
                yield Opened(answer, begun, begun + int(rest) if rest else None)
        except HTTPError as error:
            if error.code == 416:
                raise PastTheEndError(f"{address} is shorter than what is here") from error
            raise SourceError(f"{address}: {error.code} {error.reason}") from error
        except (URLError, TimeoutError, ConnectionError, HTTPException) as error:
            raise SourceError(f"{address} cannot be reached: {error}") from error


def source_of(place: str) -> Source:
    """A source by its spelling: http://, https://, file:// or a path."""
    kind = urlsplit(place).scheme
    if kind in {"http", "https"}:
        return Server(place)
    if kind == "file":
        return Folder(unquote(urlsplit(place).path))
    if "://" in place:
        raise ValueError(
            f"{place!r}: files come from http://, https://, file:// or a path; copy them to one of "
            "these."
        )
    return Folder(place)
