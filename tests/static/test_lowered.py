"""The module that a program becomes: names, cuts, stages, forms for different fetches."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import fleetx as fleet
from fleetx import PlanError, static
from fleetx.static import ProgramError
from fleetx.static.lower.lowered import Lowered
from fleetx.testing import world

CPU = torch.device("cpu")


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh()) for _ in range(3)
        )
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        for block in self.blocks:
            x = x + block(x) * self.scale
        return self.head(F.dropout(x, 0.1))


def lowered(program: static.Program, *fetches: Tensor, **options: Any) -> Lowered:
    made = Lowered(program, **options)
    made.choose(program, [program.find(fetch) for fetch in fetches], device=CPU)
    return made


def test_names_are_those_of_the_program_and_cuts_change_none() -> None:
    model = Blocks()
    out = model(static.data("x", [None, 8]))
    program = static.default_main_program()
    plain = lowered(program, out)
    cut = lowered(program, out, cuts=["blocks_0.blocks.0", "blocks_0.blocks.1"])
    expected = {f"blocks_0.{name}": p for name, p in model.named_parameters()}
    for form in (plain, cut):
        found = dict(form.named_parameters())
        assert found.keys() == expected.keys()
        assert all(found[name] is p for name, p in expected.items())
        state = {f"blocks_0.{name}" for name in model.state_dict()}
        assert form.state_dict().keys() == state
        form.load_state_dict(form.state_dict())
    assert cut.meta["segments"] == {
        "blocks_0.blocks.0": "segments.0",
        "blocks_0.blocks.1": "segments.1",
    }


def test_a_segment_holds_what_it_alone_uses() -> None:
    out = Blocks()(static.data("x", [None, 8]))
    cut = lowered(static.default_main_program(), out, cuts=["blocks_0.blocks.*"])
    assert cut.meta["segments"]["blocks_0.blocks.2"] == "segments.2"
    middle = {name for name, _ in cut.get_submodule("segments.1").named_parameters()}
    # The scale is used by all of them, so it is handed in.
    assert middle == {
        f"blocks_0.blocks.1.{name}" for name in ("0.weight", "0.bias", "1.weight", "1.bias")
    }


def test_all_forms_compute_the_same() -> None:
    model = Blocks()
    x = static.data("x", [None, 8])
    out = model(x)
    program = static.default_main_program()
    batch = torch.randn(5, 8)
    results = []
    for cuts in ([], ["blocks_0.blocks.0"], ["blocks_0.blocks.*"]):
        torch.manual_seed(0)
        results.append(lowered(program, out, cuts=cuts)((batch,))[0])
    torch.manual_seed(0)
    expected = model(batch)
    assert all(torch.equal(result, expected) for result in results)


def test_unknown_cuts_are_refused_before_the_run() -> None:
    def refused() -> str:
        static.reset()
        loss = Blocks()(static.data("x", [None, 8])).sum()
        strategy = fleet.DistributedStrategy()
        strategy.recompute = True
        strategy.recompute_configs = {"checkpoints": ["blocks_0.blocks.9"]}
        fleet.init(is_collective=True)
        optimizer = fleet.distributed_optimizer(static.Optimizer(torch.optim.SGD, lr=0.1), strategy)
        with pytest.raises(PlanError, match=r"cuts the program at 'blocks_0\.blocks\.9'") as caught:
            optimizer.minimize(loss)
        static.reset()
        return str(caught.value)

    assert "did you mean" in world(1).run(refused)[0]


def flops(checkpoints: list[str], anchors: list[str] | None = None) -> tuple[int, Tensor]:
    static.reset()
    torch.manual_seed(0)
    model = Blocks()
    x = static.data("x", [None, 8])
    loss = model(x).square().mean()
    strategy = fleet.DistributedStrategy()
    if checkpoints:
        strategy.recompute = True
        strategy.recompute_configs = {"checkpoints": checkpoints}
    if anchors:
        strategy.sharding = True
        strategy.sharding_configs = {"segment_anchors": anchors}
    fleet.init(is_collective=True)
    fleet.distributed_optimizer(static.Optimizer(torch.optim.SGD, lr=0.1), strategy).minimize(loss)
    exe = static.Executor()
    exe.run(fleet.startup_program)
    torch.manual_seed(1)
    feed = {"x": np.ones((4, 8), np.float32) * np.arange(8, dtype=np.float32)}
    with FlopCounterMode(display=False) as counter:
        exe.run(fleet.main_program, feed, [loss])
    static.reset()
    state = torch.cat([t.flatten().float() for t in model.state_dict().values()])
    return counter.get_total_flops(), state


def test_recompute_by_tensor_name_runs_the_segments_twice() -> None:
    plain, weights = world(1).run(flops, [])[0]
    once, same = world(1).run(flops, ["blocks_0.blocks.0"])[0]
    twice, again = world(1).run(flops, ["blocks_0.blocks.0", "blocks_0.blocks.1"])[0]
    # What others cut between checkpoints is recomputed as well, and what they cut behind is not.
    cut, _ = world(1).run(flops, ["blocks_0.blocks.1"], ["blocks_0.blocks.0", "blocks_0.head"])[0]
    assert cut == twice
    layer = 2 * 4 * 8 * 8
    assert once - plain == layer
    assert twice - plain == 2 * layer
    assert torch.equal(weights, same)
    assert torch.equal(weights, again)


def staged(program: static.Program) -> tuple[Tensor, Tensor]:
    with static.program_guard(program, static.Program()):
        x, y = static.data("x", [None, 8]), static.data("y", [None], "int64")
        with static.device_guard("gpu:0"):
            h = nn.Linear(8, 8)(x).reshape(x.shape[0], 8)
            skip = h.tanh()
        with static.device_guard("gpu:1"):
            h = nn.Linear(8, 8)(skip).relu().reshape(x.shape[0], 8)
        with static.device_guard("gpu:2"):
            out = nn.Linear(8, 3)(h + skip)
            loss = F.cross_entropy(out, y)
    return out, loss


def test_stages_by_device_guard() -> None:
    program = static.Program()
    out, loss = staged(program)
    form = lowered(program, loss, out, by_device=True)
    first, second, third = form.meta["stages"]
    assert [stage.device for stage in form.meta["stages"]] == ["gpu:0", "gpu:1", "gpu:2"]
    for number, stage in enumerate(form.meta["stages"]):
        held = [name for name, _ in form.get_submodule(stage.path).named_parameters()]
        assert held == [f"linear_{number}.weight", f"linear_{number}.bias"]
    assert (first.inputs, first.received) == (("x",), ())
    # What the last stage needs of the first one goes through the middle.
    assert second.received == first.outputs
    assert set(third.received) == set(second.outputs)
    assert len(third.received) == 2
    assert third.feeds == ("y",)
    assert third.outputs == ("cross_entropy", "linear_2")
    assert second.shapes[second.received[0]].shape[1] == 8
    batch = torch.randn(4, 8), torch.randint(0, 3, (4,))
    whole = lowered(program, loss, out)
    for ours, theirs in zip(form(batch), whole(batch), strict=True):
        assert torch.equal(ours, theirs)


def test_stages_run_one_by_one_on_what_they_receive() -> None:
    """As a pipeline does it: each rank has one stage, the feeds, and what the last one sent."""
    program = static.Program()
    _, loss = staged(program)
    form = lowered(program, loss, by_device=True)
    feeds = {"x": torch.randn(4, 8), "y": torch.randint(0, 3, (4,))}
    sent: dict[str, Tensor] = {}
    for stage in form.meta["stages"]:
        known = {**feeds, **sent}
        outputs = form.get_submodule(stage.path)(*(known[name] for name in stage.inputs))
        sent = dict(zip(stage.outputs, outputs, strict=True))
    assert torch.equal(sent["cross_entropy"], lowered(program, loss)(tuple(feeds.values()))[0])


def test_parameters_that_stages_share_are_named() -> None:
    weight = nn.Parameter(torch.ones(2))
    x = static.data("x", [2])
    with static.device_guard("gpu:0"):
        y = x * weight
    with static.device_guard("gpu:1"):
        z = y * weight
    form = lowered(static.default_main_program(), z, by_device=True)
    assert [stage.shared for stage in form.meta["stages"]] == [("parameter_0",), ("parameter_0",)]


def test_stages_and_segments_nest() -> None:
    program = static.Program()
    _, loss = staged(program)
    program.names["cut"] = program.node("linear_1")
    form = lowered(program, loss, by_device=True, cuts=["cut"])
    assert form.meta["segments"] == {"cut": "stages.1.segments.0"}
    batch = torch.randn(4, 8), torch.randint(0, 3, (4,))
    assert torch.equal(form(batch)[0], lowered(program, loss)(batch)[0])


def test_devices_must_follow_each_other() -> None:
    x = static.data("x", [2])
    with static.device_guard("gpu:0"):
        y = x + 1
    with static.device_guard("gpu:1"):
        z = y + 1
    with static.device_guard("gpu:0"):
        z = z + 1
    with pytest.raises(PlanError, match=r"test_lowered\.py:\d+: an operator under device_guard"):
        lowered(static.default_main_program(), z, by_device=True)
    with pytest.raises(PlanError, match="at least two devices"):
        lowered(static.default_main_program(), y, by_device=True)


def test_what_a_strategy_does_to_one_form_stays_there() -> None:
    layer = nn.Linear(2, 2)
    out = layer(static.data("x", [None, 2]))
    program = static.default_main_program()
    first, second = lowered(program, out), lowered(program, out)
    first.get_submodule("linear_0").forward = lambda x: x * 0
    batch = torch.ones(1, 2)
    assert first((batch,))[0].abs().sum() == 0
    assert torch.equal(second((batch,))[0], layer(batch))


def both_modes(norm: nn.BatchNorm1d) -> tuple[Tensor, Tensor]:
    x = static.data("x", [None, 3])
    return norm.train()(x), norm.eval()(x)


def test_a_module_is_called_in_the_mode_of_each_call() -> None:
    norm = nn.BatchNorm1d(3)
    assert norm.running_mean is not None
    norm.running_mean.add_(5)
    trained, tested = both_modes(norm)
    exe, feed = static.Executor(), {"x": np.random.default_rng(0).random((8, 3), np.float32)}
    main = static.default_main_program()
    kept = norm.running_mean.clone()
    for _ in range(2):
        for fetches in ([trained], [tested], [trained, tested], [tested, trained]):
            for variable, found in zip(fetches, exe.run(main, feed, fetches), strict=True):
                assert (abs(found.mean(0)) < 1e-5).all() == (variable is trained)
    assert not torch.equal(kept, norm.running_mean)
    assert norm.num_batches_tracked == 6
    form = lowered(main, tested)
    assert list(form.state_dict()) == [f"batchnorm1d_0.{name}" for name in norm.state_dict()]
    assert len(list(form.parameters())) == 2


def test_parameters_that_are_spread_have_one_mode() -> None:
    trained, tested = both_modes(nn.BatchNorm1d(3))
    with pytest.raises(ProgramError, match="'batchnorm1d_0' is called in training and in eval"):
        lowered(static.default_main_program(), trained + tested, own=True)


def test_parameters_that_are_spread_have_one_set_of_options() -> None:
    x, norm = static.data("x", [None, 3]), nn.BatchNorm1d(3)
    first = norm(x)
    norm.eps = 0.1
    second = norm(x)
    with pytest.raises(ProgramError, match=r"'batchnorm1d_0' is called with eps changed"):
        lowered(static.default_main_program(), first + second, own=True)
