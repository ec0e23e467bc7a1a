"""What loops of torch do that cannot work with several workers: stopped, with what to write."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx import roles
from fleetx.testing import world
from tests.habits.both import Here, said

MERGE = {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 2}}


def begun(**settings: Any) -> tuple[Any, Any]:
    roles.stop()
    strategy = fleet.DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    torch.manual_seed(0)
    return laid_out(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)))


def laid_out(plain: nn.Module) -> tuple[Any, Any]:
    model = fleet.distributed_model(plain)
    return model, fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))


def batch() -> Any:
    return next(Here(distributed=True).batches())


@world(2)
def test_lbfgs_is_refused() -> None:
    model, _ = begun()
    with pytest.raises(TypeError, match=r"LBFGS, which runs forward .* use a first-order"):
        fleet.distributed_optimizer(torch.optim.LBFGS(model.parameters()))


@world(2)
def test_two_backwards_of_one_forward_are_refused() -> None:
    model, optimizer = begun()
    x, y = batch()
    out = model(x)
    F.cross_entropy(out, y).backward(retain_graph=True)
    out.pow(2).mean().backward()
    with pytest.raises(fleet.PlanError, match="add the losses up and call backward once"):
        optimizer.step()


@world(2)
def test_layers_that_are_frozen_or_thawed_later_are_refused() -> None:
    model, optimizer = begun()
    x, y = batch()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    model[0].requires_grad_(False)
    with pytest.raises(fleet.PlanError, match=r"freeze and thaw before fleet\.distributed_model"):
        model(x)


@world(2)
def test_a_group_that_is_added_later_is_refused() -> None:
    model, optimizer = begun()
    with pytest.raises(ValueError, match=r"give the optimizer all groups before"):
        optimizer.add_param_group({"params": list(nn.Linear(2, 2).parameters())})
    assert len(list(model.parameters())) == 4


@world(2)
def test_a_scaler_or_a_backward_past_a_plan_that_scales_is_refused() -> None:
    model, optimizer = begun(**MERGE)
    x, y = batch()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    with pytest.raises(RuntimeError, match=r"call optimizer\.backward\(loss\)"):
        scaler.step(optimizer)


@world(2)
def test_two_models_with_one_loss_under_a_plan_that_scales_are_told_to_be_one() -> None:
    encoder, encoding = begun(**MERGE)
    decoder, decoding = laid_out(nn.Linear(3, 3))
    x, y = batch()
    encoding.backward(F.cross_entropy(decoder(encoder(x)), y))
    encoding.step()
    with pytest.raises(RuntimeError, match=r"models with one loss are one here: put both into an"):
        decoding.step()


@world(2)
def test_an_optimizer_that_fleet_never_got_is_refused_with_a_flag() -> None:
    model, _ = begun(**MERGE)
    own = torch.optim.AdamW(model.parameters(), lr=0.1)
    x, y = batch()
    F.cross_entropy(model(x), y).backward()
    with pytest.raises(fleet.PlanError, match=r"strategy\.gradient_merge.*distributed_optimizer"):
        own.step()


@world(2)
def test_a_forward_through_a_part_of_the_model_is_refused() -> None:
    model, optimizer = begun()
    x, y = batch()
    loss = F.cross_entropy(model[2](model[0](x)), y)
    loss.backward()
    with pytest.raises(RuntimeError, match="not one of its methods or submodules"):
        optimizer.step()


@world(2)
def test_gradients_that_no_backward_brought_are_refused() -> None:
    model, optimizer = begun()
    x, y = batch()
    for at in range(3):
        loss = F.cross_entropy(model(x), y)
        parameters = [*model.parameters()]
        if at < 2:  # a backward has come, whatever else is looked at
            (slope,) = torch.autograd.grad(model(x.requires_grad_()).sum(), x)
            assert slope.shape == x.shape
            F.cross_entropy(model(x), y).backward()
            model(x)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            model(x)
            optimizer.step()  # without a backward, by zeros, as in torch
            optimizer.zero_grad()
            continue
        for parameter, gradient in zip(
            parameters, torch.autograd.grad(loss, parameters), strict=True
        ):
            parameter.grad = gradient
        with pytest.raises(fleet.PlanError, match=r"not what torch\.autograd\.grad\(\) returns"):
            optimizer.step()


@pytest.mark.parametrize("stage", [1, 3])
def test_hooks_that_are_never_called_are_refused(stage: int) -> None:
    world(2).run(_hooked, stage)


def _dropped(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def _zeroed(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()


CLEAR: dict[str, Callable[[Any], None]] = {
    "by hand": _dropped,
    "in part": lambda model: model[2].zero_grad(),
    "with zeros": _zeroed,
}


@pytest.mark.parametrize("when", ["before the forward", "before the backward"])
@pytest.mark.parametrize("stage", [None, 1, 2, 3])
def test_gradients_that_wait_are_not_cleared_by_hand(stage: int | None, when: str) -> None:
    for how in CLEAR:
        world(2).run(_cleared, stage, how, when)


def _cleared(stage: int | None, how: str, when: str) -> None:
    sharded = {"sharding": True, "sharding_configs": {"stage": stage}} if stage else {}
    model, optimizer = begun(**MERGE, **sharded)
    x, y = batch()

    def learn() -> None:
        if when == "before the forward":
            CLEAR[how](model)
        loss = F.cross_entropy(model(x), y)
        if when == "before the backward":
            CLEAR[how](model)
        optimizer.minimize(loss)

    learn()
    if stage == 1:  # they wait where nobody sees them, or are those of this worker
        learn() if when == "before the forward" else _refused(learn)
        return
    _refused(learn)


def _refused(learn: Callable[[], None]) -> None:
    with pytest.raises(RuntimeError, match=r"'[02].(weight|bias)' was cleared or changed by hand"):
        learn()


@pytest.mark.parametrize("stage", [1, 2])
def test_gradients_that_a_forward_hides_are_not_read(stage: int) -> None:
    world(2).run(_hidden, stage)


def _hidden(stage: int) -> None:
    model, optimizer = begun(sharding=True, sharding_configs={"stage": stage})
    x, y = batch()
    F.cross_entropy(model(x), y).backward()
    out = model(x)
    with pytest.raises(RuntimeError, match=r"is read or changed .*limit and read gradients after"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    F.cross_entropy(out, y).backward()
    assert float(nn.utils.clip_grad_norm_(model.parameters(), 1.0)) > 0
    optimizer.step()


@world(2)
def test_a_step_inside_of_a_backward_is_refused() -> None:
    """As torch's tutorial on optimizers in the backward does it."""
    model, _ = begun()
    each = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: each[p].step())
    x, y = batch()
    with pytest.raises(fleet.PlanError, match=r"the exchange of gradients.*distributed_optimizer"):
        F.cross_entropy(model(x), y).backward()


@world(2)
def test_parameters_that_are_moved_by_gradients_nobody_exchanged_are_refused() -> None:
    """Loops without any optimizer; those of loss.backward() are exchanged, and learn."""
    for how in ("backward", "grad", "inputs"):
        roles.stop()
        fleet.init(is_collective=True)
        torch.manual_seed(0)
        model = fleet.distributed_model(nn.Linear(6, 3))
        x, y = batch()
        if how == "grad":
            with pytest.raises(fleet.PlanError, match=r"'weight', after gradients of torch\.autog"):
                _by_hand(model, x, y, how)
        else:
            _by_hand(model, x, y, how)


def _by_hand(model: nn.Module, x: torch.Tensor, y: torch.Tensor, how: str) -> None:
    for _ in range(6):
        parameters = [*model.parameters()]
        if how == "inputs":  # with a look at slopes of inputs in front, as attacks have it
            for _ in range(2):
                x = x.detach().requires_grad_()
                torch.autograd.grad(model(x).sum(), x)
        loss = F.cross_entropy(model(x), y)
        if how == "grad":
            gradients = [*torch.autograd.grad(loss, parameters)]
        else:
            model.zero_grad()
            loss.backward()
            gradients = [p.grad for p in parameters if p.grad is not None]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.data -= 0.1 * gradient


@world(2)
def test_updates_by_hand_past_a_flag_are_refused() -> None:
    flags: dict[str, dict[str, Any]] = {"gradient_merge": MERGE}
    flags |= {name: {name: True} for name in ("clip", "localsgd", "lars")}
    for name, settings in flags.items():
        roles.stop()
        strategy = fleet.DistributedStrategy()
        for option, value in settings.items():
            setattr(strategy, option, value)
        fleet.init(is_collective=True, strategy=strategy)
        model = fleet.distributed_model(nn.Linear(6, 3))
        x, y = batch()
        state = {key: value.clone() for key, value in model.state_dict().items()}
        model(x).sum().backward()
        model.load_state_dict(state)
        model(x)  # gradients and a load alone are no training
        with pytest.raises(fleet.PlanError, match=rf"by hand.*at an update: strategy\.{name}"):
            _by_hand(model, x, y, "backward")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_conversions_that_change_nothing_are_not_refused(stage: int) -> None:
    world(2).run(_converted, stage)


def _converted(stage: int) -> None:
    model, optimizer = begun(sharding=True, sharding_configs={"stage": stage})
    x, y = batch()
    optimizer.minimize(F.cross_entropy(model(x), y))
    with torch.no_grad():
        model(x)
    model.float().cpu()
    model.load_state_dict(model.state_dict())
    optimizer.minimize(F.cross_entropy(model(x), y))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_numbers_that_all_workers_draw_alike_are_refused(stage: int) -> None:
    world(2).run(_drawn, stage)


def _drawn(stage: int) -> None:
    for how in ("xavier", "constant", "other seeds"):
        model, optimizer = begun(sharding=True, sharding_configs={"stage": stage})
        x, y = batch()
        torch.manual_seed(5 + (fleet.worker_index() if how == "other seeds" else 0))
        part = model[0].weight.to_local().detach()  # past what draws for the whole
        if how == "constant":
            nn.init.constant_(part, 0.1)
        else:
            nn.init.xavier_uniform_(part)
        if how == "xavier":
            match = r"parts of the parameter '0\.weight', which therefore repeats itself"
            with pytest.raises(fleet.PlanError, match=match):
                optimizer.minimize(F.cross_entropy(model(x), y))
        else:
            optimizer.minimize(F.cross_entropy(model(x), y))
    # As tables of places do that were made longer.
    first = nn.Linear(6, 8)
    first.weight = nn.Parameter(first.weight.detach()[:4].repeat(2, 1))
    model, optimizer = laid_out(nn.Sequential(first, nn.Linear(8, 3)))
    optimizer.minimize(F.cross_entropy(model(x), y))


@pytest.mark.parametrize("stage", [1, 2])
def test_gathered_weights_that_are_assigned_as_data_are_refused(stage: int) -> None:
    world(2).run(_assigned_whole, stage)


def _assigned_whole(stage: int) -> None:
    model, _ = begun(sharding=True, sharding_configs={"stage": stage})
    x, _ = batch()
    model(x)
    model[2].weight.data = torch.zeros(3, 8)
    with pytest.raises(fleet.PlanError, match=r"p\.data of the parameter '2\.weight'"):
        model(x)


def _hooked(stage: int) -> None:
    model, optimizer = begun(sharding=True, sharding_configs={"stage": stage})
    x, y = batch()
    model[2].weight.register_hook(lambda gradient: gradient)  # as trackers of experiments do
    F.cross_entropy(model(x), y).backward()
    with pytest.raises(fleet.PlanError, match=r"'2\.weight' has a hook of register_hook\(\)"):
        optimizer.step()


CUT = {
    "tensor_parallel": True,
    "tensor_parallel_configs": {"tensor_parallel_degree": 2, "plan": "mlp"},
}


@pytest.mark.parametrize("stage", [1, 3, None])
def test_gradients_of_gradients_are_refused(stage: int | None) -> None:
    """Where weights are given back, and where layers are cut, which gave wrong ones in silence."""
    world(2).run(_penalised, stage)


def _penalised(stage: int | None) -> None:
    flags = {"sharding": True, "sharding_configs": {"stage": stage}} if stage else CUT
    model, _ = begun(**flags)
    x, _ = batch()
    out = model(x.requires_grad_())
    with pytest.raises(fleet.PlanError, match=r"differentiates gradients \(create_graph=True"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


def limited() -> None:
    model, optimizer = begun()
    x, y = batch()
    model[2].weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    for _ in range(2):
        optimizer.minimize(F.cross_entropy(model(x), y))


def test_hooks_that_see_the_gradient_of_one_worker_are_told_of_once() -> None:
    first, second = world(2).run(said, limited)
    assert [sentence[:75] for sentence in first] == [
        "'2.weight' has a hook of register_hook(), which sees the gradient of one wo"
    ]
    assert second == []


@world(2)
def test_gradients_that_are_assigned_as_data_are_refused() -> None:
    """They left what workers exchange: from then on each trained on by itself."""
    model, optimizer = begun()
    x, y = batch()

    def learn(each: Callable[[Any], None]) -> None:
        F.cross_entropy(model(x), y).backward()
        for parameter in model.parameters():
            each(parameter)
        optimizer.step()
        optimizer.zero_grad()

    def assign(parameter: Any) -> None:
        parameter.grad.data = parameter.grad.data * 0.5

    def replace(parameter: Any) -> None:
        parameter.grad = parameter.grad * 0.5

    for _ in range(4):
        learn(lambda parameter: parameter.grad.data.mul_(0.5))
        learn(replace)

    def go_on() -> None:
        for _ in range(20):
            learn(assign)

    with pytest.raises(fleet.PlanError, match=r"p\.grad\.data of the parameter '0\.weight', whose"):
        go_on()


@world(2)
def test_rows_that_a_forward_shortens_for_one_worker_alone_are_refused() -> None:
    sharded = {"sharding": True, "sharding_configs": {"stage": 1}}
    pure = {"amp": True, "amp_configs": {"use_pure_bf16": True}}
    cases: Any = (({}, "workers have other"), (sharded, "strategy.sharding"), (pure, "a pure mode"))
    for settings, why in cases:
        begun(**settings)
        for kind in (nn.Embedding, nn.EmbeddingBag):
            with pytest.raises(fleet.PlanError, match=rf"'0' has max_norm = 1, .*{why}.* shorten"):
                fleet.distributed_model(nn.Sequential(kind(6, 4, max_norm=1.0), nn.Linear(4, 3)))
    begun()
    frozen = nn.Embedding.from_pretrained(torch.randn(6, 4), max_norm=1.0)
    fleet.distributed_model(nn.Sequential(frozen, nn.Linear(4, 3)))


def test_rows_are_shortened_in_a_pure_mode_where_they_stay_float32() -> None:
    configs = {"use_pure_bf16": True, "custom_black_varnames": ["0"]}
    begun(amp=True, amp_configs=configs)
    layer = nn.Embedding(6, 4, max_norm=1.0)
    model = fleet.distributed_model(nn.Sequential(layer, nn.Linear(4, 3)))
    model(torch.arange(6)).sum().backward()
    assert layer.weight.norm(dim=1).max() < 1.001
    roles.stop()


@world(2)
def test_counts_of_a_share_are_those_of_torch() -> None:
    sharded = {"sharding": True, "sharding_configs": {"stage": 1}}
    for settings in ({}, sharded):
        begun(**settings)
        fleet.distributed_model(nn.Sequential(nn.Embedding(6, 4, scale_grad_by_freq=True)))


@world(2)
def test_parameters_over_the_same_numbers_are_not_cut_apart() -> None:
    begun(sharding=True)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model.get_parameter("2.weight").data = model.get_parameter("0.weight").data
    words = r"'0\.weight' and '2\.weight' are two parameters over the same.*strategy\.sharding"
    with pytest.raises(fleet.PlanError, match=words):
        fleet.distributed_model(model)


@pytest.mark.parametrize("flag", ["sharding", "fp16_allreduce"])
@world(2)
def test_gradients_of_rows_are_refused_where_whole_ones_travel(flag: str) -> None:
    roles.stop()
    strategy = fleet.DistributedStrategy()
    setattr(strategy, flag, True)
    fleet.init(is_collective=True, strategy=strategy)
    words = nn.Embedding(6, 4, sparse=True)
    with pytest.raises(fleet.PlanError, match=r"'0' has sparse = True.* with sparse=False"):
        laid_out(nn.Sequential(words, nn.Linear(4, 3)))
