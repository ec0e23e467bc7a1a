"""Compile: the same training from compiled code, and proof that it is compiled."""

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

import fleetx as fleet
from fleetx import DistributedStrategy, PlanError
from fleetx.engine.engine import Engine
from fleetx.plan.compose import compose
from fleetx.static.run.single_worker import LoneMesh
from fleetx.testing import world
from tests.rotation import by_turns, rotating

Settings = dict[str, Any]
SEEN: list[list[str]] = []
"""For every graph that was compiled, what it calls."""
TOLD: list[float] = []


def look(module: fx.GraphModule, inputs: Any) -> Any:
    SEEN.append([str(node.target) for node in module.graph.nodes if node.op == "call_function"])
    return torch._dynamo.lookup_backend("aot_eager")(module, inputs)


torch._dynamo.register_backend(look, name="fleetx_look")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    SEEN.clear()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def graphs(*, of_criterion: bool = False) -> list[list[str]]:
    """Those of the criterion, or those of the model."""
    return [calls for calls in SEEN if ("cross_entropy" in "".join(calls)) is of_criterion]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    block = nn.Sequential(nn.ReLU(), nn.Linear(32, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU())
    return nn.Sequential(nn.Linear(8, 32), block, nn.Linear(32, 4))


def train(
    settings: Settings,
    sizes: list[int],
    *,
    compiled: bool = True,
    model: nn.Module | None = None,
    criterion: Any = functional.cross_entropy,
    criterion_compiled: bool = True,
    **given: Any,
) -> Engine:
    strategy = DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    strategy.compile = compiled
    if compiled:
        given = {"backend": "fleetx_look", "criterion": criterion_compiled, **given}
        setattr(strategy, "compile_configs", given)  # noqa: B010
    engine = Engine(
        compose(strategy.request(), 1),
        net() if model is None else copy.deepcopy(model),
        device=torch.device("cpu"),
        mesh=LoneMesh(),
        criterion=criterion,
    )
    engine.attach(torch.optim.SGD(engine.job.model.parameters(), lr=0.1, momentum=0.9))
    generator = torch.Generator().manual_seed(1)
    for size in sizes:
        inputs = torch.randn(size, 8, generator=generator)
        engine.train_batch((inputs, torch.randint(0, 4, (size,), generator=generator)))
    return engine


def everything(engine: Engine) -> Tensor:
    return torch.cat([value.double().flatten() for value in engine.job.model.state_dict().values()])


RECOMPUTE: Settings = {"recompute": True, "recompute_configs": {"checkpoints": ["1"]}}
OFFLOAD: Settings = {
    "recompute": True,
    "recompute_configs": {"checkpoints": ["1"], "enable_offload": True},
}
COMPANY: dict[str, Settings] = {
    "alone": {},
    "amp": {"amp": True, "amp_configs": {"dtype": "bfloat16"}},
    "amp, pure": {"amp": True, "amp_configs": {"use_pure_bf16": True}},
    "amp with a list": {
        "amp": True,
        "amp_configs": {"dtype": "bfloat16", "custom_black_list": ["linear"]},
    },
    "recompute": RECOMPUTE,
    "recompute and amp": RECOMPUTE | {"amp": True, "amp_configs": {"dtype": "bfloat16"}},
    "gradient_merge": {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 2}},
}


@pytest.mark.parametrize("company", rotating(list(COMPANY), 2))
def test_compiled_code_trains_as_the_model_does(company: str) -> None:
    settings = COMPANY[company]
    ours = train(settings, [6] * 4)
    assert SEEN, "something was compiled"
    usual = train(settings, [6] * 4, compiled=False)
    moved = everything(usual) - everything(train(settings, [], compiled=False))
    # In 16 bits the compiler may keep more digits between two operations.
    rtol = 2e-2 if "amp" in settings else 1e-5
    distance = float((everything(ours) - everything(usual)).norm())
    assert distance <= rtol * float(moved.norm())


def test_a_shape_is_compiled_once_and_another_one_again() -> None:
    for sizes, times in (([6] * 5, 1), ([6, 6, 4, 6, 4], 2)):
        train({}, sizes)
        assert len(graphs()) == len(graphs(of_criterion=True)) == times
        assert len(SEEN) == 2 * times
        SEEN.clear()
        torch._dynamo.reset()


def test_a_criterion_that_cannot_be_one_piece_is_compiled_in_several() -> None:
    def criterion(scores: Tensor, labels: Tensor) -> Tensor:
        loss = functional.cross_entropy(scores, labels)
        TOLD.append(loss.item())
        return loss * 2

    TOLD.clear()
    ours = train({}, [6] * 3, criterion=criterion, fullgraph=True)
    told = list(TOLD)
    usual = train({}, [6] * 3, criterion=criterion, compiled=False)
    assert graphs(of_criterion=True)
    assert told == pytest.approx(TOLD[3:])
    torch.testing.assert_close(everything(ours), everything(usual), rtol=1e-5, atol=1e-6)


def test_small_kernels_are_put_together_if_inductor_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = list[dict[str, Any]]()

    def compiled(function: Any, **given: Any) -> Any:
        told.append(given)
        return function

    monkeypatch.setattr(torch, "compile", compiled)
    train({}, [6], backend="inductor", combo_kernels=True)
    assert len(told) == 2
    assert all(given["options"] == {"combo_kernels": True} for given in told)
    assert all("mode" not in given for given in told)
    others: list[Settings] = [{"backend": "fleetx_look"}, {"mode": "max-autotune-no-cudagraphs"}]
    for other in others:
        with pytest.raises(PlanError, match=r"combo_kernels.*is an option of inductor"):
            train({}, [6], combo_kernels=True, **{"backend": "inductor", **other})


class Block(nn.Module):
    """Two layers and a way past them."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, inner), nn.Linear(inner, 16)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.down(self.up(x).relu())
        return found


class Tower(nn.Module):
    """Blocks between a stem and a head; the loop is the model's own."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
        self.blocks = nn.ModuleList(Block(inner) for inner in sizes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.head(x)
        return found


@pytest.mark.parametrize(
    "settings", [{}, {"recompute": True, "recompute_configs": {"checkpoints": ["blocks.*.down"]}}]
)
def test_twenty_four_blocks_are_compiled_as_often_as_two(settings: Settings) -> None:
    made = []
    for number in (2, 24):
        ours = train(settings, [6] * 2, model=Tower([32] * number))
        made.append(len(graphs()))
        SEEN.clear()
        torch._dynamo.reset()
        usual = train(settings, [6] * 2, model=Tower([32] * number), compiled=False)
        torch.testing.assert_close(everything(ours), everything(usual), rtol=1e-5, atol=1e-6)
    assert made == [1, 1]


def test_blocks_of_many_sizes_do_not_push_each_other_out() -> None:
    sizes = list(range(16, 28))  # more than torch keeps for one piece of code
    engine = train({}, [6], model=Tower(sizes), unit="block")
    assert len(graphs()) == len(sizes)
    for _ in range(2):
        engine.train_batch((torch.randn(6, 8), torch.randint(0, 4, (6,))))
    assert len(graphs()) == len(sizes)


def test_a_model_of_few_blocks_of_a_kind_is_one_piece_unless_blocks_are_asked_for() -> None:
    sizes = [16, 16, 20, 20]
    for unit, number in (("auto", 1), ("block", 2), ("model", 1)):
        train({}, [6] * 2, model=Tower(sizes), unit=unit)
        assert len(graphs()) == number
        SEEN.clear()
        torch._dynamo.reset()
    train({}, [6] * 2, model=Tower([16] * 4), unit="model")
    assert len(graphs()) == 1
    assert sum("linear" in call for call in graphs()[0]) == 2 + 4 * 2


def as_one_piece(replayed: bool, compiled: bool) -> tuple[list[float], int]:
    """Losses of a worker whose model has several buckets of gradients, and its graphs."""
    SEEN.clear()
    torch._dynamo.reset()
    strategy = DistributedStrategy()
    strategy.fuse_grad_size_in_MB = 1
    strategy.compile = compiled
    if compiled:
        given = {"backend": "fleetx_look", "unit": "model"}
        setattr(strategy, "compile_configs", given)  # noqa: B010
    if replayed:
        strategy.recompute = True
        strategy.recompute_configs = {"checkpoints": ["blocks.*"]}
    fleet.init(is_collective=True, strategy=strategy)
    model: Any = fleet.distributed_model(
        Tower([4096] * 4).double(), criterion=functional.cross_entropy
    )
    fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    generator = torch.Generator().manual_seed(fleet.worker_index())
    losses = []
    for _ in range(3):
        x = torch.randn(6, 8, generator=generator, dtype=torch.double)
        losses.append(float(model.train_batch((x, torch.randint(0, 4, (6,), generator=generator)))))
    return losses, len(graphs())


@pytest.mark.parametrize("replayed", [False, True])
def test_workers_compile_a_model_as_a_whole_and_exchange_gradients_meanwhile(
    replayed: bool,
) -> None:
    usual = world(2, timeout=200).run(as_one_piece, replayed, False)
    found = world(2, timeout=200).run(as_one_piece, replayed, True)
    for (losses, pieces), (expected, _) in zip(found, usual, strict=True):
        assert losses == pytest.approx(expected)
        assert pieces > 2, "torch cuts the code where a bucket of gradients is full"


def test_units_that_cannot_be_are_refused_with_the_reason() -> None:
    with pytest.raises(PlanError, match="'block' cannot be in force: the model repeats no block"):
        train({}, [6], unit="block")
    for others in ({"sharding": True}, {"pipeline": True, "pipeline_configs": {"split": ["1"]}}):
        strategy = DistributedStrategy()
        strategy.compile = True
        strategy.compile_configs = {"unit": "model"}
        for name, value in others.items():
            setattr(strategy, name, value)
        with pytest.raises(PlanError, match="'model' cannot be in force"):
            compose(strategy.request(), 2)


@pytest.mark.parametrize("told", [True, False])
def test_a_criterion_that_differentiates_is_refused_unless_it_is_left_alone(told: bool) -> None:
    def criterion(scores: Tensor, labels: Tensor) -> Tensor:
        loss = functional.cross_entropy(scores, labels)
        (slope,) = torch.autograd.grad(loss, scores, create_graph=True)
        return loss + slope.square().sum()

    if told:
        ours = train({}, [6] * 3, criterion=criterion, criterion_compiled=False)
        usual = train({}, [6] * 3, criterion=criterion, compiled=False)
        torch.testing.assert_close(everything(ours), everything(usual), rtol=1e-5, atol=1e-6)
    else:
        with pytest.raises(PlanError, match=r"Set compile_configs\['criterion'\] to False"):
            train({}, [6] * 3, criterion=criterion)


class Later(nn.Module):
    """A criterion with a penalty of gradients from its third batch on."""

    def __init__(self, batches: int = 0) -> None:
        super().__init__()
        self.batches = batches

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        self.batches += 1
        loss = functional.cross_entropy(scores, labels)
        if self.batches <= 2:
            return loss
        (slope,) = torch.autograd.grad(loss, scores, create_graph=True)
        return loss + slope.square().sum()


def test_a_criterion_that_differentiates_later_is_refused_then() -> None:
    train({}, [6] * 2, criterion=Later())
    with pytest.raises(PlanError, match=r"Set compile_configs\['criterion'\] to False"):
        train({}, [6] * 3, criterion=Later())


def test_nothing_is_recorded_before_the_criterion_is_code() -> None:
    engine = train({}, [6])
    assert not all(ask() for ask in engine.job.recordable)
    engine.train_batch((torch.randn(6, 8), torch.randint(0, 4, (6,))))
    assert all(ask() for ask in engine.job.recordable)


def goes_on(saved: Any, criterion: Any = functional.cross_entropy) -> Engine:
    engine = train({}, [], criterion=criterion)
    assert engine.job.optimizer is not None
    engine.job.optimizer.load_state_dict(saved)
    engine.train_batch((torch.randn(6, 8), torch.randint(0, 4, (6,))))
    return engine


def test_a_job_that_goes_on_has_looked_at_its_criterion_before() -> None:
    """What the plain one keeps would lie beside the optimizer's state, which a new job lacks."""
    first = train({}, [6]).job.optimizer
    assert first is not None
    saved = first.state_dict()
    assert all(ask() for ask in goes_on(saved).job.recordable)
    with pytest.raises(PlanError, match=r"Set compile_configs\['criterion'\] to False"):
        goes_on(saved, Later(batches=2))


def test_copies_of_blocks_are_those_of_the_model() -> None:
    engine = train({}, [6], model=Tower([16] * 3))
    model, inputs = engine.job.model, torch.randn(5, 8)
    assert isinstance(model, Tower)
    SEEN.clear()
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    found = [plain(inputs) for plain in copies]
    assert not SEEN, "copies run no compiled code"
    for output in found:
        torch.testing.assert_close(output, model(inputs))
    assert SEEN, "and the model does, for a new shape"
    nn.init.zeros_(model.get_submodule("blocks.0.down").get_parameter("weight"))
    torch.testing.assert_close(copies[0](inputs), found[0])


def test_free_shapes_share_their_code() -> None:
    train({}, [6, 4, 5, 7, 9, 10], dynamic=True)
    assert len(graphs()) <= 2


def test_recompute_is_part_of_the_compiled_code() -> None:
    train(RECOMPUTE, [6] * 2)
    assert any("checkpoint" in call for calls in SEEN for call in calls)


@pytest.mark.parametrize("other", ["compile", "cuda_graph"])
def test_inputs_that_wait_on_the_host_are_refused_with_the_reason(other: str) -> None:
    strategy = DistributedStrategy()
    for name, value in OFFLOAD.items():
        setattr(strategy, name, value)
    setattr(strategy, other, True)
    with pytest.raises(PlanError, match=r"recompute_configs\['enable_offload'\] lets inputs wait"):
        compose(strategy.request(), 1)


@by_turns(0, of=3)  # torch's compiler of C++ costs more than all the rest of this file
def test_the_default_backend_makes_real_code() -> None:
    ours = train({}, [6] * 3, backend="inductor")
    usual = train({}, [6] * 3, compiled=False)
    torch.testing.assert_close(everything(ours), everything(usual), rtol=1e-4, atol=1e-5)


def test_evaluation_and_copies_are_those_of_the_model() -> None:
    engine = train({}, [6] * 2)
    inputs = torch.randn(5, 8)
    model = engine.job.model
    found = engine.eval_batch(inputs)
    plain = copy.deepcopy(model).eval()
    assert not hasattr(plain.forward, "_call")
    torch.testing.assert_close(found, plain(inputs).detach())
    assert list(model.state_dict()) == list(net().state_dict())


def test_a_break_is_refused_when_one_piece_is_asked_for() -> None:
    class Breaks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            torch._dynamo.graph_break()
            return x

    broken = nn.Sequential(nn.Linear(8, 4), Breaks())
    assert float(everything(train({}, [6], model=broken)).sum()) != 0
    torch._dynamo.reset()  # or it would run what it has compiled in pieces
    with pytest.raises(torch._dynamo.exc.Unsupported):
        train({}, [6], model=broken, fullgraph=True)


def test_a_backward_that_is_taken_apart_is_refused_with_the_reason() -> None:
    strategy = DistributedStrategy()
    strategy.compile = strategy.pipeline = True
    strategy.pipeline_configs = {"split": ["1"], "schedule_mode": "zero-bubble"}
    with pytest.raises(PlanError, match="compiled code computes both in one piece"):
        compose(strategy.request(), 2)


def test_a_replay_of_cut_layers_is_refused_with_the_reason() -> None:
    strategy = DistributedStrategy()
    for name, value in RECOMPUTE.items():
        setattr(strategy, name, value)
    strategy.compile = strategy.tensor_parallel = True
    strategy.tensor_parallel_configs = {"tensor_parallel_degree": 2, "column": ["0"]}
    with pytest.raises(PlanError, match="lets the compiler replay what recompute names"):
        compose(strategy.request(), 2)


def program_losses(compiled: bool) -> list[float]:
    strategy = fleet.DistributedStrategy()
    strategy.compile = compiled
    if compiled:
        strategy.compile_configs = {"backend": "aot_eager"}
    fleet.init(is_collective=True, strategy=strategy)
    main, startup = fleet.static.Program(), fleet.static.Program()
    with fleet.static.program_guard(main, startup):
        x = fleet.static.data("x", [None, 8])
        torch.manual_seed(0)
        hidden = nn.Linear(8, 16)(x).relu()
        hidden.name = "hidden"
        loss = nn.Linear(16, 1)(hidden).square().mean()
        optimizer = fleet.static.Optimizer(torch.optim.SGD, lr=0.1)
        fleet.distributed_optimizer(optimizer).minimize(loss)
    executor = fleet.static.Executor()
    executor.run(startup)
    generator = torch.Generator().manual_seed(1)
    found = []
    for step in range(6):
        feed = {"x": torch.randn(4, 8, generator=generator)}
        # Another list of fetches is another form of the same program.
        fetched = executor.run(main, feed, [loss] if step % 2 else [loss, hidden])
        found += [float(value.sum()) for value in fetched]
    return found


def test_a_static_program_with_changing_fetches_is_compiled_rightly() -> None:
    (ours,), (usual,) = (world(1, timeout=280).run(program_losses, flag) for flag in (True, False))
    assert ours == pytest.approx(usual, rel=1e-5)
    assert len(set(usual)) > 6
