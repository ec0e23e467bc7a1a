"""Files that grow, are thinned out and replaced under whoever follows them."""

import json
import os
from pathlib import Path

from fleetx.launch.watch_file import WatchFile, name_of
from fleetx.watch.reading import Folder


def kinds(folder: Folder) -> tuple[list[str], bool]:
    lines, anew = folder.read()
    return [line["kind"] for line in lines], anew


def test_a_folder_is_followed_as_it_grows(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert kinds(folder) == ([], False)
    file = WatchFile(tmp_path / name_of(0))
    file.write("job", attempt=0)
    assert kinds(folder) == (["job"], False)
    assert kinds(folder) == ([], False)
    file.write("said", text="a line\nwith a break")
    other = WatchFile(tmp_path / name_of(1))
    other.write("job", attempt=0)
    assert kinds(folder) == (["said", "job"], False)


def test_half_a_line_waits_and_foreign_lines_are_left_out(tmp_path: Path) -> None:
    folder, path = Folder(tmp_path), tmp_path / name_of(0)
    path.write_bytes(b'{"kind": "job", "at": 1')
    assert kinds(folder) == ([], False)
    with path.open("ab") as file:
        file.write(b'}\nnot json\n[1, 2]\n{"kind": "x"}\n{"kind": "end", "at": 2}\n')
    assert kinds(folder) == (["job", "end"], False)


def test_a_file_that_is_full_is_thinned_out_and_still_spans_the_run(tmp_path: Path) -> None:
    folder, path = Folder(tmp_path), tmp_path / name_of(0)
    file = WatchFile(path, limit=20_000)
    file.write("job", attempt=0)
    taken: list[str] = []
    anew = False
    for number in range(1000):
        file.write("ranks", number=number, filler="x" * 50)
        if number % 100 == 0:
            found, again = kinds(folder)
            taken, anew = (found if again else taken + found), anew or again
    assert path.stat().st_size <= 20_000
    assert anew, "whoever followed must notice that the file is another one"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    numbers = [line["number"] for line in lines if line["kind"] == "ranks"]
    assert lines[0]["kind"] == "job"
    assert numbers == sorted(numbers)
    assert numbers[0] == 0
    assert numbers[-5:] == [995, 996, 997, 998, 999], "the newest ones are all there"


def test_a_file_that_goes_is_forgotten(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for node in (0, 1):
        WatchFile(tmp_path / name_of(node)).write("job", node=node)
    assert len(folder.read()[0]) == 2
    os.unlink(tmp_path / name_of(1))
    lines, anew = folder.read()
    assert anew
    assert [line["node"] for line in lines] == [0]


def test_a_folder_that_takes_nothing_does_not_end_a_job(tmp_path: Path) -> None:
    file = WatchFile(tmp_path / "missing" / name_of(0))
    file.write("job", attempt=0)
    file.close()
    assert not (tmp_path / "missing").exists()


def test_last_lines_are_as_a_terminal_shows_them(tmp_path: Path) -> None:
    (tmp_path / "workerlog.0").write_text("a\n10%\r50%\r100%\n\x1b[31mred\x1b[0m\n")
    (tmp_path / "workerlog.10").touch()
    (tmp_path / "workerlog.2").touch()
    (tmp_path / "serverlog.0").touch()
    (tmp_path / "secret.txt").write_text("x")
    folder = Folder(tmp_path)
    assert folder.last_lines("workerlog.0") == ["a", "100%", "red", ""]
    assert folder.logs() == ["workerlog.0", "workerlog.2", "workerlog.10", "serverlog.0"]
    for name in ("secret.txt", "../workerlog.0", "workerlog.0/../secret.txt", "workerlog.7", ""):
        assert folder.last_lines(name) == []
