"""Pipelines: schedules, tied weights, micro-batches, what is kept where, and refusals."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fleetx as fleet
from fleetx import roles
from fleetx.api import session
from fleetx.plan.mesh import data_place
from fleetx.testing import world
from tests.layouts import transformer
from tests.pairs import SCATTER, Pairs
from tests.rotation import rotating

FOUR = ["layers.1", "layers.2", "layers.3"]


def start(workers_of: dict[str, int], extras: dict[str, Any] | None = None, **configs: Any) -> None:
    strategy: Any = fleet.DistributedStrategy()
    strategy.pipeline = True
    strategy.pipeline_configs = {"split": ["layers.2"], "accumulate_steps": 4, **configs}
    strategy.hybrid_configs = {f"{axis}_degree": size for axis, size in workers_of.items()}
    for name, value in (extras or {}).items():
        setattr(strategy, name, value)
    roles.stop()  # models of an earlier job may still be there
    fleet.init(is_collective=True, strategy=strategy)


def begin(net: nn.Module, optimizer: str = "sgd") -> Any:
    rows = transformer.batch(0)[0][:2]
    model: Any = fleet.distributed_model(net, criterion=transformer.loss, sample=rows)
    fleet.distributed_optimizer(transformer.OPTIMIZERS[optimizer](model.parameters()))
    return model


def train(model: Any, steps: int = 3) -> list[float]:
    losses = []
    axes = session.current("test").engines[-1].plan.mesh
    place, shares = data_place(axes, fleet.worker_index())
    for number in range(steps):
        data = tuple(part.chunk(shares)[place] for part in transformer.batch(number))
        loss = model.train_batch(data)
        losses.append(float(fleet.util.all_reduce(loss.numpy())) / fleet.worker_num())
    return losses


def check(
    losses: list[float], state: dict[str, Tensor], tied: bool = False, steps: int = 3
) -> None:
    expected, weights = transformer.plain(steps, "sgd", tied=tied)
    assert losses == pytest.approx(expected, abs=1e-5)
    if fleet.worker_index() == 0:
        assert list(state) == list(weights)
        assert max(float((state[n] - weights[n]).abs().max()) for n in weights) < 1e-5


SCHEDULES: list[dict[str, Any]] = [
    {"schedule_mode": "1F1B"},
    {"schedule_mode": "F-then-B"},
    {"schedule_mode": "F-then-B", "accumulate_steps": 1, "micro_batch_size": 16},
    {"schedule_mode": "1F1B", "accumulate_steps": 1, "micro_batch_size": 2},
    {"schedule_mode": "interleaved", "split": FOUR},
    {"schedule_mode": "zero-bubble"},
    {"schedule_mode": "zero-bubble", "split": FOUR, "stages_per_rank": 2},
]


def scheduled(configs: dict[str, Any]) -> None:
    for tied in (False, True):
        start({"pp": 2}, **configs)
        model = begin(transformer.build(tied, seed=fleet.worker_index()))
        check(train(model), fleet.full_state_dict(model), tied)


@pytest.mark.parametrize("configs", rotating(SCHEDULES, 3))
def test_every_schedule_trains_as_one_process_and_ties_hold(configs: dict[str, Any]) -> None:
    world(2).run(scheduled, configs)


class Skips(nn.Module):
    """The second of four stages sends what its own last layer keeps for the gradient of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        skipping = self.layers[1](self.layers[0](x)).tanh()
        found = self.layers[3](self.layers[2](skipping))
        return self.layers[4](found + skipping)


@world(2)
def test_what_is_sent_may_be_kept_for_a_gradient_that_comes_later() -> None:
    data = torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(16, 4)
    losses = []
    for mode in ("zero-bubble", "interleaved"):
        split = ["layers.1", "layers.3", "layers.4"]
        start({"pp": 2}, split=split, schedule_mode=mode, stages_per_rank=2)
        torch.manual_seed(0)
        model: Any = fleet.distributed_model(
            Skips(), criterion=nn.functional.mse_loss, sample=data[0]
        )
        fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        losses.append([float(model.train_batch(data)) for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


@world(2)
def test_a_rank_keeps_its_stages_alone_under_the_old_names() -> None:
    start({"pp": 2})
    model = begin(transformer.build())
    kept = {name for name, _ in model.named_parameters()}
    whole = {name for name, _ in transformer.build().named_parameters()}
    layers = ("layers.0.", "layers.1.") if fleet.worker_index() == 0 else ("layers.2.", "layers.3.")
    ends = {"embed.weight", "place"} if fleet.worker_index() == 0 else {"head.weight"}
    inside = {name for name in whole if name.startswith(layers)}
    assert kept - inside - {"norm.weight", "norm.bias"} == ends
    assert inside <= kept < whole


@world(4)
def test_next_to_data_parallel_whatever_the_schedule() -> None:
    for configs in (SCHEDULES[0], SCHEDULES[4], SCHEDULES[5]):
        start({"pp": 2, "dp": 2}, **{"accumulate_steps": 2, **configs})
        model = begin(transformer.build(tied=True, seed=fleet.worker_index()))
        check(train(model), fleet.full_state_dict(model), tied=True)


@world(4)
def test_zero_next_to_it_reduces_as_often_as_it_is_told() -> None:
    counts = {}
    for stage, once in ((3, False), (3, True), (2, False), (1, False)):
        sharding = {"stage": stage, "pp_allreduce_in_optimize": once, "segment_broadcast_MB": 0.01}
        start({"pp": 2}, {"sharding": True, "sharding_configs": sharding})
        model = begin(transformer.build(tied=True))
        seen: list[str] = []
        with Pairs(lambda name, whole, seen=seen: seen.append(name)):  # type: ignore[misc]
            losses = train(model)
        check(losses, fleet.full_state_dict(model), tied=True)
        counts[stage, once] = seen.count(SCATTER)
    assert counts[3, False] == counts[2, False] == 4 * counts[3, True] == 4 * counts[1, False] > 0


@world(2)
def test_a_global_norm_counts_a_tied_weight_once() -> None:
    from torch.nn.utils import clip_grad_norm_

    clip = {"clip": True, "clip_configs": {"limit": 0.05}}
    start({"pp": 2}, clip)
    model = begin(transformer.build(tied=True))
    train(model)
    state = fleet.full_state_dict(model)
    plain = transformer.build(tied=True)
    optimizer = transformer.OPTIMIZERS["sgd"](plain.parameters())
    for number in range(3):
        tokens, targets = transformer.batch(number)
        transformer.loss(plain(tokens), targets).backward()
        clip_grad_norm_(plain.parameters(), 0.05, error_if_nonfinite=True)
        optimizer.step()
        optimizer.zero_grad()
    if fleet.worker_index() == 0:
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-6)


@world(2)
def test_an_overflow_on_one_stage_skips_the_update_on_all() -> None:
    start({"pp": 2}, {"amp": True, "amp_configs": {"init_loss_scaling": 1024.0}})
    model = begin(transformer.build())
    before = fleet.full_state_dict(model, everywhere=True)
    if fleet.worker_index() == 1:
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient * float("inf"))
    train(model, steps=1)
    after = fleet.full_state_dict(model, everywhere=True)
    assert all(torch.equal(before[name], after[name]) for name in before)


@world(2)
def test_it_is_balanced_by_measured_cost_when_nothing_is_said() -> None:
    start({"pp": 2}, split=[])
    model = begin(transformer.build())
    layers = {name.split(".")[1] for name, _ in model.named_parameters() if "layers" in name}
    everyone = fleet.util.all_gather([int(layer) for layer in sorted(layers)])
    assert sorted(layer for found in everyone for layer in found) == [0, 1, 2, 3]
    assert all(everyone), "each rank got layers"
    check(train(model), fleet.full_state_dict(model))


@world(2)
def test_a_chain_is_balanced_by_parameters_without_a_sample() -> None:
    start({"pp": 2}, split=[])
    torch.manual_seed(0)
    chain = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4)))
    plain = copy.deepcopy(chain)
    model: Any = fleet.distributed_model(chain, criterion=nn.functional.mse_loss)
    fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    assert sum(p.numel() for p in model.parameters()) == 2 * 20
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    x, y = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0)).unbind()
    for _ in range(2):
        loss = nn.functional.mse_loss(plain(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert float(model.train_batch((x, y))) == pytest.approx(float(loss.detach()), abs=1e-6)
    torch.testing.assert_close(
        fleet.full_state_dict(model, everywhere=True), dict(plain.state_dict())
    )


@world(2)
def test_code_without_a_sample_is_refused_with_what_to_call() -> None:
    start({"pp": 2}, split=[])
    told = r"no sample.*Transformer is code.*fleet.distributed_model\(model, sample=inputs\)"
    for split in ([], ["layers.2"]):
        start({"pp": 2}, split=split)
        with pytest.raises(fleet.PlanError, match=told):
            fleet.distributed_model(transformer.build(), criterion=transformer.loss)


@world(2)
def test_evaluation_gives_everyone_loss_and_outputs_of_any_batch() -> None:
    start({"pp": 2})
    model = begin(transformer.build())
    train(model, steps=1)
    _, weights = transformer.plain(1, "sgd")
    plain = transformer.build()
    plain.load_state_dict(weights)
    for samples in (16, 5, 1):
        tokens, targets = (part[:samples] for part in transformer.batch(9))
        outputs = model.eval_batch((tokens, targets), compute_loss=False)
        torch.testing.assert_close(outputs, plain(tokens), rtol=1e-4, atol=1e-5)
        loss = model.eval_batch((tokens, targets))
        torch.testing.assert_close(loss, transformer.loss(plain(tokens), targets))
    assert model.training


class Normed(nn.Module):
    """Batch norm, dropout that asks for the mode, two inputs and a skip over all stages."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(6, 6) for _ in range(3))
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor, shift: Tensor) -> dict[str, Tensor]:
        start = self.first(x)
        middle = self.norm(self.second(start + shift))
        middle = nn.functional.dropout(middle, 0.0, self.training)
        return {"logits": self.third(middle) + start * shift}


def squared(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    return ((outputs["logits"] - targets) ** 2).mean()


@world(2)
def test_statistics_move_once_per_micro_batch_and_inputs_and_outputs_are_trees() -> None:
    start({"pp": 2}, split=["second"], accumulate_steps=2)
    torch.manual_seed(0)
    rows = torch.zeros(2, 6), torch.zeros(2, 6)
    model: Any = fleet.distributed_model(Normed(), criterion=squared, sample=rows)
    fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    torch.manual_seed(0)
    plain = Normed()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    x, shift, y = torch.randn(3, 8, 6).unbind()
    for inputs in ((x, shift), {"x": x, "shift": shift}):
        model.train_batch((inputs, y))
        for part in range(2):
            pieces = [whole.chunk(2)[part] for whole in (x, shift, y)]
            (squared(plain(*pieces[:2]), pieces[2]) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    state = fleet.full_state_dict(model, everywhere=True)
    assert list(state) == list(plain.state_dict())
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-6)
    found = model.eval_batch(((x, shift), y), compute_loss=False)
    plain.eval()
    torch.testing.assert_close(found["logits"], plain(x, shift)["logits"], rtol=1e-4, atol=1e-6)


class Again(nn.Module):
    """One block under two names, called in both stages."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.last = nn.Linear(6, 6)
        self.middle = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x).relu()).relu())


@world(2)
def test_a_layer_that_several_stages_call_is_kept_by_all_and_moves_alike() -> None:
    start({"pp": 2}, split=["middle"], accumulate_steps=2)
    torch.manual_seed(0)
    model: Any = fleet.distributed_model(
        Again(), criterion=nn.functional.mse_loss, sample=torch.zeros(2, 6)
    )
    fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    torch.manual_seed(0)
    plain = Again()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.randn(2, 8, 6).unbind()
    for _ in range(3):
        model.train_batch((x, y))
        nn.functional.mse_loss(plain(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    state = fleet.full_state_dict(model, everywhere=True)
    assert list(state) == list(plain.state_dict())
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-6)


@world(1)
def test_one_rank_alone_runs_the_same_micro_batches() -> None:
    start({"pp": 1}, split=[])
    model = begin(transformer.build())
    check(train(model), fleet.full_state_dict(model))


@world(2)
def test_a_scheduler_counts_updates() -> None:
    start({"pp": 2}, {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 2}})
    rows = transformer.batch(0)[0][:2]
    model: Any = fleet.distributed_model(
        transformer.build(), criterion=transformer.loss, sample=rows
    )
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    rates = []
    for number in range(4):
        model.train_batch(transformer.batch(number), optimizer, scheduler)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [1.0, 0.5, 0.5, 0.25]


@world(2)
def test_refusals_say_what_to_change() -> None:
    def refused(words: str, **configs: Any) -> None:
        start(configs.pop("axes", {"pp": 2}), configs.pop("extras", None), **configs)
        with pytest.raises(fleet.PlanError, match=words):
            train(begin(transformer.build()), steps=1)

    refused("layers.9", split=["layers.9"])
    refused("2 names, which make 3 stages", split=["layers.1", "layers.2"])
    refused(r"a batch of 16 samples cannot be cut into 3 micro-batches", accumulate_steps=3)
    refused("pipeline = True has no partner", axes={"pp": 1})


@world(2)
def test_fewer_layers_than_stages() -> None:
    start({"pp": 2}, split=[], schedule_mode="interleaved", stages_per_rank=4)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(fleet.PlanError, match="8 stages"):
        fleet.distributed_model(net, criterion=transformer.loss, sample=torch.zeros(2, 4))


@world(2)
def test_calling_the_model_itself_is_refused() -> None:
    start({"pp": 2})
    model = begin(transformer.build())
    with pytest.raises(fleet.PlanError, match="train_batch"):
        model(transformer.batch(0)[0])


@world(2)
def test_a_missing_criterion_is_named() -> None:
    start({"pp": 2})
    model: Any = fleet.distributed_model(transformer.build(), sample=transformer.batch(0)[0][:2])
    fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(fleet.PlanError, match="criterion"):
        model.train_batch(transformer.batch(0))


def test_zero_bubble_and_sharding() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.pipeline = strategy.sharding = True
    strategy.pipeline_configs = {"split": ["layers.2"], "schedule_mode": "zero-bubble"}
    with pytest.raises(fleet.PlanError, match="zero-bubble"):
        strategy.explain(workers=4)


def test_the_explanation_gives_the_global_batch() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.pipeline = strategy.sharding = strategy.gradient_merge = True
    strategy.pipeline_configs = {"split": ["layers.2"], "accumulate_steps": 4}
    strategy.gradient_merge_configs = {"k_steps": 3}
    strategy.sharding_configs = {"sharding_degree": 2, "dp_degree": 2}
    shares = "4 shares of the data (dp 2 x sharding 2)"
    batch = f"Global batch: one worker's batch x {shares} x 3 batches per update; each batch runs "
    assert f"{batch}in 4 micro-batches." in strategy.explain(workers=8)
    strategy.pipeline_configs = {"accumulate_steps": 1, "micro_batch_size": 8}
    assert "each batch runs in micro-batches of 8." in strategy.explain(workers=8)


def test_options_that_would_do_nothing_are_refused() -> None:
    strategy = fleet.DistributedStrategy()
    with pytest.raises(ValueError, match="p2p_cache_shape"):
        strategy.pipeline_configs = {"p2p_cache_shape": False}
    with pytest.raises(ValueError, match="stages_per_rank"):
        strategy.pipeline_configs = {"stages_per_rank": 2}
