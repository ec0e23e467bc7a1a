"""Parameter servers in a plan: what composes, what is refused, and that flags are in force."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fleetx as fleet
from fleetx import roles
from fleetx.api import session
from fleetx.nn import SparseEmbedding
from fleetx.ps.wire.arrays import Ids
from tests.ps.team import TOKEN, Team, team

STEPS = 6


class Net(nn.Module):
    def __init__(self, words: nn.Module | None = None) -> None:
        super().__init__()
        self.words: Any = words or SparseEmbedding(4, name="words")
        self.body = nn.Linear(12, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(self.words(ids).flatten(1)))).squeeze(-1)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    """Two servers, and this process as the only worker of their job."""
    yield from logged(2, monkeypatch)


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    """The same with one server."""
    yield from logged(1, monkeypatch)


def logged(servers: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    monkeypatch.setenv("FLEETX_PS_TOKEN", TOKEN.decode())
    with team(servers) as made:
        yield made
        if roles.started():
            fleet.stop_worker()
            roles.stop()


def init(here: Team, strategy: Any = None) -> None:
    maker = fleet.UserDefinedRoleMaker(
        current_id=0, role=fleet.Role.WORKER, worker_num=1, server_endpoints=here.endpoints
    )
    fleet.init(maker, strategy=strategy)
    fleet.init_worker()


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 30, (STEPS, 8, 3), generator=generator)
    return ids, torch.randn(STEPS, 8, generator=generator)


def trained(here: Team, strategy: Any = None, **rule: Any) -> tuple[Net, list[float]]:
    init(here, strategy)
    torch.manual_seed(0)
    model = fleet.distributed_model(Net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), **rule))
    losses = []
    for ids, wanted in zip(*data(), strict=True):
        loss = ((model(ids) - wanted) ** 2).mean()
        optimizer.minimize(loss)
        losses.append(loss.item())
    return model, losses


def plain(rows: torch.Tensor, change: Callable[[nn.Module, int], bool], lr: float) -> Net:
    """The same without fleetx; ``change`` looks at gradients and says whether to update."""
    torch.manual_seed(0)
    model = Net()
    model.words = nn.Embedding.from_pretrained(rows.clone(), freeze=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for number, (ids, wanted) in enumerate(zip(*data(), strict=True)):
        ((model(ids) - wanted) ** 2).mean().backward()
        if change(model, number):
            optimizer.step()
            optimizer.zero_grad()
    return model


def first_rows() -> torch.Tensor:
    ids: Ids = torch.arange(30).numpy()
    return torch.from_numpy(SparseEmbedding(4, name="x").options.initializer.rows(ids, 4, 0))


def same(model: Net, expected: Net) -> None:
    model.eval()
    rows = model.words(torch.arange(30))
    torch.testing.assert_close(rows, expected.words.weight.detach(), rtol=1e-5, atol=1e-6)
    for name in ("body", "head"):
        ours, theirs = getattr(model, name), getattr(expected, name)
        torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-5, atol=1e-6)


def test_alone_it_is_plain_training(here: Team) -> None:
    model, _ = trained(here, lr=0.3)
    same(model, plain(first_rows(), lambda model, number: True, 0.3))
    report = fleet.server_report()
    assert [each["tables"]["words"]["updates"] for each in report] == [STEPS, STEPS]


@pytest.mark.parametrize("scaled", [False, True])
def test_a_loop_that_clips_by_itself_sees_rows_too(here: Team, scaled: bool) -> None:
    strategy = fleet.DistributedStrategy()
    if scaled:
        # The loss is scaled, and every product is made in float32 all the same.
        strategy.amp = True
        strategy.amp_configs = {"custom_black_list": ["linear"]}
    init(here, strategy)
    torch.manual_seed(0)
    model = fleet.distributed_model(Net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.3))
    for ids, wanted in zip(*data(), strict=True):
        for part in (slice(0, 3), slice(3, 8)):
            optimizer.backward(((model(ids[part]) - wanted[part]) ** 2).sum() / 8)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.02)
        optimizer.step()
        optimizer.zero_grad()

    def change(model: nn.Module, number: int) -> bool:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.02)
        return True

    same(model, plain(first_rows(), change, 0.3))


def test_clipping_sees_rows_like_other_gradients(here: Team) -> None:
    strategy = fleet.DistributedStrategy()
    strategy.clip = True
    strategy.clip_configs = {"limit": 0.02}
    model, _ = trained(here, strategy, lr=0.3)

    def clip(model: nn.Module, number: int) -> bool:
        assert nn.utils.clip_grad_norm_(model.parameters(), 0.02) > 0.02
        return True

    same(model, plain(first_rows(), clip, 0.3))


def test_gradients_of_merged_batches_reach_the_servers_once(here: Team) -> None:
    strategy = fleet.DistributedStrategy()
    strategy.gradient_merge = True
    strategy.gradient_merge_configs = {"k_steps": 3}
    model, _ = trained(here, strategy, lr=0.3)

    def merge(model: nn.Module, number: int) -> bool:
        if number % 3 != 2:
            return False
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad /= 3
        return True

    same(model, plain(first_rows(), merge, 0.3))
    assert fleet.server_report()[0]["tables"]["words"]["updates"] == 2


def test_half_precision_is_scaled_back_and_an_overflow_is_not_pushed(here: Team) -> None:
    strategy = fleet.DistributedStrategy()
    strategy.amp = True
    strategy.amp_configs = {"init_loss_scaling": 2.0**40, "decr_every_n_nan_or_inf": 1}
    _, losses = trained(here, strategy, lr=0.3)
    updates = fleet.server_report()[0]["tables"]["words"]["updates"]
    assert updates == 0, "every gradient overflowed, and none was pushed"
    assert all(torch.isfinite(torch.tensor(losses)))


def test_recomputation_pushes_no_gradient_twice(here: Team) -> None:
    strategy = fleet.DistributedStrategy()
    strategy.recompute = True
    strategy.recompute_configs = {"checkpoints": ["body"]}
    model, _ = trained(here, strategy, lr=0.3)
    same(model, plain(first_rows(), lambda model, number: True, 0.3))


@pytest.mark.parametrize(
    "configs", [{"k_steps": 0}, {"k_steps": 0, "half_async": True}, {"k_steps": 2}]
)
def test_the_other_ways_of_exchanging_are_in_force(here: Team, configs: dict[str, Any]) -> None:
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    setattr(strategy, "a_sync_configs", configs)  # noqa: B010  (a plain dict)
    trained(here, strategy, lr=0.1)
    fleet.stop_worker()
    updates = here.handlers[0].call(None, {"method": "describe"})["tables"]["words"]["updates"]  # type: ignore[arg-type]
    # Geo sends once more at the end, when there is nothing left.
    assert updates in ((3, 4) if configs["k_steps"] else (STEPS,))


def test_the_configuration_of_the_document(here: Team) -> None:
    init(here)
    config = fleet.DistributeTranspilerConfig()
    config.split_method = "HashName"
    config.min_block_size = 8
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = fleet.distributed_optimizer(optimizer, config)
    model = fleet.distributed_model(model)
    ids, wanted = data()
    wrapped.minimize(((model(ids[0]) - wanted[0]) ** 2).mean())
    shares = [each["tables"]["dense-0"]["numbers"] for each in fleet.server_report()]
    assert sum(shares) == sum(p.numel() for p in model.parameters())
    assert min(shares) > 0


def test_what_spreads_parameters_rests_where_there_is_one_server(
    one: Team, caplog: pytest.LogCaptureFixture
) -> None:
    init(one)
    config = fleet.DistributeTranspilerConfig()
    config.split_method = "HashName"
    model = Net()
    wrapped = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), config)
    model = fleet.distributed_model(model)
    ids, wanted = data()
    wrapped.minimize(((model(ids[0]) - wanted[0]) ** 2).mean())
    lines = [r.getMessage() for r in caplog.records if "At rest" in r.getMessage()]
    assert lines == ["At rest: split_method, because one server holds all parameters."]


@pytest.mark.parametrize(
    ("settings", "mode", "half", "steps"),
    [
        ({}, False, False, -1),
        ({"sync_mode": False}, True, True, 0),
        ({"sync_mode": False, "runtime_split_send_recv": True}, True, False, 0),
        ({"sync_mode": False, "geo_sgd_mode": True, "geo_sgd_need_push_nums": 7}, True, False, 7),
    ],
)
def test_what_the_transpiler_s_words_mean(
    settings: dict[str, Any], mode: bool, half: bool, steps: int
) -> None:
    config = fleet.DistributeTranspilerConfig()
    for name, value in settings.items():
        setattr(config, name, value)
    made = config.strategy(fleet.DistributedStrategy())
    assert made.a_sync is mode
    assert made.a_sync_configs["half_async"] is half
    assert made.a_sync_configs["k_steps"] == steps


def test_wrong_words_of_the_transpiler() -> None:
    config = fleet.DistributeTranspilerConfig()
    with pytest.raises(AttributeError, match="did you mean 'sync_mode'"):
        config.sync_mod = True
    with pytest.raises(ValueError, match="one of 'BySize', 'RoundRobin', 'HashName'"):
        config.split_method = "Random"
    config.geo_sgd_mode = True
    with pytest.raises(ValueError, match="set sync_mode = False"):
        config.strategy(fleet.DistributedStrategy())


def planned(settings: dict[str, Any]) -> str:
    strategy = fleet.DistributedStrategy()
    strategy.mode = "ps"
    strategy.a_sync = True
    for name, value in settings.items():
        setattr(strategy, name, value)
    return strategy.explain()


def test_the_plan_says_how_workers_exchange() -> None:
    assert "applied as they come, and sent beside" in planned({})
    text = planned({"a_sync_configs": {"k_steps": 5, "max_staleness": 2}})
    assert "exchange differences every 5 updates" in text
    assert "No worker is more than 2 updates ahead" in text


def test_limits_that_are_never_reached_are_said_to_rest() -> None:
    for configs, flag in (
        ({"send_queue_size": 32}, "send_queue_size"),
        ({"max_unsent": 2, "max_merge_var_num": 4}, "max_unsent"),
        ({"max_unsent": 4, "max_staleness": 2}, "max_unsent"),
    ):
        text = planned({"a_sync_configs": configs})
        assert f"At rest: a_sync_configs['{flag}'], because a worker waits as soon as" in text
    assert "At rest" not in planned({"a_sync_configs": {"max_unsent": 4, "send_queue_size": 2}})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": "collective"}, "speaks of parameter servers, and this job has none"),
        ({"lars": True}, "runs on the servers"),
        ({"lamb": True}, "runs on the servers"),
        ({"sync_batch_norm": True}, "meet at the servers only"),
        ({"localsgd": True}, "both provide the way in which workers agree"),
        ({"dgc": True}, "needs"),
        ({"fp16_allreduce": True}, "needs an exchange of gradients"),
        ({"a_sync_configs": {"k_steps": 3, "half_async": True}}, "one way to exchange"),
        ({"a_sync_configs": {"thread_pool_size": 3}}, "has no effect"),
        ({"a_sync_configs": {"k_steps": 3, "lr_decay_rate": 0.5}}, "has no effect"),
        ({"a_sync_configs": {"lr_decay_steps": 3}}, "lr_decay_rate'] = 1 lets it stay"),
        (
            {"a_sync_configs": {"slice_var_up": False, "min_block_size": 8}},
            "slice_var_up = False cuts none",
        ),
    ],
)
def test_what_cannot_be_in_force_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(fleet.PlanError, match=words):
        planned(settings)


def test_an_optimizer_that_servers_do_not_have_is_refused(here: Team) -> None:
    init(here)
    model = fleet.distributed_model(Net())
    with pytest.raises(fleet.PlanError, match="servers update parameters with one of Adagrad"):
        fleet.distributed_optimizer(torch.optim.Adamax(model.parameters()))


def test_saving_and_loading_from_a_script(here: Team, tmp_path: Any) -> None:
    model, _ = trained(here, lr=0.3)
    fleet.save_persistables(None, str(tmp_path / "model"))
    model.eval()
    expected = model.words(torch.arange(30))
    weight = model.head.weight.detach().clone()
    model.train()
    optimizer = session.engines()[0].job.optimizer
    assert optimizer is not None
    ids, wanted = data()
    ((model(ids[0]) - wanted[0]) ** 2).mean().backward()
    session.engines()[0].finish()
    assert not torch.equal(model.head.weight, weight)
    fleet.load_persistables(str(tmp_path / "model"))
    model.eval()
    assert torch.equal(model.head.weight, weight)
    assert torch.equal(model.words(torch.arange(30)), expected)
    with pytest.raises(ValueError, match="mode=7 is not known"):
        fleet.save_persistables(str(tmp_path / "x"), mode=7)


def test_rows_fetched_ahead_do_not_wait_for_an_update_that_is_put_off(here: Team) -> None:
    """Which would be the end: it comes after the batch that waits for its rows."""
    strategy = fleet.DistributedStrategy()
    strategy.gradient_merge = True
    strategy.gradient_merge_configs = {"k_steps": 3}
    init(here, strategy)
    torch.manual_seed(0)
    model = fleet.distributed_model(Net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.3))
    ids, targets = data()
    for number, wanted in enumerate(targets):
        if number + 1 < STEPS:
            model.words.prefetch(ids[number + 1])
        optimizer.minimize(((model(ids[number]) - wanted) ** 2).mean())

    def merge(model: nn.Module, number: int) -> bool:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad /= 3 if number % 3 == 2 else 1
        return number % 3 == 2

    same(model, plain(first_rows(), merge, 0.3))


def test_an_inference_model_is_dense_parameters_and_tables(here: Team, tmp_path: Any) -> None:
    model, _ = trained(here, lr=0.3)
    fleet.save_inference_model(str(tmp_path))
    dense = load_file(tmp_path / "dense.safetensors")
    assert sorted(dense) == ["body.bias", "body.weight", "head.bias", "head.weight"]
    assert torch.equal(dense["head.weight"], model.head.weight.detach())
    model.eval()
    for path in (tmp_path / "tables" / "words").rglob("rows-*.safetensors"):
        part = load_file(path)
        assert torch.equal(model.words(part["ids"]), part["rows"])


def test_calls_in_the_wrong_place_are_explained(here: Team) -> None:
    with pytest.raises(roles.NotInitializedError, match="init_worker"):
        fleet.init_worker()
    maker = fleet.UserDefinedRoleMaker(
        current_id=0, role=fleet.Role.WORKER, worker_num=1, server_endpoints=here.endpoints
    )
    fleet.init(maker)
    with pytest.raises(
        RuntimeError, match=r"called by worker 0; call it where fleet.is_server\(\)"
    ):
        fleet.run_server()
    with pytest.raises(RuntimeError, match=r"call fleet.init_worker\(\) first"):
        fleet.save_persistables("x")
    model = fleet.distributed_model(Net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(RuntimeError, match=r"call fleet.init_worker\(\) before the first batch"):
        model(data()[0][0])
    assert optimizer.param_groups
    fleet.init_worker()
