"""What goes into a pipeline and comes out of it is what goes into and out of the plain model."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fleetx as fleet
from fleetx import roles
from fleetx.strategies.pipeline import stages
from fleetx.testing import world


def start(split: str | list[str], extras: dict[str, Any] | None = None, **configs: Any) -> None:
    strategy: Any = fleet.DistributedStrategy()
    strategy.pipeline = True
    cut = [split] if isinstance(split, str) else split
    strategy.pipeline_configs = {"accumulate_steps": 2, "split": cut, **configs}
    for name, value in (extras or {}).items():
        setattr(strategy, name, value)
    roles.stop()  # models of an earlier job may still be there
    fleet.init(is_collective=True, strategy=strategy)


def spread(net: nn.Module, criterion: Any, sample: Any, rate: float = 0.1) -> Any:
    model: Any = fleet.distributed_model(net, criterion=criterion, sample=sample)
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
    splits: tuple[str | list[str], ...] = ("second", [])
    for split in splits:
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
    model = spread(of(Masked), nn.functional.mse_loss, sample=x)
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
        model = spread(of(Two).to(kind), lambda found, _: (found**2).mean(), sample=x)
        loss = model.train_batch((x, x))
        assert loss.dtype == torch.float32
        # Numbers of 8 bits, of which 3 operations follow each other.
        margin = 1e-6 if kind == torch.float64 else 0.05
        assert float(loss) == pytest.approx(float((plain(x) ** 2).mean()), rel=margin)
        assert len(set(fleet.util.all_gather(float(loss)))) == 1


class Many(Two):
    """A mean, and an output whose samples are its columns, of as many classes as samples."""

    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        return {"y": y, "mean": (y**2).mean(), "turned": y.t()}


FOUR = ["0.second", "1.first", "1.second"]


@world(2)
def test_evaluation_gives_the_outputs_of_the_whole_batch_whatever_they_are() -> None:
    for kind in (Many, Two):
        start("second")
        plain = of(kind)
        model = spread(of(kind), lambda found, _: (found**2).mean(), sample=numbers(2, 4))
        sizes: list[int] = []
        model.second.register_forward_pre_hook(lambda _, args, to=sizes: to.append(len(args[0])))
        for samples in (8, 8, 2, 5):
            sizes.clear()
            x = numbers(samples, 4)
            found = model.eval_batch((x, x), compute_loss=False)
            torch.testing.assert_close(found, plain(x), rtol=1e-4, atol=1e-6)
            if fleet.worker_index() == 1:
                divided = kind is Two and samples % 2 == 0
                assert sizes[-1] == (samples // 2 if divided else samples)
    start(FOUR, schedule_mode="interleaved")
    chain = nn.Sequential(of(Two), of(Two))
    plain, x = nn.Sequential(of(Two), of(Two)), numbers(8, 4)
    model = spread(chain, lambda found, _: (found**2).mean(), sample=x)
    found = model.eval_batch((x, x), compute_loss=False)
    torch.testing.assert_close(found, plain(x), rtol=1e-4, atol=1e-6)


@world(2)
def test_shapes_that_come_no_more_are_forgotten() -> None:
    start("second")
    rows, plain = numbers(2, 3, 4), of(Two)
    model = spread(of(Two), lambda found, _: (found**2).mean(), sample=rows, rate=0.0)
    for length in (*range(1, 13), 1, 12, 2):
        x = numbers(4, length, 4)
        assert float(model.train_batch((x, x))) == pytest.approx(float((plain(x) ** 2).mean()))
    gc.collect()
    alive = [thing for thing in gc.get_objects() if type(thing) is stages._Runner]
    # Those of another test that ran in this process may be alive, too.
    mine = [runner for runner in alive if vars(runner._stages[0].shell)["_stages"]._model is model]
    assert len(mine) == stages.SHAPES_KEPT


class Counter(nn.Linear):
    """Saves a number beside its tensors."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.state: Any = {"steps": 0, "last": torch.zeros(2)}

    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        self.state = state

    def forward(self, input: Tensor) -> Tensor:
        if self.training:
            last = torch.full((2,), float(len(input)))
            self.state = {"steps": self.state["steps"] + 1, "last": last}
        return super().forward(input)


class Spare(nn.Module):
    """Has what no stage uses: layers, a parameter, a buffer, and other names of used ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Counter(), Counter()
        self.unused = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), Counter())
        self.spare = nn.Parameter(torch.randn(2))
        self.register_buffer("seen", torch.arange(3))
        self.alias = nn.Linear(4, 4)
        self.alias.weight = self.second.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh())


def trained_alone(net: nn.Module, x: Tensor, parts: int = 2) -> nn.Module:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for share in x.chunk(parts):
        ((net(share) ** 2).mean() / parts).backward()
    optimizer.step()
    return net


def check_whole(model: Any, x: Tensor) -> None:
    expected = trained_alone(of(Spare), x).state_dict()
    model.train_batch((x, x))
    state: dict[str, Any] = dict(fleet.full_state_dict(model, everywhere=True))
    assert list(state) == list(expected)
    # Extra states differ: the first stage runs once more, to learn what it sends.
    torch.testing.assert_close(
        {name: value for name, value in state.items() if not name.endswith("_extra_state")},
        {name: value for name, value in expected.items() if not name.endswith("_extra_state")},
        rtol=1e-4,
        atol=1e-6,
    )
    assert state["second._extra_state"]["steps"] == 2
    assert state["unused.2._extra_state"]["steps"] == 0
    torch.testing.assert_close(state["second._extra_state"]["last"], torch.full((2,), 4.0))


@world(2)
def test_the_whole_state_is_that_of_the_model_and_goes_back_into_it() -> None:
    start("second")
    model = spread(of(Spare), lambda found, _: (found**2).mean(), sample=numbers(2, 4))
    check_whole(model, numbers(8, 4))
    fresh = of(Spare).state_dict()
    fleet.load_full_state_dict(model, fresh)
    torch.testing.assert_close(fleet.full_state_dict(model, everywhere=True), dict(fresh))
    fleet.load_full_state_dict(model, fleet.full_state_dict(model, everywhere=True))
    check_whole(model, numbers(8, 4))
    model.second.state = {"steps": {1, 2}}
    if fleet.worker_index() == 0:
        model.first.state = {"steps": object()}
    with pytest.raises(ValueError, match=r"'first._extra_state' holds a object"):
        fleet.full_state_dict(model)


@world(4)
def test_it_is_whole_next_to_other_axes() -> None:
    full = {"sharding": True, "sharding_configs": {"stage": 3, "sharding_degree": 2}}
    for extras in ({"hybrid_configs": {"pp_degree": 2, "dp_degree": 2}}, full):
        start("second", extras)
        model = spread(of(Spare), lambda found, _: (found**2).mean(), sample=numbers(2, 4))
        check_whole(model, numbers(8, 4))


class Turned(nn.Module):
    """A view travels forward, and a view of a gradient travels back."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        turned = self.first(x).transpose(1, 2)
        return self.second(turned).transpose(1, 2).sum(2)


@world(2)
def test_what_travels_may_be_a_view() -> None:
    x, y = numbers(8, 3, 4), numbers(8, 2, seed=5)
    for mode in ("1F1B", "F-then-B", "zero-bubble"):
        start("second", schedule_mode=mode)
        model, plain = spread(of(Turned), nn.functional.mse_loss, sample=x), of(Turned)
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
        for _ in range(2):
            loss = nn.functional.mse_loss(plain(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            assert float(model.train_batch((x, y))) == pytest.approx(float(loss.detach()), abs=1e-5)
        same(model, plain)
        assert torch.allclose(model.eval_batch((x, y), compute_loss=False), plain(x), atol=1e-5)


class Failing(nn.Module):
    """Fails where and when a test says."""

    where: str = ""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.first.register_forward_pre_hook(lambda *_: self._fail("first"))
        self.second.register_forward_pre_hook(lambda *_: self._fail("second"))

    def _fail(self, stage: str) -> None:
        if self.where == stage:
            raise ZeroDivisionError(f"in the {stage} stage")

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


@world(2)
def test_a_stage_that_fails_leaves_nobody_waiting() -> None:
    data = numbers(8, 4), numbers(8, 4, seed=5)
    for known in (False, True):
        for rank, stage in enumerate(("first", "second")):
            start("second")
            net = of(Failing)
            model = spread(net, nn.functional.mse_loss, sample=data[0])
            if known:  # the shapes that travel, so that the batch itself is what fails
                model.train_batch(data)
                model.eval_batch(data)
            net.where = stage  # type: ignore[assignment]
            kind = ZeroDivisionError if fleet.worker_index() == rank else RuntimeError
            told = f"in the {stage} stage"
            with pytest.raises(kind, match=told):
                model.train_batch(data)
            with pytest.raises(kind, match=told):
                model.eval_batch(data)
            net.where = ""  # type: ignore[assignment]
            assert model.train_batch(data).isfinite()
