"""Clipping: as a strategy and as the optimizer's grad_clip, with Paddle's formula."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import fleetx as fleet
from fleetx.strategies.clip.clipping import by_global_norm, by_norm, by_value
from fleetx.testing import world
from tests.engine.training import data, net, spread, weights
from tests.strategies.paddle import check_given, start


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def test_the_strategy_walks_paddles_trajectory() -> None:
    settings = {"clip": True, "clip_configs": {"by": "global_norm", "limit": 0.5}}
    check_given("momentum_globalnorm_clip", momentum, **settings)


def test_the_optimizers_grad_clip_walks_paddles_trajectory() -> None:
    check_given("momentum_globalnorm_clip", momentum, fleet.ClipGradByGlobalNorm(0.5))


def gradients() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) * 3 for shape in ((4, 5), (7,), (1,))]


def test_by_global_norm() -> None:
    clipped, raw = gradients(), gradients()
    total = torch.cat([g.flatten() for g in raw]).norm()
    assert by_global_norm(clipped, 0.5) == pytest.approx(float(total))
    for now, before in zip(clipped, raw, strict=True):
        torch.testing.assert_close(now, before * 0.5 / total)
    untouched = gradients()
    by_global_norm(untouched, float(total) * 2)
    assert all(torch.equal(a, b) for a, b in zip(untouched, raw, strict=True)), "not one bit"
    assert by_global_norm([], 1.0) is None


@pytest.mark.parametrize("limit", [0.1, 0.3, 0.7, 1.1, 3.3, 49.0])
def test_what_is_small_enough_does_not_change_by_a_bit(limit: float) -> None:
    small = [g * 1e-3 for g in gradients()]
    untouched = [g.clone() for g in small]
    by_global_norm(untouched, limit)
    by_norm(untouched, limit)
    assert all(torch.equal(a, b) for a, b in zip(untouched, small, strict=True))


def test_norms_of_large_tensors_keep_their_digits() -> None:
    large = [torch.ones(3_000_000)]
    assert by_global_norm(large, 1.0) == pytest.approx(3_000_000**0.5, rel=1e-6)


def test_by_norm_limits_each_tensor() -> None:
    clipped, raw = gradients(), gradients()
    raw[2].fill_(0.1)
    clipped[2].fill_(0.1)
    by_norm(clipped, 2.0)
    for now, before in zip(clipped[:2], raw[:2], strict=True):
        torch.testing.assert_close(now, before * 2.0 / before.norm())
    assert torch.equal(clipped[2], raw[2])


def test_by_value_limits_each_number() -> None:
    clipped, raw = gradients(), gradients()
    by_value(clipped, -1.0, 2.0)
    for now, before in zip(clipped, raw, strict=True):
        assert torch.equal(now, before.clamp(-1.0, 2.0))


def test_half_precision_norms_do_not_overflow() -> None:
    large = [torch.full((100,), 30000.0, dtype=torch.float16)]
    by_global_norm(large, 1.0)
    torch.testing.assert_close(large[0].float(), torch.full((100,), 0.1), rtol=1e-2, atol=1e-2)


def clipped_step(grad_clip: Any, **settings: Any) -> torch.Tensor:
    start(**settings)
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), grad_clip=grad_clip
    )
    inputs, targets = data()
    mine = slice(fleet.worker_index(), None, 2)
    before = weights(model)
    optimizer.minimize(100 * F.cross_entropy(model(inputs[mine]), targets[mine]))
    assert spread(weights(model)) == 0
    return before - weights(model)


@pytest.mark.parametrize(
    ("grad_clip", "configs"),
    [
        (fleet.ClipGradByGlobalNorm(0.5), {"by": "global_norm", "limit": 0.5}),
        (fleet.ClipGradByNorm(0.25), {"by": "norm", "limit": 0.25}),
        (fleet.ClipGradByValue(0.01), {"by": "value", "limit": 0.01}),
        (fleet.ClipGradByValue(0.01, -0.002), {"by": "value", "limit": 0.01, "lowest": -0.002}),
        (fleet.ClipGradByValue(0.01, 0.0), {"by": "value", "limit": 0.01, "lowest": 0.0}),
    ],
)
def test_grad_clip_is_the_strategy_and_clips_the_mean(grad_clip: Any, configs: Any) -> None:
    as_strategy = world(2).run(clipped_step, None, clip=True, clip_configs=configs)
    as_argument = world(2).run(clipped_step, grad_clip)
    assert torch.equal(as_strategy[0], as_argument[0])
    moved = as_strategy[0]
    if configs["by"] == "global_norm":
        assert float(moved.norm()) == pytest.approx(0.5, rel=1e-5)
    elif configs["by"] == "value":
        assert float(moved.max()) == pytest.approx(0.01)
        assert float(moved.min()) == pytest.approx(configs.get("lowest", -0.01), abs=1e-7)


@world(1)
def test_mistakes_are_answered() -> None:
    with pytest.raises(ValueError, match="limits values, and clip_configs"):
        start(clip_configs={"lowest": -1.0})
    with pytest.raises(ValueError, match="so no value would be left"):
        start(clip_configs={"by": "value", "limit": 1.0, "lowest": 2.0})
    start(clip=True)
    model = fleet.distributed_model(net())
    with pytest.raises(TypeError, match=r"takes grad_clip=fleet\.ClipGradByGlobalNorm\(1\.0\)"):
        fleet.distributed_optimizer(momentum(model.parameters()), grad_clip=1.0)  # type: ignore[call-overload]
    with pytest.raises(fleet.PlanError, match="clip was asked for twice"):
        fleet.distributed_optimizer(
            momentum(model.parameters()), grad_clip=fleet.ClipGradByGlobalNorm()
        )


def test_complex_gradients_are_limited_by_all_of_their_numbers() -> None:
    whole, part = (torch.full((2,), 3 + 4j), torch.full((2,), 12.0))
    norm = by_global_norm([whole, part], 1.0)
    expected = (2 * 25 + 2 * 144) ** 0.5
    torch.testing.assert_close(norm, torch.tensor(expected))
    torch.testing.assert_close(whole, torch.full((2,), 3 + 4j) / expected)
    torch.testing.assert_close(part, torch.full((2,), 12.0) / expected)
    single = [torch.full((1,), 4j, dtype=torch.complex128)]
    by_norm(single, 2.0)
    torch.testing.assert_close(single[0], torch.full((1,), 2j, dtype=torch.complex128))


def limited(*, sparse: bool, by: str) -> Any:
    start(clip=True, clip_configs={"by": by, "limit": 0.01})
    torch.manual_seed(0)
    words = torch.nn.Embedding(20, 4, sparse=sparse)
    model = fleet.distributed_model(torch.nn.Sequential(words, torch.nn.Linear(4, 3)))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    generator = torch.Generator().manual_seed(fleet.worker_index())
    for _ in range(3):  # words come several times, on one worker and on both
        ids = torch.randint(0, 20, (16,), generator=generator)
        optimizer.minimize(F.cross_entropy(model(ids), ids % 3))
    return weights(model)


@pytest.mark.parametrize("by", ["global_norm", "norm", "value"])
@world(2)
def test_sparse_gradients_are_limited_as_whole_ones(by: str) -> None:
    torch.testing.assert_close(limited(sparse=True, by=by), limited(sparse=False, by=by))
