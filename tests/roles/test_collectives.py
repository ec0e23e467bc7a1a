"""`fleet.util` in one process: what goes in, what comes out, what is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fleetx.roles as fleet
from fleetx.roles.worker_util import shard


@pytest.fixture(autouse=True)
def started(fresh: None) -> None:
    fleet.start(is_collective=True)


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (3, np.int64, ()),
        (0.5, np.float64, ()),
        ([1, 2], np.int64, (2,)),
        (np.float32(1), np.float32, ()),
        (torch.ones(2, 3, dtype=torch.float16), np.float16, (2, 3)),
        (True, np.int64, ()),
    ],
)
def test_shape_and_type_stay(value: Any, dtype: Any, shape: tuple[int, ...]) -> None:
    got = fleet.util.all_reduce(value)
    assert isinstance(got, np.ndarray)
    assert (got.dtype, got.shape) == (dtype, shape)


def test_the_result_is_not_the_callers_array() -> None:
    array = np.ones(2)
    fleet.util.all_reduce(array)[0] = 7
    assert array[0] == 1


@pytest.mark.parametrize("mode", ["mean", "SUM", ""])
def test_unknown_mode(mode: str) -> None:
    with pytest.raises(ValueError, match="use one of sum, min, max"):
        fleet.util.all_reduce(1, mode)


@pytest.mark.parametrize(
    ("comm_world", "complaint"),
    [
        ("server", "servers answer requests and take part in no collective"),
        ("all", "servers answer requests"),
        ("heter", "comm_world='heter' is not known; use 'worker'"),
    ],
)
def test_other_worlds(comm_world: str, complaint: str) -> None:
    for call in (
        lambda: fleet.util.all_reduce(1, comm_world=comm_world),
        lambda: fleet.util.all_gather(1, comm_world=comm_world),
        lambda: fleet.util.barrier(comm_world),
    ):
        with pytest.raises(ValueError, match=complaint):
            call()


def test_gather_alone() -> None:
    assert fleet.util.all_gather({"a": [1]}) == [{"a": [1]}]


def test_print_on_rank(capsys: pytest.CaptureFixture[str]) -> None:
    fleet.util.print_on_rank("hello", 0)
    assert capsys.readouterr().out == "hello\n"
    with pytest.raises(ValueError, match="rank_id=1 is no worker; pass a number from 0 to 0"):
        fleet.util.print_on_rank("hello", 1)


@pytest.mark.parametrize(
    ("files", "count", "shards"),
    [
        ("abcde", 2, ["abc", "de"]),
        ("ab", 3, ["a", "b", ""]),
        ("", 2, ["", ""]),
        ("abcdefg", 3, ["abc", "de", "fg"]),
    ],
)
def test_shards(files: str, count: int, shards: list[str]) -> None:
    assert [shard(list(files), i, count) for i in range(count)] == [list(part) for part in shards]


@given(st.lists(st.sampled_from("abc")), st.integers(1, 20))
def test_shards_are_even_and_lose_nothing(files: list[str], count: int) -> None:
    shards = [shard(files, index, count) for index in range(count)]
    assert [file for part in shards for file in part] == files
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.mark.parametrize("files", ["abc", ("a",), None])
def test_files_must_be_a_list(files: Any) -> None:
    with pytest.raises(TypeError, match="is not a list"):
        fleet.util.get_file_shard(files)
