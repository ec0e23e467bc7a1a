"""A captured step does what the usual one does; on a CPU with a stand-in for CUDA's recorder."""

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fleetx as fleet
from fleetx import DistributedStrategy, PlanError
from fleetx.engine.engine import Engine
from fleetx.plan.compose import compose
from fleetx.plan.strategy import Strategy
from fleetx.record.error import ProgramError
from fleetx.static.run.single_worker import LoneMesh
from fleetx.static.run.training_run import running
from fleetx.strategies.cuda_graph import CudaGraph
from fleetx.testing import world
from tests.strategies.stand_in_recorder import StandInRecorder

HAS_GPU = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
DEVICES = ["cpu", *(["cuda"] if HAS_GPU else [])]
BATCHES = 9
Settings = dict[str, Any]

AMP: Settings = {"amp": True, "amp_configs": {"init_loss_scaling": 1024.0}}
RECOMPUTE: Settings = {"recompute": True, "recompute_configs": {"checkpoints": ["1", "2"]}}
MERGE: Settings = {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 3}}
CLIP: Settings = {"clip": True, "clip_configs": {"limit": 0.3}}
LARS: Settings = {"lars": True, "lars_configs": {"lars_coeff": 0.1}}
LAMB: Settings = {"lamb": True}
COMPANY: dict[str, Settings] = {
    "alone": {},
    "amp": AMP,
    "clip": CLIP,
    "gradient_merge": MERGE,
    "lamb": LAMB,
    "lars": LARS,
    "recompute": RECOMPUTE,
    "amp, recompute and lars": AMP | RECOMPUTE | LARS,
    "all": AMP | RECOMPUTE | LARS | MERGE | CLIP,
    "all with lamb": AMP | RECOMPUTE | LAMB | MERGE | CLIP,
}


def net(middle: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    # No bias lies before a batch norm: its gradient is nothing but rounding errors.
    block = nn.Sequential(nn.ReLU(), nn.Linear(32, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU())
    return nn.Sequential(nn.Linear(8, 32), block, middle or nn.Linear(32, 32), nn.Linear(32, 4))


def batches(sizes: list[int], device: str) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(size, 8, generator=generator).to(device),
            torch.randint(0, 4, (size,), generator=generator).to(device),
        )
        for size in sizes
    ]


class Training:
    """One worker's job, captured or not."""

    def __init__(
        self,
        device: str,
        settings: Settings,
        *,
        captured: bool = True,
        options: Settings | None = None,
        model: nn.Module | None = None,
        criterion: Callable[[Any, Any], Tensor] = functional.cross_entropy,
        rule: Callable[..., torch.optim.Optimizer] | None = None,
    ) -> None:
        strategy = DistributedStrategy()
        for name, value in settings.items():
            setattr(strategy, name, value)
        strategy.cuda_graph = captured
        if captured:
            setattr(strategy, "cuda_graph_configs", {"warmup": 2, **(options or {})})  # noqa: B010
        self.model = model or net()
        self.plan = compose(strategy.request(), 1)
        given = rule or (_adam if "lamb" in settings else _sgd)
        with pytest.MonkeyPatch.context() as patch:
            if device == "cpu":
                patch.setattr(CudaGraph, "model", Strategy.model)
                patch.setattr("fleetx.strategies.cuda_graph.strategy.Recorder", StandInRecorder)
            self.engine = Engine(
                self.plan,
                self.model,
                device=torch.device(device),
                mesh=LoneMesh(),
                criterion=criterion,
            )
            self.optimizer = self.engine.attach(given(self.model.parameters()))
        if captured:
            self.recorder = self._run.recorder
            self.recorder.engine = self.engine

    def weights(self) -> Tensor:
        return torch.cat([p.detach().double().flatten().cpu() for p in self.model.parameters()])

    def everything(self) -> Tensor:
        buffers = [b.detach().double().flatten().cpu() for b in self.model.buffers()]
        return torch.cat([self.weights(), *buffers])

    def losses(self, given: list[tuple[Tensor, Tensor]]) -> list[float]:
        return [float(self.engine.train_batch(batch)) for batch in given]

    @property
    def _run(self) -> Any:
        return self.engine.step.drive.__self__  # type: ignore[union-attr]

    def graphs(self) -> list[Any]:
        return [kind.captured for kind in self._run.kinds.values() if kind.captured is not None]


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def _adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def assert_same(ours: Training, usual: Training, rtol: float = 1e-5) -> None:
    moved = (usual.everything() - Training("cpu", {}, captured=False).everything()).norm()
    assert float((ours.everything() - usual.everything()).norm()) <= rtol * float(moved)


def rounding(device: str, settings: Settings) -> float:
    """What two runs on a GPU may differ by, relative to how far they went.

    Fused rules round in another order, products of 16 bits pass that on, and Adam's kind of rule
    turns a gradient that is nothing but rounding into a whole step.
    """
    if device == "cpu":
        return 1e-5
    return (5e-2 if "lamb" in settings else 5e-3) if "amp" in settings else 1e-4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("company", COMPANY)
def test_a_captured_step_moves_as_the_usual_one(company: str, device: str) -> None:
    settings, given = COMPANY[company], batches([8] * 12, device)
    ours, usual = (Training(device, settings, captured=flag) for flag in (True, False))
    found, expected = ours.losses(given), usual.losses(given)
    rtol = rounding(device, settings)
    assert found == pytest.approx(expected, rel=rtol)
    assert_same(ours, usual, rtol=rtol)
    merged = settings.get("gradient_merge", False)
    assert len(ours.graphs()) == (3 if merged else 1), "first, middle and last of a group"
    if device == "cpu":
        replays = [recording.replays for recording in ours.recorder.made]
        # Of 12 batches, or 4 groups, the first two are as usual.
        assert replays == ([2, 2, 2] if merged else [10])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "rule", ["lars", "lamb", "fused", pytest.param("capturable", marks=needs_gpu)]
)
def test_the_device_skips_an_update_that_overflowed(rule: str, device: str) -> None:
    if rule == "capturable" and device == "cpu":
        return  # torch has no such form there
    rules: dict[str, Any] = {"fused": _adam, "capturable": torch.optim.RMSprop}
    settings = {**AMP, "amp_configs": {"init_loss_scaling": 1024.0, "decr_every_n_nan_or_inf": 1}}
    settings |= {rule: True} if rule not in rules else {}
    given = batches([8] * 10, device)
    given[6] = (given[6][0] * float("inf"), given[6][1])
    outcomes = []
    for captured in (True, False):
        # Without batch norm, whose running statistics would not survive.
        body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
        torch.manual_seed(0)
        for layer in body:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        chosen = rules.get(rule, _adam if rule == "lamb" else _sgd)
        training = Training(device, settings, captured=captured, model=body, rule=chosen)
        training.losses(given[:6])
        before = training.weights()
        training.losses(given[6:7])
        assert torch.equal(training.weights(), before), "the update was skipped"
        training.losses(given[7:])
        assert not torch.equal(training.weights(), before)
        amp = next(s for s in training.plan.strategies if s.name == "amp")
        outcomes.append((training.weights(), float(amp.state_dict()["scale"])))
        if captured:
            assert len(training.graphs()) == 1
    (ours, our_scale), (usual, usual_scale) = outcomes
    assert our_scale == usual_scale == 512.0
    rtol = rounding(device, {"amp": True, "lamb": True})
    assert float((ours - usual).norm()) <= rtol * float((usual - before).norm())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("settings", [{}, LARS, LAMB], ids=["sgd", "lars", "lamb"])
def test_a_schedule_of_the_learning_rate_acts(settings: Settings, device: str) -> None:
    given, ends = batches([8] * 9, device), []
    for captured in (True, False):
        training = Training(device, settings, captured=captured)
        schedule = torch.optim.lr_scheduler.StepLR(training.optimizer, 1, gamma=0.5)
        for batch in given:
            training.engine.train_batch(batch)
            schedule.step()
        assert isinstance(training.optimizer.param_groups[0]["lr"], float)
        ends.append(training.weights())
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-6)
    constant = Training(device, settings)
    constant.losses(given)
    assert float((constant.weights() - ends[0]).norm()) > 1e-3


@pytest.mark.parametrize("device", DEVICES)
def test_other_shapes_are_captured_up_to_a_limit_and_then_run_as_usual(
    device: str, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = [8, 8, 8, 4, 4, 4, 8, 5, 5, 5, 6, 8, 4]
    given = batches(sizes, device)
    ours = Training(device, AMP | LARS, options={"max_graphs": 2})
    usual = Training(device, AMP | LARS, captured=False)
    with caplog.at_level(logging.INFO, logger="fleetx"):
        ours.losses(given)
    usual.losses(given)
    assert_same(ours, usual, rtol=rounding(device, AMP))
    assert len(ours.graphs()) == 2
    said = [record.getMessage() for record in caplog.records]
    assert sum("captured the step" in line for line in said) == 2
    assert sum("run uncaptured" in line for line in said) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_another_shape_in_the_middle_of_a_group_keeps_its_gradients(device: str) -> None:
    # Groups of three: whole ones until all is captured, then mixed ones.
    sizes = [8] * 9 + [8, 4, 8] + [4, 8, 8] + [8, 8, 4] + [8, 8, 8]
    given = batches(sizes, device)
    ours, usual = Training(device, MERGE), Training(device, MERGE, captured=False)
    ours.losses(given)
    usual.losses(given)
    assert_same(ours, usual, rtol=1e-5 if device == "cpu" else 1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_state_that_is_loaded_is_captured_anew(device: str) -> None:
    given = batches([8] * 12, device)
    ours, usual = Training(device, LAMB), Training(device, LAMB, captured=False)
    for training in (ours, usual):
        training.losses(given[:6])
        state = training.optimizer.state_dict()
        training.losses(given[6:7])
        training.optimizer.load_state_dict(state)
        training.losses(given[7:])
    assert_same(ours, usual, rtol=1e-5 if device == "cpu" else 1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_an_option_of_the_optimizer_that_changes_is_obeyed(device: str) -> None:
    given = batches([8] * 8, device)
    ours, usual = Training(device, {}), Training(device, {}, captured=False)
    for training in (ours, usual):
        training.losses(given[:4])
        training.optimizer.param_groups[0]["weight_decay"] = 0.5
        training.losses(given[4:])
    assert_same(ours, usual, rtol=1e-5 if device == "cpu" else 1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_the_order_of_options_makes_no_other_kind(device: str) -> None:
    """It may come from a set of names, whose order is another one in each worker."""
    training = Training(device, LARS)
    training.losses(batches([8] * 4, device))
    (group,) = training.optimizer.param_groups
    for name in sorted(group):
        group[name] = group.pop(name)
    training.losses(batches([8] * 4, device))
    assert len(training._run.kinds) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_the_host_acts_around_each_recorded_step(device: str) -> None:
    training, seen = Training(device, {}), list[int]()

    @contextmanager
    def around() -> Iterator[None]:
        seen.append(len(training.graphs()))
        yield

    training.engine.job.around_recorded.append(around)
    training.losses(batches([8] * 6, device))
    assert seen == [0, 1, 1, 1], "two ran as usual, and the third was recorded and replayed"


@pytest.mark.parametrize("device", DEVICES)
def test_losses_are_the_users_own(device: str) -> None:
    training = Training(device, {})
    kept = [training.engine.train_batch(batch) for batch in batches([8] * 6, device)]
    assert len({float(loss) for loss in kept}) == 6


@needs_gpu
def test_replays_draw_new_random_numbers() -> None:
    training = Training("cuda", {}, model=net(nn.Dropout(0.5)), rule=_still)
    (batch,) = batches([8], "cuda")
    losses = training.losses([batch] * 8)
    assert len(set(losses[3:])) == 5


@needs_gpu
def test_random_numbers_inside_of_a_replayed_segment_are_refused() -> None:
    training = Training("cuda", RECOMPUTE, model=net(nn.Sequential(nn.Dropout(0.5))))
    with pytest.raises(PlanError, match="'2', which draws random numbers"):
        training.losses(batches([8] * 4, "cuda"))


@needs_gpu
def test_a_step_that_waits_for_the_device_is_refused() -> None:
    def criterion(outputs: Tensor, targets: Tensor) -> Tensor:
        loss = functional.cross_entropy(outputs, targets)
        return loss * 2 if loss.item() > 1e9 else loss

    training = Training("cuda", {}, criterion=criterion)
    with pytest.raises(PlanError, match=r"of test_cuda_graph.py: return loss \* 2 if loss.item"):
        training.losses(batches([8] * 4, "cuda"))
    assert torch.rand(3, device="cuda").unique().numel() == 3  # the process may go on without it


def test_the_line_at_which_a_recording_breaks_off_is_named() -> None:
    def criterion(outputs: Tensor, targets: Tensor) -> Tensor:
        if training.recorder.active:
            raise RuntimeError("cannot copy from the host")
        return functional.cross_entropy(outputs, targets)

    training = Training("cpu", {}, criterion=criterion)
    line = r"copy from the host. That is line \d+ of test_cuda_graph.py: raise RuntimeError\("
    with pytest.raises(PlanError, match=line):
        training.losses(batches([8] * 4, "cpu"))


def _still(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.0)


@world(1)
def test_a_cpu_is_refused_with_the_reason() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.cuda_graph = True
    fleet.init(is_collective=True, strategy=strategy)
    with pytest.raises(PlanError, match=r"on a CPU: CUDA graphs are a feature of NVIDIA GPUs"):
        fleet.distributed_model(net())


def test_an_optimizer_that_asks_the_device_is_refused() -> None:
    with pytest.raises(PlanError, match="SparseAdam has neither a fused nor a capturable form"):
        Training(DEVICES[-1], {}, rule=torch.optim.SparseAdam)


@pytest.mark.parametrize("device", DEVICES)
def test_a_loop_that_hides_the_step_is_refused(device: str) -> None:
    training = Training(device, {})
    inputs, targets = batches([8], device)[0]
    training.engine.backward(functional.cross_entropy(training.model(inputs), targets))
    with pytest.raises(PlanError, match="train_batch"):
        training.engine.finish()


def program(captured: bool) -> tuple[list[list[float]], int]:
    """What a static program returns that fetches other things from its fifth run on."""
    strategy = fleet.DistributedStrategy()
    strategy.cuda_graph = captured
    fleet.init(is_collective=True, strategy=strategy)
    main, startup = fleet.static.Program(), fleet.static.Program()
    torch.manual_seed(0)
    with fleet.static.program_guard(main, startup):
        x, y = fleet.static.data("x", [-1, 8]), fleet.static.data("y", [-1, 1])
        hidden = fleet.static.nn.fc(x, 16, activation="relu")
        scores = fleet.static.nn.fc(hidden, 1)
        loss = ((scores - y) ** 2).mean()
        rule = fleet.static.Optimizer(torch.optim.SGD, lr=0.1, momentum=0.9)
        fleet.distributed_optimizer(rule).minimize(loss)
    executor, found = fleet.static.Executor(), []
    executor.run(startup)
    generator, recorder = torch.Generator().manual_seed(0), None
    for at in range(12):
        feed = {"x": torch.randn(4, 8, generator=generator).numpy()}
        feed["y"] = feed["x"].sum(1, keepdims=True)
        fetched = executor.run(main, feed=feed, fetch_list=[loss] if at < 5 else [loss, scores])
        found.append([float(value) for part in fetched for value in part.flatten()])
        if captured and recorder is None:
            engine = running(main, torch.device("cpu")).engine
            recorder = engine.step.drive.__self__.recorder  # type: ignore[union-attr]
            recorder.engine = engine
    return found, len(recorder.made) if recorder else 0


def both_programs() -> list[tuple[list[list[float]], int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CudaGraph, "model", Strategy.model)
        patch.setattr("fleetx.strategies.cuda_graph.strategy.Recorder", StandInRecorder)
        captured = program(True)
    gc.collect()
    return [captured, program(False)]


def test_a_static_program_is_captured_for_each_list_of_fetches() -> None:
    (((ours, made), (usual, _)),) = world(1).run(both_programs)
    assert made == 2
    for mine, expected in zip(ours, usual, strict=True):
        assert mine == pytest.approx(expected, rel=1e-5)


@world(1)
def test_gradients_of_a_captured_program_cannot_be_fetched() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CudaGraph, "model", Strategy.model)
        patch.setattr("fleetx.strategies.cuda_graph.strategy.Recorder", StandInRecorder)
        strategy = fleet.DistributedStrategy()
        strategy.cuda_graph = True
        fleet.init(is_collective=True, strategy=strategy)
        main, startup = fleet.static.Program(), fleet.static.Program()
        with fleet.static.program_guard(main, startup):
            x = fleet.static.data("x", [-1, 8])
            loss = fleet.static.nn.fc(x, 1).mean()
            rule = fleet.static.Optimizer(torch.optim.SGD, lr=0.1)
            fleet.distributed_optimizer(rule).minimize(loss)
        executor = fleet.static.Executor()
        executor.run(startup)
        wanted, feed = f"{main.all_parameters()[0].name}@GRAD", {"x": torch.ones(2, 8).numpy()}
        with pytest.raises(ProgramError, match="uses its gradients up"):
            executor.run(main, feed=feed, fetch_list=[wanted])
