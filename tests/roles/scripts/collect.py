"""Start from whatever launched this script, try every collective, say who we are."""

import json
import sys

import numpy as np
import pytest
import torch

import fleetx.roles as fleet


def main() -> None:
    me = fleet.start(is_collective=True)
    assert fleet.start(is_collective=True) is me
    rank, size = fleet.rank(), fleet.worker_num()
    reduce_all(rank, size)
    gather_all(rank, size)
    refuse_different_calls(rank)
    fleet.barrier_worker()
    fleet.util.barrier()
    fleet.util.print_on_rank("printed once", size - 1)
    assert fleet.mesh({"dp": size, "tp": 1}).shape == (size, 1)
    report = {
        "source": me.source,
        "index": rank,
        "size": size,
        "local": [me.local_rank, me.local_size, me.node_num],
        "endpoints": fleet.worker_endpoints(),
        "shard": fleet.util.get_file_shard(["a", "b", "c"]),
    }
    sys.stdout.write("report " + json.dumps(report) + "\n")


def reduce_all(rank: int, size: int) -> None:
    util = fleet.util
    big = 2**53 + 1
    total = util.all_reduce(big)
    assert (total.shape, total.dtype, int(total)) == ((), np.int64, big * size)
    assert util.all_reduce(rank, "max") == size - 1
    assert util.all_reduce(rank, "min") == 0
    halves = util.all_reduce(np.full((2, 3), 0.1))
    assert (halves.dtype, halves.shape) == (np.float64, (2, 3))
    assert np.array_equal(halves, sum(np.full((2, 3), 0.1) for _ in range(size)))
    for dtype in (np.uint64, np.int16, np.float16, np.complex64, np.float32, np.uint8):
        array = np.asarray([1, rank], dtype)
        got = util.all_reduce(array)
        assert got.dtype == dtype, dtype
        assert got[0] == size, dtype
        assert array[0] == 1, "the caller's array must not change"
    top = util.all_reduce(np.asarray([2**64 - 1 - rank], np.uint64), "max")
    assert int(top[0]) == 2**64 - 1
    assert util.all_reduce(torch.ones(2, dtype=torch.bfloat16)).tolist() == [size, size]
    assert util.all_reduce([True, False]).tolist() == [size, 0]
    assert util.all_reduce(np.zeros((0, 2))).shape == (0, 2)
    with pytest.raises(ValueError, match=r"worker 1: sum of float64 with shape \(2,\)"):
        util.all_reduce(np.zeros(1 + rank))


def gather_all(rank: int, size: int) -> None:
    gather = fleet.util.all_gather
    assert gather(rank) == list(range(size))
    assert gather("é" * rank) == ["é" * i for i in range(size)]
    assert gather({"loss": [0.5, rank]}) == [{"loss": [0.5, i]} for i in range(size)]
    arrays = gather(torch.full((rank, 2), rank))
    assert [array.shape for array in arrays] == [(i, 2) for i in range(size)]


def refuse_different_calls(rank: int) -> None:
    with pytest.raises(RuntimeError, match=r"worker 1 called fleet.barrier_worker\(\)"):
        fleet.barrier_worker() if rank else fleet.util.barrier()


main()
