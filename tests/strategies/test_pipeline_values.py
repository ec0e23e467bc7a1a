"""What goes into a pipeline and comes out of it is what goes into and out of the plain model."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fleetx as fleet
from fleetx.testing import world


def start(split: str, extras: dict[str, Any] | None = None, **configs: Any) -> None:
    strategy: Any = fleet.DistributedStrategy()
    strategy.pipeline = True
    cut = [split] if split else []
    strategy.pipeline_configs = {"accumulate_steps": 2, "split": cut, **configs}
    for name, value in (extras or {}).items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)


def spread(net: nn.Module, criterion: Any, rate: float = 0.1, **given: Any) -> Any:
    model: Any = fleet.distributed_model(net, criterion=criterion, **given)
    fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=rate))
    return model


def numbers(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Masked(nn.Module):
    """Both stages ask whether there is a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.first(x)
        x = self.second(x if mask is None else x * mask)
        return x if mask is None else x * mask


def of(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def same(model: nn.Module, plain: nn.Module) -> None:
    state = fleet.full_state_dict(model, everywhere=True)
    torch.testing.assert_close(state, dict(plain.state_dict()), rtol=1e-4, atol=1e-6)


@world(2)
def test_an_input_with_a_default_counts_when_the_sample_has_it() -> None:
    x, mask, y = numbers(8, 4), numbers(8, 1, seed=4), numbers(8, 4, seed=5)
    for split in ("second", ""):
        start(split)
        plain, inputs = of(Masked), {"x": x, "mask": mask}
        model = spread(of(Masked), nn.functional.mse_loss, sample=inputs)
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
        for given in (inputs, (x, mask)):
            model.train_batch((given, y))
            optimizer.zero_grad()
            nn.functional.mse_loss(plain(**inputs), y).backward()
            optimizer.step()
        same(model, plain)
        outputs = model.eval_batch((inputs, y), compute_loss=False)
        torch.testing.assert_close(outputs, plain(**inputs), rtol=1e-4, atol=1e-6)
        with pytest.raises(ValueError, match="give it in every batch"):
            model.train_batch((x, y))


@world(2)
def test_an_input_that_no_stage_would_take_is_refused() -> None:
    x, mask, y = numbers(8, 4), numbers(8, 1, seed=4), numbers(8, 4, seed=5)
    start("second")
    model = spread(of(Masked), nn.functional.mse_loss)
    for batch in ((x, mask), {"x": x, "mask": mask}):
        with pytest.raises(ValueError, match="with inputs that hold 'mask'"):
            model.train_batch((batch, y))
        with pytest.raises(ValueError, match="with inputs that hold 'mask'"):
            model.eval_batch((batch, y))
    model.train_batch(({"x": x, "mask": None}, y))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh())


PURE = {"amp": True, "amp_configs": {"use_pure_bf16": True, "use_fp16_guard": False}}


@world(2)
def test_every_rank_has_the_loss_whatever_its_type() -> None:
    for kind, extras in ((torch.float64, {}), (torch.bfloat16, {}), (torch.float32, PURE)):
        start("second", extras)
        x, plain = numbers(8, 4).to(kind), of(Two).to(kind)
        model = spread(of(Two).to(kind), lambda found, _: (found**2).mean())
        loss = model.train_batch((x, x))
        assert loss.dtype == torch.float32
        # Numbers of 8 bits, of which 3 operations follow each other.
        margin = 1e-6 if kind == torch.float64 else 0.05
        assert float(loss) == pytest.approx(float((plain(x) ** 2).mean()), rel=margin)
        assert len(set(fleet.util.all_gather(float(loss)))) == 1
