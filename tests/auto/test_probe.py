"""A machine is measured: what comes out can be used, alone and between two workers."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fleetx.auto import probe as probing
from fleetx.auto.cluster import Device, Link, read
from fleetx.auto.probe import probe
from fleetx.testing import world

CPU = torch.device("cpu")
DEVICE = Device(
    kind="cpu",
    memory_gigabytes=1,
    teraflops={"product 32": 0.1},
    memory_gigabytes_per_second=10,
    microseconds_per_kernel=5,
)


@contextmanager
def quick() -> Iterator[None]:
    """With few rounds and small messages, for it is not about numbers."""
    before = probing.LEAST, probing.LARGE, probing.CHAIN
    probing.LEAST, probing.LARGE, probing.CHAIN = 0.0, 1 << 18, 5
    try:
        yield
    finally:
        probing.LEAST, probing.LARGE, probing.CHAIN = before


@pytest.mark.rare
def test_what_is_measured_is_a_legal_cluster() -> None:
    with quick():
        found = probe(CPU, workers_here=2, nodes=3)
    assert read(asdict(found), "what was measured") == found, "no number is absurd"
    assert found.workers == 6
    assert found.name == f"{socket.gethostname()}: CPU"
    assert found.device.rate("product", 32) > 0
    assert found.device.host_gigabytes_per_second == 0, "a CPU is the host"
    assert found.inside.seconds(1e9, 1) == pytest.approx(1e-4), "nobody else is there"


def test_the_host_is_measured_on_tensors_that_take_no_time() -> None:
    with quick():
        found: dict[str, Any] = {**probing._host(CPU)}
    device = replace(DEVICE, **found)
    assert device.microseconds_per_kernel > 0
    assert device.microseconds_per_gradient >= device.microseconds_per_kernel / 2
    assert device.microseconds_per_module >= 0
    assert device.microseconds_per_replay >= 0


def links() -> tuple[Link, Link]:
    """Between this worker and the other; what it computes with is not measured."""
    before, probing._device = probing._device, lambda device, workers_here: DEVICE
    try:
        with quick():
            found = probe(CPU, workers_here=2)
    finally:
        probing._device = before
    return found.inside, found.outside


def test_two_workers_measure_the_link_between_them() -> None:
    for inside, outside in world(2).run(links):
        assert inside == outside, "one machine alone"
        assert 0 < inside.gigabytes_per_second < 1e3
        assert inside.microseconds > 0
        assert 0 <= inside.busy <= 1


def test_a_small_message_that_was_disturbed_makes_no_free_link() -> None:
    found = world(2).run(disturbed)
    assert [link.gigabytes_per_second for link in found] == [probing.LARGE / 1e9] * 2
    assert [link.microseconds for link in found] == [0.5e6] * 2, "half of the large one, each way"


def disturbed() -> Link:
    """Large messages take two seconds, small ones five."""
    took = iter((5.0, 2.0))
    before, probing._seconds = probing._seconds, lambda call, device, *, together=False: next(took)
    try:
        return probing._link(CPU)
    finally:
        probing._seconds = before


def crowding() -> float:
    with quick():
        return probing._crowding(CPU)


def test_workers_agree_on_how_much_they_slow_each_other_down() -> None:
    first, second = world(2).run(crowding)
    assert first == second >= 1


def test_a_worker_alone_is_slowed_down_by_nobody() -> None:
    assert crowding() == 1


def turns(cores: list[list[int]], threads: int) -> float:
    """On a machine where each worker may run on some cores."""
    before, probing._cores = probing._cores, lambda: cores[dist.get_rank()]
    known = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return probing.turns_of_a_core(CPU)
    finally:
        probing._cores = before
        torch.set_num_threads(known)


@pytest.mark.parametrize(
    ("cores", "threads", "found"),
    [
        ([[0, 1], [0, 1]], 1, 1.0),
        ([[0], [1]], 1, 1.0),
        ([[0], [0]], 1, 2.0),
        ([[0, 1], [0, 1]], 3, 3.0),
        ([[0, 1, 2, 3], [0, 1, 2, 3]], 1, 1.0),
    ],
)
def test_workers_take_turns_where_they_have_more_threads_than_cores(
    cores: list[list[int]], threads: int, found: float
) -> None:
    assert world(2).run(turns, cores, threads) == [found, found]


def test_a_worker_alone_takes_no_turns() -> None:
    assert probing.turns_of_a_core(CPU) == 1
