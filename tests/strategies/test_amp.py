"""Mixed precision: scales, skipped updates, operators by format, weights that keep 32 bits."""

import copy
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import fleetx as fleet
from fleetx import roles
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.job import Job
from fleetx.plan.step import Step
from fleetx.plan.strategy import REGISTRY, Strategy
from fleetx.strategies.amp import Amp, loss_scaling
from fleetx.strategies.amp import strategy as amp
from fleetx.testing import world
from tests.engine.training import OPTIMIZERS, data, net, spread, weights
from tests.strategies.formats import formats
from tests.strategies.paddle import start

GOLDEN = Path(__file__).parent.parent / "golden"
PURE: dict[str, Any] = {"use_pure_bf16": True}
PURE_HALF: dict[str, Any] = {"use_pure_fp16": True}
Made = tuple[Any, fleet.DistributedOptimizer]
Rule = Callable[[list[nn.Parameter]], Optimizer]


def job(module: Any, rule: Rule = OPTIMIZERS["sgd"], also: str = "amp", **configs: Any) -> Made:
    """A model and an optimizer under amp; ``configs`` are its options."""
    strategy = fleet.DistributedStrategy()
    for name, value in {"amp": True, also: True, "amp_configs": configs}.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    model = fleet.distributed_model(module)
    return model, fleet.distributed_optimizer(rule(list(model.parameters())))


def share(step: int = 0, batch: int = 8) -> tuple[Tensor, Tensor]:
    """This worker's part of a batch."""
    inputs, targets = data()
    at = (torch.arange(batch) + step * batch) % len(inputs)
    mine = at[fleet.worker_index() :: fleet.worker_num()]
    return inputs[mine], targets[mine]


def train(model: nn.Module, optimizer: fleet.DistributedOptimizer, steps: int) -> Tensor:
    for step in range(steps):
        x, y = share(step)
        optimizer.minimize(F.cross_entropy(model(x), y))
    return weights(model)


def scaling(optimizer: fleet.DistributedOptimizer) -> tuple[float, int, int]:
    state = optimizer.state_dict()["strategies"]["amp"]
    return float(state["scale"]), int(state["good"]), int(state["bad"])


class Times(nn.Module):
    """Its gradient is its input, as in the program that Paddle ran."""

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, gradient: Tensor) -> Tensor:
        return (self.weight * gradient).sum()


@world(1)
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_overflows_go_as_in_paddle(name: str) -> None:
    """Every row, bad steps included.

    fleetx skips the update of every optimizer. Paddle skips Adam's, too, and runs the others on
    gradients of zero, which moves parameters by their velocity and decay; plain SGD has neither,
    so in these two files the numbers agree.
    """
    golden = json.loads((GOLDEN / f"amp_bad_step_{name}.json").read_text())
    options = golden["hyperparameters"]
    knobs = {k: v for k, v in options.items() if k.startswith(("init_", "incr_", "decr_"))}
    rule = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name]
    model, optimizer = job(
        Times(golden["initial_params"]["fc_0.w_0"]),
        lambda parameters: rule(parameters, lr=options["learning_rate"]),
        **knobs,
    )
    rows = zip(
        golden["grads"],
        golden["params_after_step"],
        golden["optimizer_state_after_step"],
        strict=True,
    )
    for gradients, parameters, state in rows:
        gradient = [[float(number) for number in row] for row in gradients["fc_0.w_0"]]
        optimizer.minimize(model(torch.tensor(gradient)))
        theirs = torch.tensor(parameters["fc_0.w_0"])
        torch.testing.assert_close(model.weight.data, theirs, rtol=1e-5, atol=1e-6)
        names = ("loss_scaling_0", "num_good_steps_0", "num_bad_steps_0")
        assert scaling(optimizer) == tuple(state[name][0] for name in names)
        if name == "adam":
            moments = optimizer.state[model.weight]
            for ours, key in (("exp_avg", "moment1"), ("exp_avg_sq", "moment2")):
                expected = torch.tensor(state[f"fc_0.w_0_{key}_0"])
                torch.testing.assert_close(moments[ours], expected, rtol=1e-5, atol=1e-7)


@world(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dynamic", [True, False])
def test_an_overflow_on_one_worker_skips_the_update_of_all(name: str, dynamic: bool) -> None:
    decayed = {"sgd": 0.1, "momentum": 0.05, "adam": 0.01}[name]
    quick: dict[str, Any] = {"decr_every_n_nan_or_inf": 1} if dynamic else {}
    model, optimizer = job(
        net(),
        lambda parameters: _with_decay(OPTIMIZERS[name](parameters), decayed),
        init_loss_scaling=1024.0,
        use_dynamic_loss_scaling=dynamic,
        **quick,
    )
    train(model, optimizer, 3)
    before, state = weights(model), copy.deepcopy(optimizer.state_dict()["state"])
    x, y = share()
    loss = F.cross_entropy(model(x), y)
    optimizer.minimize(loss * (float("inf") if fleet.worker_index() == 1 else 1.0))
    assert torch.equal(weights(model), before)
    torch.testing.assert_close(optimizer.state_dict()["state"], state, rtol=0, atol=0)
    if dynamic:
        assert scaling(optimizer) == (512.0, 0, 0)
    assert not torch.equal(train(model, optimizer, 1), before)
    assert spread(weights(model)) == 0


def _with_decay(optimizer: Optimizer, decay: float) -> Optimizer:
    for group in optimizer.param_groups:
        group["weight_decay"] = decay
    return optimizer


@world(2)
def test_workers_agree_even_if_gradients_were_never_mixed() -> None:
    real = loss_scaling.unscale_

    def spoiled(gradients: list[Tensor], scale: Tensor) -> Tensor:
        if fleet.worker_index() == 1:
            # After the exchange: no other worker can know it from its own gradients.
            gradients[0].view(-1)[0] = float("nan")
        return real(gradients, scale)

    model, optimizer = job(net(), decr_every_n_nan_or_inf=1)
    x, y = share()
    before = weights(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fleetx.strategies.amp.strategy.unscale_", spoiled)
        optimizer.backward(F.cross_entropy(model(x), y))
    optimizer.step()
    assert torch.equal(weights(model), before)
    assert scaling(optimizer) == (16384.0, 0, 0)


@world(2)
@pytest.mark.parametrize(
    ("configs", "tolerance"),
    [
        ({}, 2e-3),
        ({"dtype": "bfloat16"}, 2e-2),
        (PURE_HALF, 2e-3),
        (PURE, 2e-2),
        ({"use_dynamic_loss_scaling": False, "init_loss_scaling": 1.0}, 2e-3),
    ],
)
@pytest.mark.parametrize("name", ["sgd", "momentum"])
def test_training_stays_near_that_in_float32(
    name: str, configs: dict[str, Any], tolerance: float
) -> None:
    model, optimizer = job(net(), OPTIMIZERS[name], **configs)
    start = weights(model)
    after = train(model, optimizer, 12)
    roles.stop()
    fleet.init(is_collective=True, strategy=fleet.DistributedStrategy())
    reference = fleet.distributed_model(net())
    exact = train(
        reference,
        fleet.distributed_optimizer(OPTIMIZERS[name](list(reference.parameters()))),
        12,
    )
    moved = (exact - start).norm()
    assert 0 < (after - exact).norm() < tolerance * moved
    assert spread(after) == 0


@world(1)
@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({}, {"addmm": {"half"}, "_softmax": {"float"}, "prod": {"float"}, "exp": {"half"}}),
        ({"dtype": "bfloat16"}, {"addmm": {"bf16"}, "_softmax": {"float"}, "exp": {"bf16"}}),
        ({"custom_black_list": ["linear"]}, {"addmm": {"float"}, "exp": {"float"}}),
        ({"custom_black_list": ["matmul_v2"]}, {"addmm": {"float"}}),
        ({"custom_black_list": ["exp"]}, {"addmm": {"half"}, "exp": {"float"}}),
        ({"custom_white_list": ["softmax"]}, {"_softmax": {"half"}, "prod": {"float"}}),
        ({"custom_white_list": ["reduce_prod"]}, {"_softmax": {"float"}, "prod": {"half"}}),
        ({"custom_black_varnames": ["first"]}, {"addmm": {"float", "half"}, "exp": {"half"}}),
        ({"custom_black_varnames": ["*.weight"]}, {"addmm": {"float"}, "exp": {"float"}}),
        (PURE, {"addmm": {"bf16"}, "_softmax": {"bf16"}, "prod": {"bf16"}, "exp": {"bf16"}}),
        (PURE | {"custom_black_list": ["softmax"]}, {"addmm": {"bf16"}, "_softmax": {"float"}}),
        (PURE | {"custom_black_varnames": ["first.weight"]}, {"addmm": {"float", "bf16"}}),
        (PURE_HALF, {"addmm": {"half"}, "_softmax": {"half"}, "exp": {"half"}}),
    ],
)
def test_operators_run_in_the_format_that_was_asked(
    configs: dict[str, Any], expected: dict[str, set[str]]
) -> None:
    model, _ = job(Mixed(), **configs)
    seen = formats(lambda: model(torch.ones(2, 4)))
    assert {name: seen[name] for name in expected} == expected


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Any]:
        x = self.second(self.first(x.softmax(-1)))
        return {"logits": x.exp(), "more": [x.prod(-1), (torch.arange(2), x.double())]}


@world(1)
@pytest.mark.parametrize("configs", [{}, PURE, PURE_HALF])
def test_outputs_leave_the_model_in_float32(configs: dict[str, Any]) -> None:
    model, _ = job(Mixed(), **configs)
    out = model(torch.ones(2, 4))
    found = [out["logits"], out["more"][0], *out["more"][1]]
    assert [t.dtype for t in found] == [torch.float32, torch.float32, torch.int64, torch.float64]


@world(1)
def test_without_the_guard_low_precision_reaches_the_criterion() -> None:
    model, _ = job(net(), use_fp16_guard=False, **PURE)
    assert model(torch.ones(2, 6)).dtype == torch.bfloat16


@world(2)
@pytest.mark.parametrize("configs", [PURE, PURE_HALF])
def test_changes_too_small_for_16_bits_are_kept(configs: dict[str, Any]) -> None:
    tiny = 2.0**-14  # of a weight of 1, whose neighbours are 2**-7 (bf16) and 2**-10 (fp16) away
    model, optimizer = job(
        Times([1.0, 1.0]), lambda parameters: torch.optim.SGD(parameters, lr=tiny), **configs
    )
    for step in range(1, 5):
        optimizer.minimize(model(torch.ones(2)))
        assert model.weight.tolist() == [1 - step * tiny] * 2
    assert model.state_dict()["weight"].dtype == torch.float32


@world(2)
@pytest.mark.parametrize(
    ("configs", "expected"),
    [(PURE, torch.bfloat16), (PURE_HALF, torch.float16), ({}, None)],
)
def test_pure_gradients_travel_in_16_bits(
    configs: dict[str, Any], expected: torch.dtype | None
) -> None:
    sent: list[torch.dtype] = []
    real = dist.all_reduce

    def recorded(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        sent.append(tensor.dtype)
        return real(tensor, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", recorded)
        model, optimizer = job(net(), **configs)
        train(model, optimizer, 1)
    assert [dtype for dtype in sent if dtype != torch.float32] == ([expected] if expected else [])


class Pairs(Strategy, name="pairs_for_amp"):
    """Two batches make one update."""

    contract = Contract(phase=Phase.CADENCE, touches=frozenset({"due"}))
    _batches = 0

    def step(self, step: Step, job: Job) -> Step:
        def due() -> bool:
            self._batches += 1
            return self._batches % 2 == 0

        return replace(step, due=due)


del REGISTRY["pairs_for_amp"]


@world(2)
@pytest.mark.parametrize("configs", [{}, PURE_HALF])
def test_gradients_are_checked_once_per_update(configs: dict[str, Any]) -> None:
    checked: list[int] = []
    real = loss_scaling.unscale_

    def counted(gradients: list[Tensor], scale: Tensor) -> Tensor:
        checked.append(len(gradients))
        return real(gradients, scale)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(REGISTRY, "pairs_for_amp", Pairs)
        patch.setattr("fleetx.strategies.amp.strategy.unscale_", counted)
        model, optimizer = job(net(), also="pairs_for_amp", **configs)
        start = weights(model)
        after = train(model, optimizer, 4)
    assert checked == [6, 6]
    assert scaling(optimizer) == (32768.0, 2, 0)
    expected = _plain_pairs()
    assert (after - expected).norm() < 1e-2 * (expected - start).norm()


def _plain_pairs() -> Tensor:
    """Two batches of 8 per update, added up, in float32 and in one process."""
    model = net()
    optimizer = OPTIMIZERS["sgd"](list(model.parameters()))
    inputs, targets = data()
    for step in range(4):
        at = slice(step * 8, step * 8 + 8)
        F.cross_entropy(model(inputs[at]), targets[at]).backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    return weights(model)


def trained(kept: dict[str, Any] | None, steps: int, configs: dict[str, Any]) -> dict[str, Any]:
    """Weights and state after some updates that follow those of ``kept``."""
    scaled: dict[str, Any] = {} if "use_pure_bf16" in configs else {"incr_every_n_steps": 3}
    model, optimizer = job(net(), OPTIMIZERS["adam"], **scaled, **configs)
    done = 0
    if kept is not None:
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        done = kept["done"]
    for step in range(done, done + steps):
        x, y = share(step)
        overflows = step in {4, 6} and "use_pure_bf16" not in configs
        bad = float("nan") if overflows else 1.0
        optimizer.minimize(F.cross_entropy(model(x), y) * bad)
    state = optimizer.state_dict()
    return {"model": model.state_dict(), "optimizer": state, "done": done + steps}


@pytest.mark.parametrize("configs", [{}, PURE_HALF, PURE])
@pytest.mark.parametrize("half", [4, 5])
def test_training_goes_on_in_other_processes_bit_for_bit(
    configs: dict[str, Any], half: int
) -> None:
    whole = world(2).run(trained, None, 10, configs)[0]
    first = world(2).run(trained, None, half, configs)[0]
    second = world(2).run(trained, first, 10 - half, configs)[0]
    layouts = [kept["optimizer"].pop("layout") for kept in (second, whole)]
    assert layouts[0] == layouts[1]
    torch.testing.assert_close(second, whole, rtol=0, atol=0)
    if configs != PURE:
        # Updates 0..3, overflow, 5, overflow, 7..9: grown after three, never two bad in a row.
        kept = whole["optimizer"]["strategies"]["amp"]
        assert [float(kept[name]) for name in ("scale", "good", "bad")] == [131072.0, 0, 0]


@world(2)
def test_bfloat16_has_no_scale_and_no_check() -> None:
    model, optimizer = job(net(), dtype="bfloat16")
    x, y = share()
    loss = F.cross_entropy(model(x), y)
    loss.backward()  # allowed: what is differentiated is the loss itself
    optimizer.step()
    assert "strategies" not in optimizer.state_dict()


@world(1)
def test_float16_wants_the_scaled_backward() -> None:
    model, optimizer = job(net())
    F.cross_entropy(model(share()[0]), share()[1]).backward()
    with pytest.raises(RuntimeError, match=r"call optimizer.backward\(loss\) instead"):
        optimizer.step()


@world(1)
def test_small_gradients_survive_float16_only_by_the_scale() -> None:
    def gradient(scale: float) -> Tensor:
        model, optimizer = job(
            nn.Linear(1, 1, bias=False),
            init_loss_scaling=scale,
            use_dynamic_loss_scaling=False,
        )
        optimizer.backward(model(torch.ones(1, 1)).sum() * 2.0**-26)
        optimizer.step()
        gradient: Tensor = model.weight.grad
        return gradient

    assert gradient(1.0).item() == 0.0
    assert gradient(32768.0).item() == 2.0**-26


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"custom_white_list": ["sofmax"]}, "nearest known names are softmax"),
        (
            {"custom_white_list": ["matmul"], "custom_black_list": ["linear"]},
            "run in both precisions",
        ),
        ({"use_optimizer_fp16": True}, "leave it False"),
        ({"use_pure_fp16": True, "use_pure_bf16": True}, "keep one"),
        ({"use_pure_fp16": True, "dtype": "bfloat16"}, "keep one"),
        ({"dtype": "float8"}, "one of 'float16', 'bfloat16'"),
    ],
)
def test_options_that_cannot_be_in_force_are_refused(configs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Amp(**configs)


@world(1)
@pytest.mark.parametrize(
    ("module", "configs", "message"),
    [
        (nn.Linear(2, 2).half(), {}, "parameter 'weight' is torch.float16.*pass the model in"),
        (nn.Linear(2, 2), {"use_fp16_guard": False}, "set use_pure_fp16 or use_pure_bf16"),
        (nn.Linear(2, 2), {"custom_black_varnames": ["weights"]}, "did you mean 'weight'"),
        (nn.Linear(2, 2), {"custom_black_varnames": ["x"]}, "no submodule that has some"),
    ],
)
def test_models_that_cannot_be_trained_so_are_refused(
    module: nn.Module, configs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        job(module, **configs)


@world(1)
@pytest.mark.parametrize(
    ("module", "configs", "message"),
    [
        (nn.Conv2d(1, 1, 1), {}, "float16 convolutions"),
        (nn.Conv2d(1, 1, 1), {"dtype": "bfloat16"}, None),
        (nn.Linear(1, 1), {}, None),
        (
            nn.Linear(1, 1),
            {"use_dynamic_loss_scaling": False, "init_loss_scaling": 4.0},
            None,
        ),
    ],
)
def test_what_is_slow_is_said(
    module: nn.Module, configs: dict[str, Any], message: str | None
) -> None:
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(amp.logger, "warning", lambda text, *details: said.append(text % details))
        job(module, **configs)
    assert len(said) == (message is not None)
    if message is not None:
        assert re.search(message, said[0])


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"dtype": "bfloat16", "incr_ratio": 4.0}, r"\['incr_ratio'\] = 4.0 has no .*bfloat16"),
        ({"dtype": "bfloat16", "init_loss_scaling": 4.0}, r"'init_loss_scaling'.*at 32768\.0"),
        ({"use_dynamic_loss_scaling": False, "incr_ratio": 4.0}, "'incr_ratio'.*not dynamic"),
    ],
)
def test_knobs_without_effect_are_refused(configs: dict[str, Any], message: str) -> None:
    strategy = fleet.DistributedStrategy()
    strategy.amp = True
    strategy.amp_configs = configs  # type: ignore[assignment]
    with pytest.raises(fleet.PlanError, match=message):
        strategy.explain()


@world(2)
def test_convolutions_and_batch_norm_train_in_pure_bfloat16() -> None:
    torch.manual_seed(0)
    convolutional = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)
    )
    model, optimizer = job(convolutional, **PURE)
    norm = model[1]
    seen = formats(lambda: model(torch.randn(4, 1, 4, 4)))
    assert seen["convolution"] == {"bf16"}
    assert seen["native_batch_norm"] == {"bf16", "float"}
    optimizer.minimize(model(torch.randn(4, 1, 4, 4)).square().mean())
    assert norm.running_mean.dtype == norm.weight.dtype == torch.float32
    assert int(norm.num_batches_tracked) == 2
    assert norm.running_mean.abs().sum() > 0
    assert spread(weights(model)) == 0


@world(2)
@pytest.mark.parametrize("configs", [{}, PURE, {"custom_black_list": ["tanh"]}])
def test_copies_of_the_model_belong_to_no_job(configs: dict[str, Any]) -> None:
    model, _ = job(net(), **configs)
    x = torch.ones(2, 6)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), net()(x))
    assert not torch.equal(model(x), twin(x))


@world(1)
@pytest.mark.parametrize("configs", [{}, {"use_pure_bf16": True}])
def test_a_model_of_doubles_is_refused(configs: dict[str, Any]) -> None:
    start(amp=True, amp_configs=configs)
    with pytest.raises(fleet.PlanError, match="all parameters of this model are float64"):
        fleet.distributed_model(net().double())


@dataclass
class Answer:
    logits: Tensor
    hidden: tuple[Tensor, ...] = ()


class Named(dict[str, Any]):
    pass


class Answering(nn.Module):
    """Returns its logits in a structure."""

    def __init__(self, kind: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.head, self.kind = nn.Linear(4, 3), kind

    def forward(self, x: Tensor) -> Any:
        return self.kind(self.head(x))


@world(1)
@pytest.mark.parametrize("configs", [{}, PURE])
def test_outputs_of_every_kind_leave_the_model_in_float32(configs: dict[str, Any]) -> None:
    kinds: list[Callable[[Tensor], Any]] = [
        lambda logits: Answer(logits, (logits,)),
        lambda logits: Named(logits=logits),
        lambda logits: [Named(logits=Answer(logits))],
    ]
    model, _ = job(Answering(lambda logits: [kind(logits) for kind in kinds]), **configs)
    answer, named, [inner] = model(torch.ones(2, 4))
    assert isinstance(answer, Answer)
    assert isinstance(named, Named)
    seen = [answer.logits, *answer.hidden, named["logits"], inner["logits"].logits]
    assert {tensor.dtype for tensor in seen} == {torch.float32}
    assert all(tensor.requires_grad for tensor in seen)
