"""What compiled kernels take follows from what a card took for four of them, here a made-up one."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fleetx.auto import fused
from fleetx.auto.cluster import Device
from fleetx.auto.fused import fused_kernels
from fleetx.plan.work import FusedKernels

CPU = torch.device("cpu")
WORKER = Device(
    kind="cuda",
    memory_gigabytes=1,
    teraflops={"product 32": 1},
    memory_gigabytes_per_second=100,
    microseconds_per_kernel=4,
    microseconds_per_gradient=6,
)
START, SUM_START = 2e-6, 10e-6
"""Seconds that a kernel takes without work, and one that adds up over rows."""
TIMES = {"_normalised": 1.0, "_statistics": 1.9, "_summed": 1.2, "_along_rows": 1.7}
"""Kernel -> how much longer than a copy it takes for a byte."""
POOLED = 4.4
"""The same for gradients that are collected from the windows of a pooling."""
READS_AND_WRITES = {"_normalised": 2, "_statistics": 1, "_summed": 1, "_along_rows": 2}


def card(call: Callable[[], object]) -> float:
    """Seconds as a card would take that starts, and then moves its bytes."""
    assert isinstance(call, partial)
    call()  # the kernel is right for these tensors
    if call.func is torch.autograd.grad:
        images = call.args[1]
        return START + POOLED * fused.POOLED * images.numel() * images.itemsize / 100e9
    name, (images, _) = call.func.__name__, call.args
    moved = READS_AND_WRITES[name] * images.numel() * images.itemsize
    start = SUM_START if READS_AND_WRITES[name] == 1 else START
    return start + TIMES[name] * moved / 100e9


def uncompiled(function: Any, **options: Any) -> Any:
    assert options == {"dynamic": False}
    return function


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "LARGE", (4, 8, 6, 6))
    monkeypatch.setattr(fused, "SMALL", (2, 8, 3, 3))
    monkeypatch.setattr(fused, "ROW", 8)
    monkeypatch.setattr(torch, "compile", uncompiled)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)


def chain(layers: int, device: torch.device) -> float:
    """Seconds of the host: 100 us for the call, and 11 us for each layer in it."""
    return 100e-6 + 11e-6 * layers


@pytest.mark.usefixtures("small")
def test_starts_and_bytes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_chain", chain)
    found = fused_kernels(CPU, WORKER, card)
    assert found.each == pytest.approx(START * 100e9)
    assert found.each_sum == pytest.approx(SUM_START * 100e9)
    assert found.statistics == pytest.approx(1.9)
    assert found.sums == pytest.approx(1.2)
    assert found.rows == pytest.approx(1.7)
    assert found.windows == pytest.approx(4.4)
    host = fused.FORWARD * 4e-6 + fused.BACKWARD * 6e-6
    assert found.starts == pytest.approx(11e-6 / host)
    assert found.call == pytest.approx(100e-6 / 10e-6)


@pytest.mark.usefixtures("small")
def test_what_the_host_does_is_read_from_chains_of_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Tensor] = []

    def bent(self: nn.GELU, x: Tensor) -> Tensor:
        ran.append(x)
        return x

    monkeypatch.setattr(fused, "CALLS", 1)
    monkeypatch.setattr(fused, "ROUNDS", 1)
    monkeypatch.setattr(nn.GELU, "forward", bent)
    found = fused_kernels(CPU, WORKER, card)
    assert len(ran) == fused.FEW + fused.MANY
    assert found.starts >= 0
    assert found.call >= 0


@pytest.mark.usefixtures("small")
def test_a_compiler_that_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(function: Any, **options: Any) -> Any:
        raise RuntimeError("no C compiler\nand a long trace")

    monkeypatch.setattr(torch, "compile", fails)
    with caplog.at_level(logging.WARNING, logger="fleetx"):
        assert fused_kernels(CPU, WORKER, card) == FusedKernels()
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.endswith(
        "kernels of compiled code (RuntimeError: no C compiler): its plans take them for as fast "
        "as memory"
    )
