"""The Downloader fetches what is listed, checks it, goes on after a break, and leaves no ruins."""

import hashlib
import http.server
import io
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fleetx
from fleetx import roles
from fleetx.data.downloads import checked_files
from fleetx.data.downloads.checked_files import ChecksumError
from fleetx.data.downloads.sources import SourceError
from fleetx.testing import world


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files with ranges; ``breaks`` downloads of files end in their middle."""

    server: Any

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Range")))
        path = Path(self.server.folder) / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        data, span = path.read_bytes(), self.headers.get("Range")
        start = int(span.removeprefix("bytes=").rstrip("-")) if span else 0
        if start >= len(data) and span:
            self.send_error(416)
            return
        self.send_response(206 if span else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        rest = data[start:]
        if path.suffix == ".bin" and self.server.breaks:
            self.server.breaks -= 1
            rest = rest[: len(rest) // 2]
        self.wfile.write(rest)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    folder = tmp_path / "remote"
    folder.mkdir()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("inside/hello.txt")
        entry.size = 5
        archive.addfile(entry, io.BytesIO(b"hello"))
    files = {"big.bin": bytes(range(256)) * 4096, "sub.tgz": packed.getvalue(), "c.txt": b"c"}
    lines = []
    for name, data in files.items():
        (folder / name).write_bytes(data)
        lines.append(f"{name} {hashlib.md5(data).hexdigest()}\n")
    (folder / "filelist.txt").write_text("".join(lines))
    return folder


@pytest.fixture
def server(remote: Path) -> Iterator[Any]:
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.folder, server.asked, server.breaks = remote, [], 0
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def described(folder: Path, place: str) -> str:
    path = folder / "data.yaml"
    path.write_text(f"bos_path: {place}\n")
    return str(path)


def address(server: Any) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


WHOLE = {"big.bin", "sub.tgz", "c.txt", "inside/hello.txt", ".download.json", ".download.lock"}


def test_a_server_is_asked_once_and_archives_are_unpacked(
    server: Any, remote: Path, tmp_path: Path
) -> None:
    (remote / "data.yaml").write_text(f"bos_path: {address(server)}\n")
    local = tmp_path / "local"
    found = fleetx.utils.Downloader().download_from_bos(
        fs_yaml=f"{address(server)}/data.yaml", local_path=str(local)
    )
    assert found == str(local)
    assert names(local) == WHOLE
    assert (local / "big.bin").read_bytes() == (remote / "big.bin").read_bytes()
    server.asked.clear()
    fleetx.utils.Downloader().download_from_bos(
        fs_yaml=f"{address(server)}/data.yaml", local_path=str(local)
    )
    assert {path for path, _ in server.asked} == {"/data.yaml", "/filelist.txt"}
    (local / "c.txt").write_text("changed")
    fleetx.utils.Downloader().download_from_bos(f"{address(server)}/data.yaml", local)
    assert (local / "c.txt").read_text() == "c"


def test_a_broken_line_is_taken_up_where_it_broke(
    server: Any, remote: Path, tmp_path: Path
) -> None:
    server.breaks = 2
    local = tmp_path / "local"
    fleetx.utils.Downloader().download_from_bos(described(tmp_path, address(server)), local)
    assert (local / "big.bin").read_bytes() == (remote / "big.bin").read_bytes()
    size = (remote / "big.bin").stat().st_size
    spans = [span for path, span in server.asked if path == "/big.bin"]
    assert spans == [None, f"bytes={size // 2}-", f"bytes={size * 3 // 4}-"]


def test_a_download_that_gave_up_is_resumed_by_the_next(
    server: Any, remote: Path, tmp_path: Path
) -> None:
    server.breaks = 3
    local, where = tmp_path / "local", described(tmp_path, address(server))
    with pytest.raises(SourceError, match="call again to go on"):
        fleetx.utils.Downloader().download_from_bos(where, local)
    assert (local / "big.bin.part").exists()
    assert not (local / "big.bin").exists()
    server.asked.clear()
    fleetx.utils.Downloader().download_from_bos(where, local)
    assert [span is not None for path, span in server.asked if path == "/big.bin"] == [True]
    assert names(local) == WHOLE
    # The rest of another, longer file is not built upon.
    (local / "big.bin").unlink()
    (local / "big.bin.part").write_bytes(b"x" * (2 << 20))
    fleetx.utils.Downloader().download_from_bos(where, local)
    assert names(local) == WHOLE


def test_a_wrong_sum_leaves_nothing(remote: Path, tmp_path: Path) -> None:
    (remote / "c.txt").write_bytes(b"damaged")
    local = tmp_path / "local"
    with pytest.raises(ChecksumError, match=r"c\.txt of .* has the md5 sum .* was announced"):
        fleetx.utils.Downloader().download_from_bos(described(tmp_path, str(remote)), local)
    assert "c.txt" not in names(local)
    assert "c.txt.part" not in names(local)


def test_a_mirror_is_asked_first_and_the_rest_comes_from_afar(
    server: Any, remote: Path, tmp_path: Path
) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "big.bin").write_bytes((remote / "big.bin").read_bytes())
    local = tmp_path / "local"
    fleetx.utils.Downloader(mirror=mirror).download_from_bos(
        described(tmp_path, address(server)), local
    )
    assert names(local) == WHOLE
    assert "/big.bin" not in {path for path, _ in server.asked}


def test_a_mirror_with_another_file_is_passed_over(
    remote: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "c.txt").write_bytes(b"an old one")
    (mirror / "big.bin").write_bytes(bytes(5000))
    local, where = tmp_path / "local", described(tmp_path, str(remote))
    load = fleetx.utils.Downloader(mirror=mirror).download_from_bos
    load(where, local)
    assert names(local) == WHOLE
    assert (local / "c.txt").read_bytes() == b"c"
    assert (local / "big.bin").read_bytes() == (remote / "big.bin").read_bytes()
    assert f"c.txt of {mirror} has the md5 sum" in caplog.text
    assert f"It is fetched from {remote}" in caplog.text
    for place in (local, remote):
        (place / "c.txt").write_bytes(b"wrong everywhere")
    with pytest.raises(ChecksumError, match=f"of {remote} has the md5 sum"):
        load(where, local)


def test_what_was_checked_is_not_read_again(
    remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[str]()

    def counted(path: Path) -> str:
        read.append(path.name)
        return hashlib.md5(path.read_bytes()).hexdigest()

    monkeypatch.setattr(checked_files, "md5_of", counted)
    unpacked = list[str]()
    extract = tarfile.TarFile.extractall

    def watched(archive: Any, *args: Any, **options: Any) -> None:
        unpacked.append(Path(archive.name).name)
        extract(archive, *args, **options)

    monkeypatch.setattr(tarfile.TarFile, "extractall", watched)
    local, where = tmp_path / "local", described(tmp_path, str(remote))
    load = fleetx.utils.Downloader().download_from_bos
    load(where, local)
    assert sorted(read) == ["big.bin.part", "c.txt.part", "sub.tgz.part"]
    load(where, local)
    assert (len(read), unpacked) == (3, ["sub.tgz"])
    (local / "c.txt").write_bytes(b"x")  # as long as the right one
    load(where, local)
    assert read[3:] == ["c.txt", "c.txt.part"]
    assert (local / "c.txt").read_bytes() == b"c"
    (local / "big.bin").touch()
    load(where, local)
    assert read[5:] == ["big.bin"], "it was touched, and is right"
    (local / ".download.json").write_text("[")
    load(where, local)
    assert sorted(read[6:]) == ["big.bin", "c.txt", "sub.tgz"]


def test_an_archive_that_is_none_is_a_sentence(remote: Path, tmp_path: Path) -> None:
    (remote / "sub.tgz").write_bytes(b"no archive")
    (remote / "filelist.txt").write_text(f"sub.tgz {hashlib.md5(b'no archive').hexdigest()}\n")
    with pytest.raises(ValueError, match=r"sub\.tgz' is no archive .* its sum is the ann"):
        fleetx.utils.Downloader().download_from_bos(described(tmp_path, str(remote)), tmp_path)


@pytest.mark.parametrize("place", ["/data.yaml", "file:///data.yaml", "data.yaml", "a/data.yaml"])
def test_a_path_begins_where_it_says(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opened = list[Path]()

    def watched(self: Path, *args: Any) -> Any:
        opened.append(self)
        raise FileNotFoundError(2, "none")

    monkeypatch.setattr(Path, "open", watched)
    with pytest.raises(SourceError, match="cannot be read"):
        fleetx.utils.Downloader().download_from_bos(place)
    assert opened == [Path(place.removeprefix("file://"))]


def test_parts_are_dealt(remote: Path, tmp_path: Path) -> None:
    where = described(tmp_path, remote.as_uri())
    for part in range(2):
        fleetx.utils.Downloader().download_from_bos(
            where, tmp_path / str(part), shard_num=2, shard_id=part
        )
    assert "big.bin" in names(tmp_path / "0")
    assert "sub.tgz" not in names(tmp_path / "0")
    assert "sub.tgz" in names(tmp_path / "1")
    with pytest.raises(ValueError, match="from 0 to 1"):
        fleetx.utils.Downloader().download_from_bos(where, tmp_path, shard_num=2, shard_id=2)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("path: here\n", r"has no key bos_path \(it has: path\)"),
        ("- a\n", "has no key bos_path"),
        ("{", "is no YAML"),
    ],
)
def test_a_description_without_the_key_is_a_clear_error(
    content: str, match: str, tmp_path: Path
) -> None:
    path = tmp_path / "data.yaml"
    path.write_text(content)
    with pytest.raises(ValueError, match=match):
        fleetx.utils.Downloader().download_from_bos(str(path), tmp_path / "local")
    assert not (tmp_path / "local").exists()


def test_other_nonsense_is_a_clear_error(remote: Path, tmp_path: Path) -> None:
    load = fleetx.utils.Downloader().download_from_bos
    with pytest.raises(ValueError, match=r"needs a \.yaml"):
        load("list.txt", tmp_path / "local")
    with pytest.raises(SourceError, match="cannot be read"):
        load(str(tmp_path / "none.yaml"), tmp_path / "local")
    with pytest.raises(ValueError, match="files come from http"):
        load(described(tmp_path, "hdfs://there"), tmp_path / "local")
    (remote / "filelist.txt").write_text("../evil.txt 0123456789abcdef0123456789abcdef\n")
    with pytest.raises(ValueError, match=r"line 1: .* is not 'name md5'"):
        load(described(tmp_path, str(remote)), tmp_path / "local")
    assert not (tmp_path / "local").exists()


def fetched(where: str, local: str) -> str:
    return fleetx.utils.Downloader().download_from_bos(where, local)


def test_workers_of_a_machine_download_once(server: Any, tmp_path: Path) -> None:
    where, local = described(tmp_path, address(server)), tmp_path / "local"
    assert world(2).run(fetched, where, str(local)) == [str(local)] * 2
    assert names(local) == WHOLE
    assert [path for path, _ in server.asked].count("/big.bin") == 1


def fetched_part(where: str, local: str) -> set[str] | str:
    """What is there when this worker goes on."""
    roles.start(is_collective=True)
    if roles.worker_index() == 1:
        time.sleep(0.5)  # the other one is done long before
    load = fleetx.utils.Downloader().download_from_bos
    try:
        load(where, local, shard_num=2, shard_id=roles.worker_index())
    except (SourceError, ChecksumError) as error:
        return str(error)
    return names(Path(local))


def test_workers_wait_for_the_parts_of_the_others(remote: Path, tmp_path: Path) -> None:
    where, local = described(tmp_path, str(remote)), tmp_path / "local"
    assert world(2).run(fetched_part, where, str(local)) == [WHOLE, WHOLE]
    (remote / "sub.tgz").write_bytes(b"damaged")
    found = world(2).run(fetched_part, where, str(tmp_path / "other"))
    assert "worker 1 could not bring its part of the files: sub.tgz of" in found[0]
    assert found[1].startswith("sub.tgz of")


def progress_of_the_second(where: str, local: str) -> str:
    import contextlib
    import io

    roles.start(is_collective=True)
    if roles.worker_index() == 0:
        return ""
    with contextlib.redirect_stderr(io.StringIO()) as said:
        fleetx.utils.Downloader().download_from_bos(where, local)
    return said.getvalue()


def test_whoever_downloads_shows_how_far_it_is(remote: Path, tmp_path: Path) -> None:
    where = described(tmp_path, str(remote))
    _, said = world(2).run(progress_of_the_second, where, str(tmp_path / "local"))
    assert "download: " in said
