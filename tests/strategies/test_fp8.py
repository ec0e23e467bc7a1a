"""fp8: models train in float8 in all company, on a CPU that is allowed to; on it as is, refused."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

import fleetx as fleet
from fleetx import DistributedStrategy, PlanError, roles, static
from fleetx.engine.engine import Engine
from fleetx.plan.compose import compose
from fleetx.plan.strategy import Strategy
from fleetx.static.run.single_worker import LoneMesh
from fleetx.strategies.cuda_graph import CudaGraph
from fleetx.testing import world
from tests.rotation import rotating
from tests.strategies.fp8.stand_in import device_is_allowed, multiplied, needs_kernel
from tests.strategies.stand_in_recorder import StandInRecorder

Settings = dict[str, Any]
BFLOAT: Settings = {"amp": True, "amp_configs": {"dtype": "bfloat16"}}
RECOMPUTE: Settings = {"recompute": True, "recompute_configs": {"checkpoints": ["body"]}}
COMPILE: Settings = {
    "compile": True,
    "compile_configs": {"backend": "aot_eager", "fullgraph": True},
}
WORDS = 32


class Net(nn.Module):
    """Words in, words out; its layers have the names that plans look for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.stem = nn.Embedding(WORDS, 32), nn.Linear(32, 32)
        self.body, self.norm = Body(), nn.LayerNorm(32)
        self.middle, self.head = nn.Linear(32, 32, bias=False), nn.Linear(32, WORDS)

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        x = self.body(self.stem(self.embed(tokens)))
        found: Tensor = self.head(self.middle(self.norm(x)))
        return found


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)

    @override
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.fc2(self.act(self.fc1(x)))
        return found


CHOSEN = ("body.fc1", "body.fc2", "middle")
"""All but the first and the last one."""


def criterion(outputs: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), tokens.flatten())


def batches(count: int, place: int = 0) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1 + place)
    for _ in range(count):
        yield torch.randint(0, WORDS, (4, 6), generator=generator)


def engine(settings: Settings, model: nn.Module, criterion: Any = criterion) -> Engine:
    """One worker's job on this CPU."""
    strategy = DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    with device_is_allowed():
        made = Engine(
            compose(strategy.request(), 1),
            model,
            device=torch.device("cpu"),
            mesh=LoneMesh(),
            criterion=criterion,
        )
    rule = torch.optim.Adam if "lamb" in settings else torch.optim.SGD
    made.attach(rule(model.parameters(), lr=0.01 if "lamb" in settings else 0.5))
    return made


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def trained(settings: Settings, updates: int = 4) -> tuple[Tensor, list[float]]:
    """How far a model went, and its losses."""
    if "compile" in settings:
        torch._dynamo.reset()
    model = Net()
    before, running = flat(model), engine(settings, model)
    losses = [float(running.train_batch((tokens, tokens))) for tokens in batches(updates)]
    return flat(model) - before, losses


def test_a_cpu_is_refused_before_the_first_batch() -> None:
    strategy = DistributedStrategy()
    strategy.fp8 = True
    fleet.init(is_collective=True, strategy=strategy)
    try:
        with pytest.raises(PlanError, match=r"strategy.fp8 = True cannot be in force here: a CPU"):
            fleet.distributed_model(Net())
    finally:
        roles.stop()


def test_so_is_an_older_card(monkeypatch: pytest.MonkeyPatch) -> None:
    from fleetx.graph.float8_devices import without_float8

    card = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert "NVIDIA A100 (compute capability 8.0) is older" in without_float8(card)
    for newer in ((9, 0), (10, 0), (12, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, it=newer: it)
        assert without_float8(card) == ""
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert "AMD" in without_float8(card)


def test_options_are_checked_when_they_are_assigned(tmp_path: Path) -> None:
    strategy = DistributedStrategy()
    with pytest.raises(ValueError, match="one of 'tensor', 'row'"):
        strategy.fp8_configs = {"scales": "block"}  # type: ignore[typeddict-item]
    strategy.fp8 = True
    strategy.fp8_configs = {"scales": "row", "layers": ["body.*"], "exclude": ["body.fc2"]}
    strategy.save_to_prototxt(tmp_path / "strategy.prototxt")
    other = DistributedStrategy()
    other.load_from_prototxt(tmp_path / "strategy.prototxt")
    assert other == strategy


@pytest.mark.parametrize("scales", ["tensor", "row"])
def test_a_model_learns_as_in_float32(scales: str) -> None:
    needs_kernel(by_row=scales == "row")
    with multiplied() as products:
        moved, losses = trained({"fp8": True, "fp8_configs": {"scales": scales}}, updates=12)
    assert len(products) == 12 * 3 * len(CHOSEN), "a forward and two gradients of each layer"
    usual, expected = trained({}, updates=12)
    assert losses == pytest.approx(expected, rel=0.05)
    assert losses[-1] < losses[0] / 2
    assert 0 < float((moved - usual).norm() / usual.norm()) < 0.3


def rare(company: str) -> Any:
    """Compiling takes its time; parts are compiled in fp8/test_products.py."""
    return pytest.param(company, marks=pytest.mark.rare)


EXACT: dict[str, Settings] = {
    "recompute": RECOMPUTE,
    "compile": COMPILE,
    "compile and recompute": COMPILE | RECOMPUTE,
}


@pytest.mark.parametrize("company", ["recompute", *map(rare, [*EXACT][1:])])
def test_what_changes_no_number_alone_changes_none_in_company(company: str) -> None:
    alone, losses = trained({"fp8": True})
    together, again = trained({"fp8": True, **EXACT[company]})
    assert again == pytest.approx(losses, rel=1e-6)
    assert float((together - alone).norm()) <= 1e-5 * float(alone.norm())


COMPANY: dict[str, Settings] = {
    "amp": BFLOAT,
    "amp in float16": {"amp": True},
    "amp, pure": {"amp": True, "amp_configs": {"use_pure_bf16": True}},
    "clip": {"clip": True, "clip_configs": {"limit": 0.3}},
    "gradient_merge": {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 2}},
    "lamb": {"lamb": True},
    "lars": {"lars": True, "lars_configs": {"lars_coeff": 0.1}},
    "amp, compile and recompute": BFLOAT | COMPILE | RECOMPUTE,
}


@pytest.mark.parametrize("company", [*rotating([*COMPANY][:-1], 4), rare([*COMPANY][-1])])
def test_company(company: str) -> None:
    settings = COMPANY[company]
    moved, losses = trained({"fp8": True, **settings})
    usual, expected = trained(settings)
    assert losses == pytest.approx(expected, rel=0.05)
    assert 0 < float((moved - usual).norm() / usual.norm()) < 0.3


@pytest.mark.parametrize("company", rotating([{}, BFLOAT, {"gradient_merge": True}], 3))
def test_a_captured_step_moves_as_the_usual_one(
    company: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, expected = trained({"fp8": True, **company}, updates=8)
    monkeypatch.setattr(CudaGraph, "model", Strategy.model)
    monkeypatch.setattr("fleetx.strategies.cuda_graph.strategy.Recorder", StandInRecorder)
    model = Net()
    before, running = flat(model), engine({"fp8": True, "cuda_graph": True, **company}, model)
    run: Any = running.step.drive.__self__  # type: ignore[union-attr]
    run.recorder.engine = running
    losses = [float(running.train_batch((tokens, tokens))) for tokens in batches(8)]
    assert any(kind.captured is not None for kind in run.kinds.values())
    assert losses == pytest.approx(expected, rel=1e-5)
    assert float((flat(model) - before - usual).norm()) <= 1e-5 * float(usual.norm())


def test_an_overflow_of_float16_is_seen_and_skipped() -> None:
    settings = {"fp8": True, "amp": True, "amp_configs": {"init_loss_scaling": 2.0**100}}
    moved, _ = trained(settings, updates=2)
    assert float(moved.norm()) == 0


def test_names_and_formats_of_a_checkpoint_are_those_of_the_plain_model() -> None:
    model = Net()
    running = engine({"fp8": True, **BFLOAT}, model)
    for tokens in batches(2):
        running.train_batch((tokens, tokens))
    state, plain = model.state_dict(), Net()
    assert [(name, t.dtype) for name, t in state.items()] == [
        (name, t.dtype) for name, t in plain.state_dict().items()
    ]
    plain.load_state_dict(state)
    other = Net()
    engine({"fp8": True}, other)
    other.load_state_dict(state)
    (tokens,) = batches(1)
    with torch.no_grad():
        exact, rounded = plain(tokens), other(tokens)
    assert 0 < float((exact - rounded).norm() / exact.norm()) < 0.1
    assert torch.equal(copy.deepcopy(other)(tokens), exact), "a copy belongs to no job"


class Tied(nn.Module):
    """Its head has the weight of the embedding, and its forward reads one of a layer itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.first = nn.Embedding(WORDS, 32), nn.Linear(32, 32)
        self.body, self.head = nn.Linear(32, 32), nn.Linear(32, WORDS, bias=False)
        self.head.weight = self.embed.weight

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        x = self.body(self.first(self.embed(tokens)))
        found: Tensor = self.head(x + F.linear(x, self.body.weight))
        return found


def test_tied_weights_and_weights_that_are_read_elsewhere() -> None:
    gradients = list[dict[str, Tensor]]()
    for settings in ({}, {"fp8": True, "fp8_configs": {"layers": ["body", "head"]}}):
        model = Tied()
        running = engine(settings, model)
        (tokens,) = batches(1)
        loss = criterion(running.job.model(tokens), tokens)
        loss.backward()
        found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        gradients.append(found)
    exact, rounded = gradients
    assert rounded.keys() == exact.keys()
    for name, gradient in exact.items():
        assert 0 < float((rounded[name] - gradient).norm() / gradient.norm()) < 0.15, name


def test_a_program_multiplies_in_float8() -> None:
    losses = [program_losses(on) for on in (False, True)]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def program_losses(on: bool) -> list[float]:
    static.reset()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(3)))
    x = static.data("x", [None, 32])
    loss = F.mse_loss(model(x), x)
    strategy = DistributedStrategy()
    strategy.fp8 = on
    fleet.init(is_collective=True, strategy=strategy)
    fleet.distributed_optimizer(static.Optimizer(torch.optim.SGD, lr=0.5)).minimize(loss)
    feed = {"x": torch.randn(8, 32, generator=torch.Generator().manual_seed(1)).numpy()}
    try:
        with device_is_allowed(), multiplied() as products:
            exe = static.Executor()
            found = [exe.run(feed=feed, fetch_list=[loss])[0] for _ in range(3)]
        assert len(products) == (9 if on else 0)
        return [float(one) for one in found]
    finally:
        roles.stop()
        static.reset()


SPREAD: dict[str, Settings] = {
    "sharding": {
        "sharding": True,
        "sharding_configs": {"stage": 3, "segment_broadcast_MB": 0.005},
    },
    "tensor_parallel": {
        "tensor_parallel": True,
        "tensor_parallel_configs": {"plan": "transformer", "tensor_parallel_degree": 2},
    },
    "pipeline": {
        "pipeline": True,
        "pipeline_configs": {"split": ["middle"], "accumulate_steps": 2},
        "hybrid_configs": {"pp_degree": 2},
    },
    "localsgd": {"localsgd": True, "localsgd_configs": {"k_steps": 2}},
    "fp16_allreduce": {"fp16_allreduce": True},
    "sharding 1, amp and recompute": {"sharding": True} | BFLOAT | RECOMPUTE,
    "tensor_parallel by position": {
        "tensor_parallel": True,
        "tensor_parallel_configs": {
            "tensor_parallel_degree": 2,
            "column": ["body.fc1"],
            "row": ["body.fc2"],
            "sequence": ["norm"],
        },
    },
    "tensor_parallel, amp and recompute": {
        "tensor_parallel": True,
        "tensor_parallel_configs": {"plan": "transformer", "tensor_parallel_degree": 2},
        **BFLOAT,
        **RECOMPUTE,
    },
}
SHARED = ("pipeline", "tensor_parallel")
"""Under which workers see the same batches."""


def on_each(settings: Settings) -> list[tuple[list[float], dict[str, Tensor], int]]:
    """Losses, whole weights and the number of products; of a run without fp8 and of one with it."""
    found = []
    for on in (False, True):
        strategy = DistributedStrategy()
        for name, value in settings.items():
            setattr(strategy, name, value)
        strategy.fp8 = on
        fleet.init(is_collective=True, strategy=strategy)
        shared = any(settings.get(name) for name in SHARED)
        place = 0 if shared else roles.worker_index()
        try:
            with device_is_allowed(), multiplied() as products:
                (sample,) = batches(1)
                model = fleet.distributed_model(Net(), criterion=criterion, sample=sample[:2])
                rule = torch.optim.SGD(model.parameters(), lr=0.5)
                fleet.distributed_optimizer(rule)
                given = batches(4, place)
                losses = [float(model.train_batch((tokens, tokens))) for tokens in given]
                state = {name: whole(t) for name, t in model.state_dict().items()}
        finally:
            roles.stop()
        found.append((losses, state, len(products)))
    return found


def whole(tensor: Any) -> Tensor:
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found.detach().clone()


@pytest.mark.parametrize("name", rotating([*SPREAD], 8))
def test_two_workers(name: str) -> None:
    multiplications = 0
    for plain, rounded in world(2).run(on_each, SPREAD[name]):
        assert plain[2] == 0
        multiplications += rounded[2]
        assert rounded[0] == pytest.approx(plain[0], rel=0.05)
        moved = torch.cat([(rounded[1][key] - plain[1][key]).flatten() for key in plain[1]])
        assert 0 < float(moved.norm()) < 0.5
    # Of four batches: on both workers, or of two micro-batches on one of them each.
    replayed = 2 if "recompute" in SPREAD[name] else 0
    first = 2 if name == "pipeline" else 0  # torch runs the first stage once to learn shapes
    assert multiplications - 4 * 2 * (3 * len(CHOSEN) + replayed) in {0, first}


def uneven() -> str:
    settings = {
        "fp8_configs": {"layers": ["body"]},
        "tensor_parallel": True,
        "tensor_parallel_configs": {"plan": "transformer", "tensor_parallel_degree": 4},
    }
    strategy = DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    strategy.fp8 = True
    fleet.init(is_collective=True, strategy=strategy)
    try:
        with device_is_allowed():
            net = Net()
            net.body.fc1, net.body.fc2 = nn.Linear(32, 32), nn.Linear(32, 32)
            model = fleet.distributed_model(net, criterion=criterion)
        fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.5))
        (tokens,) = batches(1)
        model.train_batch((tokens, tokens))
    except ValueError as error:
        return str(error)
    finally:
        roles.stop()
    return ""


@pytest.mark.rare
def test_parts_of_layers_that_are_too_small_stop_the_run() -> None:
    for said in world(4).run(uneven):
        assert "parts of 8 x 32" in said
        assert "fp8_configs['exclude']" in said
