"""Writes to parts of parameters that workers share take effect, or the next batch is refused."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import fleetx as fleet
from fleetx.spread.parts_written import watch_parts
from fleetx.spread.whole_answers import answer_as_whole_ones
from fleetx.testing import world
from tests.spread.test_whole_numbers import CUT, SHARDED, mlp

Write = Callable[[Tensor], object]


def row(p: Tensor) -> None:
    p[0] = 0.0


def last_row(p: Tensor) -> None:
    p.data[-1] = torch.arange(float(p.shape[1]))


def columns(p: Tensor) -> None:
    p[:, 2:5] = 1.0


def rows_of_its_own(p: Tensor) -> None:
    p[:2] = p[2:4] * 2


def scaled(p: Tensor) -> None:
    p.data[1:3] *= 2


def scaled_columns(p: Tensor) -> None:
    p[:, 1:3] *= 2


def masked(p: Tensor) -> None:
    p[p > 0] = 0.0


def numbered(p: Tensor) -> None:
    p[torch.tensor([0, 3])] = 9.0


def turned(p: Tensor) -> None:
    p.data.t()[0] = 5.0


WRITES = [row, last_row, columns, rows_of_its_own, scaled, scaled_columns]
WRITES += [masked, numbered, turned]


def laid_out(flags: dict[str, Any]) -> Any:
    strategy = fleet.DistributedStrategy()
    for flag, options in flags.items():
        setattr(strategy, flag, True)
        setattr(strategy, f"{flag}_configs", options)
    fleet.init(is_collective=True, strategy=strategy)
    return fleet.distributed_model(mlp())


def weights(model: Any) -> list[nn.Parameter]:
    return [model[0].weight, model[2].weight]


def differences(flags: dict[str, Any]) -> list[str]:
    found = []
    for write in WRITES:
        ours, usual = laid_out(flags), mlp()
        with torch.no_grad():
            for spread, plain in zip(weights(ours), weights(usual), strict=True):
                write(spread)
                write(plain)
                whole: Any = spread
                if not torch.equal(whole.full_tensor(), plain):
                    found.append(write.__name__)
        ours(torch.randn(2, 8)).sum().backward()  # none is refused
    return found


@pytest.mark.parametrize("flags", [SHARDED, CUT], ids=["sharded", "cut"])
def test_assignments_reach_the_whole(flags: dict[str, Any]) -> None:
    """torch refused those of numbers, and lost others without a word."""
    assert world(2).run(differences, flags) == [[], []]


def emptied(p: Tensor) -> None:
    p.data[-1].zero_()


def halved(p: Tensor) -> None:
    p.data.chunk(2)[1].mul_(0.5)


def filled(p: Tensor) -> None:
    p.data.narrow(0, 1, 2).fill_(1.0)


def of_a_part(p: Tensor) -> None:
    p.data[1:4][0].zero_()


def refusal(write: Write) -> str:
    model = laid_out(SHARDED)
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    def step() -> None:
        optimizer.minimize(model(torch.randn(2, 8)).sum())

    with torch.no_grad():
        seen = model[0].weight[3], model[0].weight.split(5)  # may be looked at
        model[0].weight.mul_(0.5)
        model[0].weight[0] = 1.0
    step()
    assert all(isinstance(part, Tensor) for part in seen[1])
    with torch.no_grad():
        write(model[0].weight)
    with pytest.raises(RuntimeError) as caught:
        step()
    step()  # said once
    return str(caught.value)


@pytest.mark.parametrize("write", [emptied, halved, filled, of_a_part])
def test_a_write_to_a_copy_stops_the_next_batch(write: Write) -> None:
    """It was lost, and the script went on."""
    line = write.__code__.co_firstlineno + 1
    for sentence in world(2).run(refusal, write):
        assert f"test_parts_written.py:{line} takes a part (" in sentence
        assert "so it is a copy, and the tensor did not change. Assign to the part" in sentence


def chunked(p: Tensor) -> None:
    torch.chunk(p.data, 3)[0].zero_()


def split(p: Tensor) -> None:
    torch.split(p.data, 5)[1].add_(1.0)


def narrowed(p: Tensor) -> None:
    torch.narrow(p.data, 0, 1, 2).normal_()


def selected(p: Tensor) -> None:
    part = torch.select(p.data, 0, 3)
    part *= 2


def assigned(p: Tensor) -> None:
    torch.narrow(p.data, 0, 2, 1)[:] = 0.5


@pytest.mark.parametrize("write", [chunked, split, narrowed, selected, assigned])
def test_a_write_to_what_a_function_took_stops_the_next_batch(write: Write) -> None:
    """Functions are not watched, but what is written to is: it was lost, and the script went on."""
    line = write.__code__.co_firstlineno + (2 if write is selected else 1)
    for sentence in world(2).run(refusal, write):
        did = "takes a part" if write is split else "writes"  # torch calls a method there
        assert f"test_parts_written.py:{line} {did} (" in sentence
        assert "so it is a copy, and the tensor did not change. Assign to the part" in sentence


def scratch() -> bool:
    """What plain torch copies, too, and what code of an evaluation does."""
    model = laid_out(SHARDED)
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer.minimize(model(torch.randn(2, 8)).sum())
    weight = model[0].weight
    before = weight.full_tensor().clone()
    with torch.no_grad():
        weight.data.t().reshape(-1).mul_(2)
        torch.chunk(weight.data.clone(), 3)[0].clone().zero_()
        torch.t(weight).mul_(1.0)  # shows what this worker holds
    with torch.inference_mode():
        model(torch.randn(2, 8))
        (weight * 2)[3].zero_()
    same = torch.equal(weight.full_tensor(), before)
    optimizer.minimize(model(torch.randn(2, 8)).sum())
    return same


def test_writes_to_copies_of_plain_torch_stop_nothing() -> None:
    assert world(2).run(scratch) == [True, True]


def elsewhere() -> list[float]:
    weight = laid_out(SHARDED)[0].weight
    with torch.device("cpu"), torch.no_grad():
        weight[:3] *= 0.0
        weight[0] = 1.0
    return weight.full_tensor()[:3].sum(1).tolist()


def test_a_default_device_changes_nothing() -> None:
    assert world(2).run(elsewhere) == [[8.0, 0.0, 0.0]] * 2


def parts(p: Tensor) -> Tensor:
    return p.chunk(2, -1)[0] + p[:, 2:] * p.flatten()[:1]


@world(1)
def test_the_compiler_follows_parts() -> None:
    """torch 2.11 does not say so while it computes shapes: here no release does."""
    mesh, plain = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",)), torch.rand(2, 4)
    answer_as_whole_ones()
    watch_parts()
    spread = distribute_tensor(plain, mesh, [Shard(0)])
    silent = patch.object(torch.compiler, "_compile_session_context", nullcontext, create=True)
    with silent, torch.no_grad():
        found: Any = torch.compile(parts, backend="aot_eager", fullgraph=True)(spread)
    torch.testing.assert_close(found.full_tensor(), parts(plain))
