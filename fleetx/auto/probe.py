"""What this machine can do, measured: arithmetic, memory, the start of kernels, and links."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from fleetx.auto.cluster import Cluster, Device, Link
from fleetx.comm.pairwise import all_gather, reduce_scatter
from fleetx.graph.float8_devices import without_float8
from fleetx.torch_internals import scaled_mm

LEAST = 0.15
"""Seconds for which something is repeated at least."""
_ROUNDS = 50
"""Of which the quickest counts: short ones, so that some of them are disturbed by nobody."""
_TOGETHER, _EXCHANGES = 4, 12
"""Calls in a round of ranks that exchange, and rounds."""
_TURNS = 3
"""How often all workers compute, and the first one alone."""
CHAIN = 50
"""Calls one after the other, by which the host is measured."""
SEGMENTS = 8
"""Modules that are replayed, each by itself or all together."""
SMALL, LARGE = 8, 1 << 24
"""Bytes of the messages by which links are measured."""


def probe(device: torch.device, *, workers_here: int = 1, nodes: int = 1) -> Cluster:
    """Measure what one worker has of this machine, all of its workers at the same time.

    Where several workers have met (``torch.distributed``), all of them call it, and links are
    measured between them.

    Args:
        device: with which this worker computes.
        workers_here: workers of this machine.
        nodes: machines.
    """
    found = _device(device, workers_here)
    link = Link(gigabytes_per_second=1e4, microseconds=0)
    if _is_met():
        link = _with_collectives(_link(device), device)
    return Cluster(
        nodes=nodes,
        devices_per_node=workers_here,
        device=found,
        inside=link,
        outside=link,
        name=f"{socket.gethostname()}: {_name(device)}",
    )


def _is_met() -> bool:
    return dist.is_initialized() and dist.get_world_size() > 1


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def _device(device: torch.device, workers_here: int) -> Device:
    rates = {}
    for bits, dtype in ((32, torch.float32), (16, torch.bfloat16)):
        rates[f"product {bits}"] = _product(device, dtype)
        rates[f"convolution {bits}"] = _convolution(device, dtype)
        rates[f"attention {bits}"] = _attention(device, dtype)
    if not without_float8(device):
        rates["product 8"] = _float8_product(device)
    turns = turns_of_a_core(device)
    host: dict[str, Any] = {name: turns * value for name, value in _host(device).items()}
    return Device(
        **host,
        kind=device.type,
        threads=torch.get_num_threads() if device.type == "cpu" else 0,
        crowding=_crowding(device) * turns,
        memory_gigabytes=_memory(device, workers_here),
        teraflops={name: rate / turns / 1e12 for name, rate in rates.items()},
        memory_gigabytes_per_second=_bandwidth(device) / turns / 1e9,
        host_gigabytes_per_second=_to_host(device) / 1e9,
    )


def turns_of_a_core(device: torch.device) -> float:
    """How many threads of workers take turns on a core, at least 1; all workers ask.

    It is counted: the quickest of short rounds, which is the machine without its other users, is
    without the other workers, too.
    """
    if device.type != "cpu" or not _is_met():
        return 1.0
    own = socket.gethostname(), _cores(), torch.get_num_threads()
    told: list[tuple[str, list[int], int]] = [own] * dist.get_world_size()
    dist.all_gather_object(told, own)
    here = [one for one in told if one[0] == own[0]]
    cores = {core for _, some, _ in here for core in some}
    return max(1.0, sum(threads for _, _, threads in here) / len(cores))


def _cores() -> list[int]:
    """Those on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _product(device: torch.device, dtype: torch.dtype) -> float:
    n = 4096 if device.type == "cuda" else 512
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    return 2 * n**3 / _seconds(lambda: a @ b, device)


def _float8_product(device: torch.device) -> float:
    n, scale = 4096, torch.ones((), device=device)
    a, b = (torch.randn(n, n, device=device).to(torch.float8_e4m3fn) for _ in range(2))

    def call() -> object:
        return scaled_mm(a, b.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)

    return 2 * n**3 / _seconds(call, device)


def _crowding(device: torch.device) -> float:
    """How much longer a step takes while all workers compute than while the first one does.

    What is usual counts, not the quickest: in some moment of each turn the others rest, and cores
    that are threads of one are as fast then as if they were more.
    """
    if device.type != "cpu" or not _is_met():
        return 1.0
    step = _small_step()
    alone, together = [], []
    for _ in range(_TURNS):
        dist.barrier()
        slowest = torch.tensor([_usual(step)])
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        together.append(float(slowest))
        first = torch.zeros(1)
        if dist.get_rank() == 0:
            first += _usual(step)
        dist.broadcast(first, src=0)  # until it is there, the others wait
        alone.append(float(first))
    return max(1.0, median(together) / median(alone))


def _small_step() -> Callable[[], object]:
    """Products, memory and Python, as in the forward and backward of most models."""
    blocks = nn.Sequential(*(_Block(256) for _ in range(2)))
    x = torch.randn(256, 256)
    ones, inputs = torch.ones_like(x), [*blocks.parameters()]
    return lambda: torch.autograd.grad(blocks(x), inputs, ones)


def _usual(call: Callable[[], object]) -> float:
    """Seconds of a call in the middle of all that there is time for."""
    until, found = time.perf_counter() + LEAST, list[float]()
    while time.perf_counter() < until or not found:
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return median(found)


def _convolution(device: torch.device, dtype: torch.dtype) -> float:
    count, size = (64, 56) if device.type == "cuda" else (4, 28)
    images = torch.randn(count, 128, size, size, device=device).to(dtype)
    weight = torch.randn(128, 128, 3, 3, device=device).to(dtype)
    operations = 2 * count * 128 * 128 * 9 * size * size
    return operations / _seconds(lambda: functional.conv2d(images, weight, padding=1), device)


def _attention(device: torch.device, dtype: torch.dtype) -> float:
    batch, heads, length, width = (8, 16, 1024, 64) if device.type == "cuda" else (2, 4, 256, 64)
    q, k, v = (torch.randn(batch, heads, length, width, device=device).to(dtype) for _ in range(3))
    operations = 4 * batch * heads * length * length * width
    call = functional.scaled_dot_product_attention
    return operations / _seconds(lambda: call(q, k, v), device)


def _bandwidth(device: torch.device) -> float:
    a = torch.zeros(1 << (28 if device.type == "cuda" else 23), device=device)
    b, c = torch.zeros_like(a), torch.zeros_like(a)
    return 3 * a.numel() * a.itemsize / _seconds(lambda: torch.add(a, b, out=c), device)


def _host(device: torch.device) -> dict[str, float]:
    """Microseconds of the host, on tensors so small that a device has nothing to do."""
    start = _start(device)
    tensor, segment = _replay(device)
    found = {
        "kernel": start,
        "gradient": _gradient(device, start),
        "module": max(0.0, _module(device, start)),
        "replay": tensor,
        "segment": segment,
        "dispatch": max(0.0, _dispatch(device)),
    }
    return {f"microseconds_per_{name}": seconds * 1e6 for name, seconds in found.items()}


def _chain(value: Tensor) -> Tensor:
    for _ in range(CHAIN):
        value = value * 2
    return value


def _start(device: torch.device) -> float:
    """Seconds for one operator of a forward, autograd's part included."""
    a = torch.zeros(16, device=device, requires_grad=True)
    return _seconds(lambda: _chain(a), device) / CHAIN


def _gradient(device: torch.device, start: float) -> float:
    """Seconds for one operator of a backward."""
    a = torch.zeros(16, device=device, requires_grad=True)
    ones = torch.ones_like(a)
    both = _seconds(lambda: torch.autograd.grad(_chain(a), a, ones), device) / CHAIN
    return max(both - start, start / 2)


class _Block(nn.Module):
    """Layers such as most models have, in a module of their own."""

    OPERATORS, CALLS = 5, 4

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.bend = nn.GELU()

    @override
    def forward(self, x: Tensor) -> Tensor:
        bent: Tensor = self.bend(self.norm(self.first(x)))
        return x + bent


def _module(device: torch.device, start: float) -> float:
    """Seconds that Python takes for a call of a layer, besides its operators."""
    blocks = nn.Sequential(*(_Block() for _ in range(CHAIN))).to(device)
    x = torch.zeros(2, 4, device=device)
    each = _seconds(lambda: blocks(x), device) / CHAIN
    return (each - _Block.OPERATORS * start) / _Block.CALLS


def _replay(device: torch.device) -> tuple[float, float]:
    """Seconds that checkpoints take for a tensor, and for a module, besides what runs once more."""
    blocks = nn.Sequential(*(_Block() for _ in range(SEGMENTS))).to(device)
    x = torch.zeros(2, 4, device=device, requires_grad=True)
    ones, inputs = torch.ones_like(x), [x, *blocks.parameters()]

    def replayed(module: nn.Module) -> Callable[[Tensor], Tensor]:
        return partial(checkpoint, module, use_reentrant=False)

    def seconds(*modules: Callable[[Tensor], Tensor]) -> float:
        def step() -> object:
            value = x
            for module in modules:
                value = module(value)
            return torch.autograd.grad(value, inputs, ones)

        return _seconds(step, device)

    saved: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        saved.append(tensor.untyped_storage().data_ptr())
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        blocks(x)
    own = {parameter.untyped_storage().data_ptr() for parameter in blocks.parameters()}
    tensors = sum(where not in own for where in saved)
    again = seconds(blocks) + _seconds(lambda: blocks(x), device)
    one, many = seconds(replayed(blocks)) - again, seconds(*map(replayed, blocks)) - again
    segment = max(0.0, (many - one) / (SEGMENTS - 1))
    return max(0.0, one - segment) / tensors, segment


def _dispatch(device: torch.device) -> float:
    """Seconds that an operator takes longer on a DTensor; all workers have a part of it."""
    if not _is_met():
        return 0.0
    mesh = DeviceMesh(device.type, range(dist.get_world_size()))
    plain = torch.zeros(16, device=device)
    spread = DTensor.from_local(plain, mesh, [Shard(0)], run_check=False)
    longer = _seconds(lambda: _chain(spread), device) - _seconds(lambda: _chain(plain), device)
    return longer / CHAIN


def _to_host(device: torch.device) -> float:
    if device.type == "cpu":
        return 0.0
    there = torch.zeros(1 << 26, device=device)
    here = torch.empty(there.shape, pin_memory=True)
    return there.numel() * there.itemsize / _seconds(lambda: here.copy_(there), device)


def _memory(device: torch.device, workers_here: int) -> float:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1] / 1e9
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return whole / workers_here / 1e9


def _link(device: torch.device) -> Link:
    ranks = dist.get_world_size()
    small, large = (torch.zeros(n // 4, device=device) for n in (SMALL, LARGE))
    latency = _seconds(lambda: dist.all_reduce(small), device, together=True)
    cores = time.process_time()
    began = time.perf_counter()
    seconds = _seconds(lambda: dist.all_reduce(large), device, together=True)
    busy = (time.process_time() - cores) / (time.perf_counter() - began)
    sent = 2 * (ranks - 1) / ranks * LARGE
    # A disturbed machine may take longer for the small message than for the large one: a
    # difference near zero would be a link that is free.
    latency = min(latency, seconds / 2)
    return Link(
        gigabytes_per_second=sent / (seconds - latency) / 1e9,
        microseconds=latency / (2 * (ranks - 1)) * 1e6,
        busy=min(1.0, busy) if device.type == "cpu" else 0.0,
    )


def _with_collectives(link: Link, device: torch.device) -> Link:
    """The link with what other collectives reach on it, as strategies call them."""
    ranks, group = dist.get_world_size(), dist.group.WORLD
    assert group is not None
    rates, latencies = {}, {}

    def gather(part: Tensor, whole: Tensor) -> None:
        all_gather(whole, part, group).wait()

    def scatter(part: Tensor, whole: Tensor) -> None:
        reduce_scatter(part, whole, group)

    for name, call in (("all-gather", gather), ("reduce-scatter", scatter)):
        took = []
        for size in (SMALL, LARGE):
            part = torch.zeros(size // 4 // ranks or 1, device=device)
            whole = torch.zeros(part.numel() * ranks, device=device)
            took.append(_seconds(partial(call, part, whole), device, together=True))
        small = min(took[0], took[1] / 2)
        sent = (ranks - 1) / ranks * LARGE
        rates[name] = sent / (took[1] - small) / 1e9
        latencies[name] = small / (ranks - 1) * 1e6
    return replace(link, rates=rates, latencies=latencies)


def _seconds(call: Callable[[], object], device: torch.device, *, together: bool = False) -> float:
    """Of one call, the least of several rounds; what others do at the same time only adds.

    Ranks that exchange wait for the one that is late, in a step as here: what is usual counts.
    """
    for _ in range(3):
        call()
    if together:
        return median(_round(call, device, 0.0, _TOGETHER) for _ in range(_EXCHANGES))
    until, found = time.perf_counter() + LEAST, [_round(call, device, LEAST / _ROUNDS, 1)]
    while time.perf_counter() < until:
        found.append(_round(call, device, LEAST / _ROUNDS, 1))
    return min(found)


def _round(call: Callable[[], object], device: torch.device, least: float, count: int) -> float:
    """Seconds of a call; ranks that exchange make as many as each other, however long they take."""
    while True:
        with _clock(device) as clock:
            for _ in range(count):
                call()
        if clock[0] >= least:
            return clock[0] / count
        count *= 2


@contextmanager
def _clock(device: torch.device) -> Iterator[list[float]]:
    found: list[float] = []
    _settle(device)
    began = time.perf_counter()
    yield found
    _settle(device)
    found.append(time.perf_counter() - began)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
