"""The Downloader fetches what is listed, checks it, goes on after a break, and leaves no ruins."""

import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fleetx
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


WHOLE = {"big.bin", "sub.tgz", "c.txt", "inside/hello.txt", ".sub.tgz.unpacked", ".download.lock"}


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
    with pytest.raises(ChecksumError, match=r"c\.txt has the md5 sum .* was announced"):
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
