"""Servers and workers for the cores at hand."""

from pathlib import Path

import pytest

from fleetx.launch import server_numbers
from fleetx.launch.__main__ import main
from fleetx.launch.arguments import AUTO, Arguments
from fleetx.launch.server_numbers import CORES_OF_A_WORKER, complete, numbers


@pytest.mark.parametrize(
    ("cores", "chosen"), [(1, (1, 1)), (2, (1, 1)), (4, (1, 2)), (8, (2, 4)), (16, (4, 8))]
)
def test_numbers_follow_from_the_cores(cores: int, chosen: tuple[int, int]) -> None:
    assert numbers(AUTO, None, cores) == numbers(AUTO, AUTO, cores) == chosen


@pytest.mark.parametrize("given", range(1, 20))
@pytest.mark.parametrize("cores", [1, 2, 7, 16, 100])
def test_a_number_that_was_given_stays(given: int, cores: int) -> None:
    assert numbers(given, AUTO, cores)[0] == given
    assert numbers(AUTO, given, cores)[1] == given


@pytest.mark.parametrize("cores", range(3, 200))
def test_cores_are_enough_and_none_is_left_for_nothing(cores: int) -> None:
    servers, workers = numbers(AUTO, None, cores)
    taken = servers + CORES_OF_A_WORKER * workers
    assert cores - 3 < taken <= cores
    assert numbers(AUTO, None, cores + 4) == (servers + 1, workers + 2)


def test_flags_without_auto_are_left_alone() -> None:
    for flags in (
        Arguments(server_num=3, worker_num=5),
        Arguments(server_num=3),
        Arguments(worker_num=3),
        Arguments(),
        Arguments(server_num=AUTO, servers="a:1", workers="b"),
    ):
        assert complete(flags) == (flags, ())


def test_what_was_chosen_is_said_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server_numbers, "cores", lambda: 16)
    script = tmp_path / "train.py"
    script.touch()
    assert main(["--server_num", "auto", "--dry_run", str(script)]) == 0
    out = capsys.readouterr().out
    said = [line for line in out.splitlines() if "for 16 cores" in line]
    assert said == [
        "fleetrun: 4 servers and 8 workers for 16 cores: a server for 2 workers, which take 1.5 "
        "cores each; --server_num and --worker_num set other numbers"
    ]
    assert "server 3:" in out
    assert "rank 7:" in out
    assert "rank 8:" not in out


def test_a_container_has_the_cores_that_it_was_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(server_numbers, "QUOTA", tmp_path / "cpu.max")
    free = server_numbers.cores()
    assert free >= 1
    for text, found in (("max 100000", free), ("100000 100000", 1), ("20000 100000", 1)):
        (tmp_path / "cpu.max").write_text(f"{text}\n")
        assert server_numbers.cores() == found
