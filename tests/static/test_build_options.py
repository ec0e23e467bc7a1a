"""Options about building and running: each acts, is the case anyway, or is refused."""

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx import PlanError, static
from fleetx.config.job_options import BuildConfig, ExecutionConfig
from fleetx.static.lower.build_options import Build, read
from fleetx.static.run.training_run import running
from fleetx.testing import world

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def trained(build: dict[str, Any], execution: dict[str, Any], steps: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    x, y = static.data("x", [None, 4]), static.data("y", [None], "int64")
    loss = F.cross_entropy(model(x), y)
    static.Optimizer(torch.optim.SGD, lr=0.5).minimize(loss)
    program = compiled(static.default_main_program(), build, execution)
    exe = static.Executor()
    feed = {"x": np.eye(4, dtype=np.float32), "y": np.array([0, 1, 1, 0])}
    for _ in range(steps):
        exe.run(program, feed, [loss])
    return model


def compiled(
    program: static.Program, build: dict[str, Any], execution: dict[str, Any]
) -> static.CompiledProgram:
    options, run = static.BuildStrategy(), static.ExecutionStrategy()
    options.update(build)
    run.update(execution)
    return static.CompiledProgram(program, options).with_data_parallel(exec_strategy=run)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_every_option_has_an_answer() -> None:
    """None may be known to the strategy and unknown here."""
    for block, kind in (("build", BuildConfig), ("execution", ExecutionConfig)):
        for name, value in kind().values().items():
            other: Any = {str: "/tmp/x.dot", int: 3, bool: value is False}[type(value)]
            refusal = refused(block, {name: other})
            assert refusal is None or f"{block}_strategy.{name}" in refusal


def refused(block: str, options: dict[str, Any]) -> str | None:
    try:
        read(*((options, {}) if block == "build" else ({}, options)), CPU)
    except PlanError as error:
        return str(error)
    return None


REFUSED: list[tuple[dict[str, Any], dict[str, Any], torch.device]] = [
    ({"reduce_strategy": 1}, {}, CPU),
    ({"enable_backward_optimizer_op_deps": False}, {}, CPU),
    ({"allow_cuda_graph_capture": True}, {}, CPU),
    ({}, {"use_thread_barrier": True}, CPU),
    ({}, {"num_threads": 4}, CUDA),
    ({"enable_auto_fusion": True, "fuse_bn_add_act_ops": False}, {}, CPU),
]


@pytest.mark.parametrize(("build", "execution", "device"), REFUSED)
def test_refusals(build: dict[str, Any], execution: dict[str, Any], device: torch.device) -> None:
    with pytest.raises(PlanError, match="strategy"):
        read(build, execution, device)


def test_the_example_of_document_004_is_understood() -> None:
    build = dict.fromkeys(
        (
            "enable_sequential_execution",
            "fuse_elewise_add_act_ops",
            "fuse_bn_act_ops",
            "enable_auto_fusion",
            "fuse_relu_depthwise_conv",
            "fuse_broadcast_ops",
            "fuse_all_optimizer_ops",
            "enable_inplace",
        ),
        True,
    )
    execution = {"num_threads": 10, "num_iteration_per_drop_scope": 10, "num_iteration_per_run": 10}
    assert read(build, execution, CPU) == Build(
        compile=True, in_place=True, fused_update=True, threads=10, iterations=10
    )


def test_several_iterations_per_run() -> None:
    many = weights(trained({}, {}, steps=6))
    static.reset()
    packed = weights(trained({}, {"num_iteration_per_run": 3}, steps=2))
    assert torch.equal(many, packed)


def test_in_place_and_fused_updates_change_no_number() -> None:
    plain = weights(trained({}, {}))
    static.reset()
    model = trained({"enable_inplace": True, "fuse_all_optimizer_ops": True}, {})
    assert torch.equal(plain, weights(model))
    run = running(static.default_main_program(), torch.device("cpu"))
    assert "torch.relu_(" in inspect.getsource(run.lowered.code)
    assert isinstance(model[1], nn.ReLU)
    assert not model[1].inplace
    assert run.optimizer.param_groups[0]["foreach"] is True


def in_place(program: static.Program) -> static.CompiledProgram:
    return compiled(program, {"enable_inplace": True}, {})


def test_in_place_spares_what_is_fetched_later() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    out = net(static.data("x", [None, 4]))
    main, exe = static.default_main_program(), static.Executor()
    before = main.var("sequential_0.0")
    feed = {"x": np.full((1, 4), -3, np.float32)}
    (expected,) = exe.run(main.clone(), feed, [before])
    program = in_place(main)
    exe.run(program, feed, [out])
    found = exe.run(program, feed, [out, before])[1]
    assert (expected < 0).any()
    assert np.array_equal(found, expected)


class Twice(nn.Module):
    """Has one ReLU behind a layer, where it may overwrite, and behind tanh, where it may not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        bent = torch.tanh(self.second(self.act(self.first(x))))
        return (self.act(bent) + bent).mean() + nn.functional.relu(self.first(x), False).mean()


def test_in_place_where_a_module_is_called_twice() -> None:
    def losses(build: dict[str, Any]) -> list[float]:
        static.reset()
        torch.manual_seed(0)
        loss = Twice()(static.data("x", [None, 4]))
        static.Optimizer(torch.optim.SGD, lr=0.1).minimize(loss)
        program, exe = compiled(static.default_main_program(), build, {}), static.Executor()
        feed = {"x": np.ones((2, 4), np.float32)}
        return [float(exe.run(program, feed, [loss])[0]) for _ in range(3)]

    assert losses({"enable_inplace": True}) == losses({})


def test_threads() -> None:
    def threads() -> tuple[int, int]:
        static.reset()
        before = torch.get_num_threads()
        trained({}, {"num_threads": 2})
        return before, torch.get_num_threads()

    assert world(1).run(threads) == [(1, 2)]


def test_fusion_goes_through_torch_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """With dynamo alone: code generation for a CPU takes minutes."""
    plain = weights(trained({}, {}))
    static.reset()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    fused = weights(trained({"fuse_elewise_add_act_ops": True}, {}))
    assert torch._dynamo.utils.counters["frames"]["ok"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]
    assert torch.allclose(plain, fused, rtol=0, atol=1e-6)


def test_the_graph_is_drawn_where_the_option_says(tmp_path: Path) -> None:
    trained({"debug_graphviz_path": str(tmp_path / "graph.dot")}, {})
    assert (tmp_path / "graph.dot").read_text().startswith("digraph")


def test_options_come_before_the_first_run() -> None:
    trained({}, {})
    late = compiled(static.default_main_program(), {"enable_inplace": True}, {})
    with pytest.raises(static.ProgramError, match="too late"):
        static.Executor().run(late, {}, [])


def test_options_of_the_jobs_strategy_act() -> None:
    def run() -> float:
        static.reset()
        strategy = fleet.DistributedStrategy()
        strategy.execution_strategy = {"num_iteration_per_run": 4}
        fleet.init(is_collective=True, strategy=strategy)
        weight = static.nn.create_parameter([1], attr=nn.init.zeros_)
        loss = (weight * static.data("x", [1])).sum()
        optimizer = fleet.distributed_optimizer(static.Optimizer(torch.optim.SGD, lr=1.0))
        optimizer.minimize(loss)
        exe = static.Executor()
        exe.run(fleet.startup_program)
        exe.run(fleet.main_program, {"x": [1.0]}, [])
        return fleet.main_program.parameters()[0].item()

    assert world(1).run(run) == [-4.0]
