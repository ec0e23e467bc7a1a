"""`strategy.auto` in a script: it chooses, all workers take it, and numbers stay what they were."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fleetx as fleet
from fleetx import roles
from fleetx.api import chores
from fleetx.auto import search
from fleetx.auto.cluster import Cluster, load
from fleetx.testing import world
from tests.libraries import transformers

TWO = Path(__file__).parent / "two_cpus.yaml"
SAMPLES = 8


@pytest.fixture
def machines(tmp_path: Path) -> Any:
    """Writes a cluster file like that of two CPUs, with some numbers changed."""

    def write(**changes: float) -> str:
        found = load(TWO)
        file = tmp_path / "cluster.yaml"
        fields: dict[str, Any] = vars(found)
        device = type(found.device)(**{**vars(found.device), **_of(found.device, changes)})
        Cluster(**{**fields, **_of(found, changes), "device": device}).save(file)
        return str(file)

    return write


def _of(owner: Any, changes: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in changes.items() if name in vars(owner)}


def words() -> Tensor:
    return torch.randint(128, (4 * SAMPLES, 16), generator=torch.Generator().manual_seed(1))


def gpt2() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=128, n_positions=16, use_cache=False
    )
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    return transformers.GPT2LMHeadModel(config)


def inputs(tokens: Tensor) -> dict[str, Tensor]:
    return {"input_ids": tokens, "labels": tokens}


def trained(settings: Mapping[str, Any], sample: Any = None) -> dict[str, Any]:
    """What an ordinary script does, with whatever strategy; the samples of its updates too."""
    strategy = fleet.DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    tokens = words()
    plain = gpt2()
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(plain.parameters(), lr=0.1))
    model: Any = fleet.distributed_model(plain, sample=sample)
    loader = fleet.distributed_loader(DataLoader(TensorDataset(tokens), batch_size=SAMPLES))
    sizes = []
    for (batch,) in loader:
        sizes.append(len(batch))
        optimizer.minimize(model(**inputs(batch)).loss)
    held = sum(_local(p).numel() for p in model.parameters())
    weights = fleet.full_state_dict(model, everywhere=True)
    roles.stop()
    return {"weights": weights, "held": held, "sizes": sizes}


def _local(tensor: Any) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def compared(cluster: str) -> tuple[dict[str, Any], dict[str, Any]]:
    kept = dict.fromkeys(["pipeline", "recompute", "amp"], False)  # fewer plans to look at
    auto = {"auto": True, "auto_configs": {"cluster": cluster}, **kept}
    return trained({}), trained(auto, inputs(words()[:SAMPLES]))


def test_the_chosen_plan_trains_as_the_plain_one_does() -> None:
    for plain, chosen in world(2).run(compared, str(TWO)):
        for name, value in plain["weights"].items():
            torch.testing.assert_close(chosen["weights"][name], value, rtol=1e-5, atol=1e-6)
        assert sum(chosen["sizes"]) == sum(plain["sizes"])


def tried() -> tuple[bool, str, dict[str, Any], dict[str, Any]]:
    """Without a description of the machines they are measured, and two plans are tried."""
    heard: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("fleetx").addHandler(listener)
    kept = dict.fromkeys(["pipeline", "recompute", "amp", "tensor_parallel"], False)
    auto = {"auto": True, "auto_configs": {"trials": 2}, **kept}
    plain = trained({})
    state = torch.get_rng_state()
    cases, chores._cases = (
        chores._cases,
        lambda workers: iter((chores._Case(1, {}),)),
    )  # a few will do
    chosen = trained(auto, inputs(words()[:SAMPLES]))
    chores._cases = cases
    logging.getLogger("fleetx").removeHandler(listener)
    said = next((line for line in heard if line.startswith("strategy.auto chose")), "")
    return torch.equal(torch.get_rng_state(), state), said, plain, chosen


def test_plans_are_tried_on_copies_that_leave_no_trace() -> None:
    """Random numbers and weights go on as if nothing had been measured."""
    first, second = world(2).run(tried)
    assert "the fastest of 2 that it tried" in first[1]
    for same, _, plain, chosen in (first, second):
        assert same
        for name, value in plain["weights"].items():
            torch.testing.assert_close(chosen["weights"][name], value, rtol=1e-5, atol=1e-6)


class Delicate(nn.Module):
    """Runs with batches of eight alone, which nobody sees before it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if type(x) is Tensor and len(x) != SAMPLES:
            raise ValueError("eight, please")
        return self.layer(x)


@pytest.mark.rare
@pytest.mark.usefixtures("alone")
def test_a_plan_that_fails_when_it_runs_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    begun(auto_configs={"trials": 50}, amp=False, recompute=False)
    given: Any = {"criterion": nn.functional.mse_loss, "targets": torch.ones(SAMPLES, 4)}
    model: Any = fleet.distributed_model(Delicate(), sample=torch.ones(SAMPLES, 4), **given)
    assert "cannot run: eight, please" in caplog.text
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    model.train_batch([torch.ones(SAMPLES, 4), torch.ones(SAMPLES, 4)], optimizer)


def test_little_room_leads_to_parts_of_the_model(machines: Any) -> None:
    """Parameters, gradients and momenta that one rank cannot hold are spread over both."""
    whole = sum(p.numel() for p in gpt2().parameters())
    file = machines(memory_gigabytes=1.37e-3)
    for plain, chosen in world(2).run(compared, file):
        assert plain["held"] == whole
        assert chosen["held"] < 0.6 * whole
        for name, value in plain["weights"].items():
            torch.testing.assert_close(chosen["weights"][name], value, rtol=1e-5, atol=1e-6)


@pytest.fixture
def alone() -> Iterator[None]:
    yield
    roles.stop()


def begun(**settings: Any) -> fleet.DistributedStrategy:
    strategy = fleet.DistributedStrategy()
    strategy.auto = True
    for name, value in settings.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    return strategy


@pytest.mark.usefixtures("alone")
def test_what_cannot_be_planned_is_refused_in_a_sentence() -> None:
    strategy = begun()
    sample = torch.zeros(4, 8)
    with pytest.raises(fleet.PlanError, match=r"without it\. Call it first"):
        fleet.data_num()
    with pytest.raises(fleet.PlanError, match="nothing is known of a batch"):
        fleet.distributed_model(nn.Linear(8, 2))
    frozen = nn.Linear(8, 2).requires_grad_(False)
    with pytest.raises(fleet.PlanError, match="no parameter that is trained"):
        fleet.distributed_model(frozen, sample=sample)
    strategy.auto_configs = {"allow": ["localsg"]}
    with pytest.raises(fleet.PlanError, match=r"names 'localsg', .* 'localsgd'"):
        fleet.distributed_model(nn.Linear(8, 2), sample=sample)
    other = fleet.DistributedStrategy()
    other.auto, other.auto_configs = True, {"cluster": str(TWO)}
    fleet.init(is_collective=True, strategy=other)
    with pytest.raises(fleet.PlanError, match="describes 2 devices, and 1 workers are here"):
        fleet.distributed_model(nn.Linear(8, 2), sample=sample)


@pytest.mark.usefixtures("alone")
def test_where_nothing_fits_it_says_by_how_much(machines: Any) -> None:
    begun(auto_configs={"cluster": machines(devices_per_node=1, memory_gigabytes=0.001)})
    with pytest.raises(
        fleet.PlanError, match=r"No plan fits: .* which has 1 MB, so .* are missing"
    ):
        fleet.distributed_model(nn.Linear(1024, 1024), sample=torch.zeros(4, 1024))


class Wide(nn.Module):
    """Keeps much for each sample, and little besides."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).sin().cos()
        return x


@pytest.mark.usefixtures("alone")
def test_batches_that_a_plan_cuts_are_dealt_out_or_refused(
    machines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """So little room that a batch must be cut in two, and a script that goes on as before."""
    samples = 4096
    data = torch.randn(2 * samples, 8)
    settings = {"recompute": False, "amp": False}
    cluster = machines(devices_per_node=1, memory_gigabytes=1.9e-3)
    strategy = begun(auto_configs={"cluster": cluster}, **settings)
    model = Wide()
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    with caplog.at_level(logging.WARNING):
        model = fleet.distributed_model(model, sample=data[:samples])
    assert "gradient_merge (k_steps 2)" in caplog.text
    with pytest.raises(ValueError, match="in force already"):
        strategy.amp = True
    with pytest.raises(fleet.PlanError, match=r"batches of 2048 samples, .* first batch has 4096"):
        model(data[:samples])
    loader = fleet.distributed_loader(DataLoader(TensorDataset(data), batch_size=samples))
    sizes = []
    for (batch,) in loader:
        sizes.append(len(batch))
        optimizer.minimize(model(batch).square().mean())
    assert sizes == [samples // 2] * 4


def test_every_rank_hears_of_a_search_that_fails() -> None:
    def job() -> str:
        fleet.init(is_collective=True)
        strategy = fleet.DistributedStrategy()
        strategy.auto, strategy.auto_configs = True, {"cluster": str(TWO)}
        fleet.init(is_collective=True, strategy=strategy)
        with pytest.MonkeyPatch.context() as patch:
            if roles.worker_index() == 0:
                patch.setattr(search.Search, "best", _broken)
            with pytest.raises((RuntimeError, fleet.PlanError)) as raised:
                fleet.distributed_model(nn.Linear(4, 2), sample=torch.zeros(2, 4))
        return str(raised.value)

    assert world(2).run(job) == ["no way", "no way"]


def _broken(self: Any, count: int = 0) -> Any:
    raise RuntimeError("no way")
