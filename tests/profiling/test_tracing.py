"""What a trace says: hidden and exposed exchanges, and a card that has nothing to do."""

from typing import Any

import pytest

from fleetx.profiling.intervals import common, length, union, without
from fleetx.profiling.phases import MARK, STEP
from fleetx.profiling.tracing import Traced, understood

MAIN, GLOO = 1, 2


def event(name: str, begin: float, took: float, cat: str = "cpu_op", **more: Any) -> dict[str, Any]:
    """As torch writes it, in milliseconds here and in microseconds there."""
    return {
        **{"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": MAIN},
        **{"ts": 1e6 + 1e3 * begin, "dur": 1e3 * took},
        **more,
    }


def mark(phase: str, at: float) -> dict[str, Any]:
    return event(MARK + phase, at, 0.001, "user_annotation")


def steps(*ends: float) -> list[dict[str, Any]]:
    return [event(STEP, end, 0.001, "user_annotation") for end in ends]


PHASES = [
    mark("between", 0.0001),
    mark("data", 1),
    mark("between", 3),
    mark("forward", 4),
    mark("backward", 8),
    mark("update", 18),
]


def found(*events: dict[str, Any]) -> Traced:
    traced = understood([*steps(0, 20), *PHASES, *events])
    assert traced is not None
    return traced


def in_ms(seconds: float) -> Any:
    return pytest.approx(seconds * 1e-3, abs=2e-6)


def test_phases_of_the_script() -> None:
    host = found().host
    assert host["data"] == in_ms(2)
    assert host["between"] == in_ms(2)
    assert host["forward"] == in_ms(4)
    assert host["backward"] == in_ms(10)
    assert host["update"] == in_ms(2)
    assert sum(host.values()) == in_ms(20)


def test_an_exchange_behind_operators_is_hidden() -> None:
    """Operators compute until 14; a thread of Gloo exchanges from 10 to 17."""
    traced = found(
        event("MmBackward0", 8, 6),
        event("aten::mm", 8, 3),
        event("aten::mm", 11.02, 2.98),  # a gap of 20 us is no wait
        event("gloo:all_reduce", 10, 7, "user_annotation", tid=GLOO),
        event("aten::copy_", 15, 1, tid=GLOO),  # its own copies are no computation
    )
    assert traced.hidden == in_ms(4)
    assert traced.exposed["backward"] == in_ms(3)
    assert sum(traced.exposed.values()) == in_ms(3)
    assert traced.card is None


def test_whoever_waits_inside_of_an_operator_waits() -> None:
    """A node of autograd whose hook waits, and the call that begins the exchange."""
    traced = found(
        event("HookBackward", 8, 8),
        event("aten::mul", 8, 1),
        event("c10d::allreduce_", 9, 5),
        event("gloo:all_reduce", 9, 5, "user_annotation", tid=GLOO),
    )
    assert traced.exposed["backward"] == in_ms(5)
    assert traced.hidden == in_ms(0)


def test_an_exchange_while_data_is_read_keeps_nobody_waiting() -> None:
    traced = found(event("gloo:all_reduce", 1, 2, "user_annotation", tid=GLOO))
    assert sum(traced.exposed.values()) == in_ms(0)
    assert traced.hidden == in_ms(2)


def launch(at: float, number: int, call: str = "cudaLaunchKernel") -> dict[str, Any]:
    return event(call, at, 0.01, "cuda_runtime", args={"correlation": number})


def kernel(name: str, begin: float, took: float, number: int, stream: int = 7) -> dict[str, Any]:
    args = {"correlation": number, "stream": stream, "device": 0}
    return event(name, begin, took, "kernel", pid=0, tid=stream, args=args)


def test_a_card_computes_later_than_the_script_asks() -> None:
    """Phases of kernels are those of their launches; NCCL runs beside them on another stream."""
    traced = found(
        launch(4, 1),
        kernel("gemm", 5, 4, 1),  # asked for in forward, and still running in backward
        launch(8, 2),
        kernel("gemm", 9, 5, 2),
        launch(9, 3),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 12, 5, 3, stream=20),
        launch(18, 4),
        kernel("adamw", 18, 1, 4),
    )
    assert traced.card == {"forward": in_ms(4), "backward": in_ms(5), "update": in_ms(1)}
    assert traced.hidden == in_ms(2)
    assert sum(traced.exposed.values()) == in_ms(3)
    assert sum(traced.idle.values()) == in_ms(20 - 4 - 5 - 1 - 3)
    assert traced.idle["data"] == in_ms(2)
    assert list(traced.lanes) == ["host", "card", "exchange"]


def test_a_captured_step_has_no_phases() -> None:
    traced = found(launch(4, 1, "cudaGraphLaunch"), kernel("a", 5, 4, 1), kernel("b", 9, 5, 1))
    assert traced.card == {"graph": in_ms(9)}


def test_what_runs_beside_each_other_counts_once() -> None:
    traced = found(
        launch(4, 1),
        launch(8, 2),
        kernel("forward", 5, 6, 1),
        kernel("backward", 9, 6, 2, stream=8),
    )
    assert traced.card is not None
    assert sum(traced.card.values()) == in_ms(10)


def test_a_trace_without_a_whole_step_says_nothing() -> None:
    assert understood([*steps(0), *PHASES]) is None


def test_spans() -> None:
    spans = union([(4, 6), (0, 2), (1, 3)])
    assert spans == [(0, 3), (4, 6)]
    assert union(spans, gap=1) == [(0, 6)]
    assert common(spans, [(2, 5)]) == [(2, 3), (4, 5)]
    assert without(spans, [(1, 2), (5, 9)]) == [(0, 1), (2, 3), (4, 5)]
    assert without(spans, [(-1, 9)]) == []
    assert without([], [(0, 1)]) == []
    assert length(spans) == 5
