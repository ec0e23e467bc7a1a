"""Sharding: ranks train as one process does; what each keeps and sends is counted."""

import io
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fleetx as fleet
from fleetx import PlanError, roles
from fleetx.api import session
from fleetx.comm.local import local
from fleetx.plan.compose import compose
from fleetx.plan.job import Job
from fleetx.plan.plain_step import plain_step
from fleetx.strategies.sharding import Sharding
from fleetx.testing import world
from tests.layouts import transformer
from tests.pairs import GATHER, SCATTER, Pairs
from tests.rotation import rotating
from tests.strategies.paddle import golden, optimizer_of

STAGES = pytest.mark.parametrize("stage", [1, 2, 3])
SMALL = {"segment_broadcast_MB": 0.004}
"""Layers of a block, which has 12 KiB, are units."""
BLOCKS: dict[str, Any] = {
    "sharding_segment_strategy": "segment_anchors",
    "segment_anchors": ["embed", "layers.?"],
}
"""A unit for the table, one for each of the four blocks, and one for what follows them."""
UNITS = 7
"""With the one of what belongs to the model itself: its positions."""
NUMBERS = sum(p.numel() for p in transformer.build().parameters())


def asked(configs: dict[str, Any] | None, **settings: Any) -> fleet.DistributedStrategy:
    strategy = fleet.DistributedStrategy()
    if configs is not None:
        settings = {"sharding": True, "sharding_configs": configs, **settings}
    for name, value in settings.items():
        setattr(strategy, name, value)
    return strategy


def start(configs: dict[str, Any] | None = None, **settings: Any) -> None:
    roles.stop()  # models of an earlier job may still be there
    fleet.init(is_collective=True, strategy=asked(configs, **settings))


def distributed(rule: str = "sgd", tied: bool = False) -> tuple[transformer.Transformer, Any]:
    # The weights of the first rank count, so the others may start with any.
    model = transformer.build(tied, seed=fleet.worker_index())
    fleet.distributed_model(model, criterion=transformer.loss)
    return model, fleet.distributed_optimizer(transformer.OPTIMIZERS[rule](model.parameters()))


def share(number: int) -> tuple[Tensor, Tensor]:
    """This worker's samples of a batch."""
    count, index = fleet.worker_num(), fleet.worker_index()
    tokens, targets = transformer.batch(number)
    return tokens.chunk(count)[index], targets.chunk(count)[index]


def whole(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: value.full_tensor() if isinstance(value, DTensor) else value.detach().clone()
        for name, value in model.state_dict().items()
    }


def train(
    configs: dict[str, Any] | None,
    settings: dict[str, Any],
    steps: int = 4,
    rule: str = "sgd",
    tied: bool = False,
) -> tuple[list[float], dict[str, Tensor]]:
    """The losses of the global batches, and the whole weights."""
    start(configs, **settings)
    model, optimizer = distributed(rule, tied)
    losses = []
    for number in range(steps):
        tokens, targets = share(number)
        loss = transformer.loss(model(tokens), targets)
        optimizer.minimize(loss)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(float(mean) / fleet.worker_num())
    return losses, whole(model)


def close(
    found: tuple[list[float], dict[str, Tensor]],
    expected: tuple[list[float], dict[str, Tensor]],
    tolerance: float = 1e-6,
) -> None:
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-5)
    assert list(found[1]) == list(expected[1]), "names and their order stay"
    for name, value in found[1].items():
        torch.testing.assert_close(value, expected[1][name], rtol=0, atol=tolerance, msg=name)


@pytest.mark.parametrize("configs", [{}, SMALL], ids=["one unit", "small"])
@STAGES
def test_two_ranks_train_as_one_process(stage: int, configs: dict[str, Any]) -> None:
    for found in world(2).run(train, {"stage": stage, **configs}, {}):
        close(found, transformer.plain(4, "sgd"))


FOUR_RANKS = [(1, 2), (2, 2), (3, 2), (2, 4), (3, 4)]


@pytest.mark.parametrize(("stage", "degree"), rotating(FOUR_RANKS, 2, rows=True))
def test_four_ranks_train_as_one_process(stage: int, degree: int) -> None:
    """Over all of them, or as two copies of two ranks each."""
    configs = {"stage": stage, "sharding_degree": degree, "dp_degree": 4 // degree, **BLOCKS}
    for found in world(4).run(train, configs, {}):
        close(found, transformer.plain(4, "sgd"))


@STAGES
def test_tied_weights(stage: int) -> None:
    for found in world(2).run(train, {"stage": stage, **SMALL}, {}, tied=True):
        close(found, transformer.plain(4, "sgd", tied=True))


def test_one_worker_has_nothing_to_spread() -> None:
    ((losses, weights),) = world(1).run(train, {"optimize_offload": True}, {})
    close((losses, weights), transformer.plain(4, "sgd"))


def test_two_workers_walk_paddles_trajectory() -> None:
    data = golden("dist_sharding_sgd")

    def follow() -> list[tuple[float, Tensor, Tensor]]:
        start(data["strategy"]["sharding_configs"])
        rank = fleet.worker_index()
        model = nn.Linear(3, 1)
        model.weight.data = torch.tensor(data["w0"]).T.contiguous()
        model.bias.data = torch.tensor(data["b0"])
        fleet.distributed_model(model)
        optimizer = fleet.distributed_optimizer(optimizer_of(data["optimizer"], model))
        found = []
        for x, y in zip(data["x"][rank], data["y"][rank], strict=True):
            loss = F.mse_loss(model(torch.tensor(x)), torch.tensor(y))
            optimizer.minimize(loss)
            now = whole(model)
            found.append((float(loss), now["weight"].T, now["bias"]))
        return found

    for theirs, ours in zip(data["ranks"], world(2).run(follow), strict=True):
        assert len(theirs) == len(ours) > 5
        for row, (loss, weight, bias) in zip(theirs, ours, strict=True):
            assert loss == pytest.approx(row["local_loss"], abs=1e-6)
            # There a parameter is known to its owner alone.
            for key, value in (("w", weight), ("b", bias)):
                if row[key] is not None:
                    torch.testing.assert_close(value, torch.tensor(row[key]), rtol=0, atol=1e-6)


# What each rank keeps.


def numbers(tensors: Iterable[Tensor | None]) -> int:
    """How many numbers lie on this rank."""
    return sum(local(tensor).numel() for tensor in tensors if tensor is not None)


def memory(tensors: Iterable[Tensor]) -> int:
    """Bytes under the tensors on this rank."""
    found = {local(t).untyped_storage().data_ptr(): local(t).untyped_storage() for t in tensors}
    return sum(storage.nbytes() for storage in found.values())


@world(2)
@STAGES
def test_each_rank_keeps_its_part(stage: int) -> None:
    start({"stage": stage, **BLOCKS})
    model, optimizer = distributed()
    names = [name for name, _ in transformer.build().named_parameters()]
    for number in range(2):
        tokens, targets = share(number)
        loss = transformer.loss(model(tokens), targets)
        gathered = [p for p in model.parameters() if not isinstance(p, DTensor)]
        assert numbers(gathered) == (0 if stage == 3 else NUMBERS), "in use, only stage 3 frees"
        optimizer.backward(loss)
        assert numbers(p.grad for p in model.parameters()) == NUMBERS // 2
        optimizer.step()
        optimizer.zero_grad()
        parameters = list(model.parameters())
        assert [name for name, _ in model.named_parameters()] == names
        assert all(isinstance(p, DTensor) for p in parameters)
        assert numbers(parameters) == NUMBERS // 2
        assert memory(parameters) == 4 * NUMBERS // 2
        assert all(p.grad is None for p in parameters)
        state = [value["momentum_buffer"] for value in optimizer.state.values()]
        assert len(state) == len(parameters)
        assert numbers(state) == NUMBERS // 2
        assert memory(state) == 4 * NUMBERS // 2


@world(4)
def test_copies_keep_the_same_parts() -> None:
    """Two copies of two ranks each; positions are six rows, which four ranks cannot halve."""
    start({"sharding_degree": 2, **BLOCKS})
    model, _ = distributed()
    assert numbers(model.parameters()) == NUMBERS // 2
    start({"sharding_degree": 4, **BLOCKS})
    model, _ = distributed()
    mine = torch.tensor(numbers(model.parameters()))
    assert NUMBERS // 4 - 2 * transformer.WIDTH <= mine <= NUMBERS // 4 + transformer.WIDTH
    dist.all_reduce(mine)
    assert mine == NUMBERS, "nothing is lost"


MERGED: dict[str, Any] = {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 3}}


@world(2)
@STAGES
def test_gradients_that_wait_are_whole_in_stage_1_alone(stage: int) -> None:
    start({"stage": stage, **BLOCKS}, **MERGED)
    model, optimizer = distributed()
    for number in range(6):
        optimizer.minimize(transformer.loss(model(share(number)[0]), share(number)[1]))
        kept = optimizer.state_dict().get("strategies", {})
        inside = numbers(kept.get("sharding", {}).get("gradients", {}).values())
        waiting = (number + 1) % 3 != 0
        assert inside == (NUMBERS if waiting and stage == 1 else 0)
        parts = numbers(p.grad for p in model.parameters())
        assert parts == (NUMBERS // 2 if waiting and stage > 1 else 0)


def test_whole_gradients_that_wait_do_not_become_parts() -> None:
    with pytest.raises(ValueError, match="or load a checkpoint from the end of a group"):
        Sharding(stage=3).load_state_dict({"gradients": {"weight": torch.ones(2)}})


# What ranks send.


def counted(run: Callable[[], Any]) -> dict[str, int]:
    found: Counter[str] = Counter()
    with CommDebugMode() as mode, Pairs(lambda name, whole: found.update([name])):
        run()
    for op, count in mode.get_comm_counts().items():
        found[str(op).split(".")[-1]] += count
    return {name: count for name, count in found.items() if count}


def traffic(model: nn.Module, optimizer: Any, number: int) -> list[dict[str, int]]:
    """Collectives of forward, backward and update."""
    tokens, targets = share(number)
    losses: list[Tensor] = []
    return [
        counted(lambda: losses.append(transformer.loss(model(tokens), targets))),
        counted(lambda: optimizer.backward(losses[0])),
        counted(lambda: (optimizer.step(), optimizer.zero_grad())),
    ]


@world(2)
@STAGES
def test_units_are_gathered_in_forward_and_in_stage_3_again(stage: int) -> None:
    start({"stage": stage, **BLOCKS})
    model, optimizer = distributed()
    again = {GATHER: UNITS} if stage == 3 else {}
    for number in range(3):
        found = traffic(model, optimizer, number)
        assert found == [{GATHER: UNITS}, {SCATTER: UNITS, **again}, {}]


@world(2)
@STAGES
def test_a_group_of_batches_is_reduced_once_in_stage_1(stage: int) -> None:
    start({"stage": stage, **BLOCKS}, **MERGED)
    model, optimizer = distributed()
    found = [traffic(model, optimizer, number)[1].get(SCATTER, 0) for number in range(6)]
    every, last = [UNITS] * 6, [0, 0, UNITS] * 2
    assert found == (last if stage == 1 else every)


@world(4)
def test_copies_add_up_what_their_ranks_hold() -> None:
    start({"sharding_degree": 2, **BLOCKS})
    model, optimizer = distributed()
    _, backward, _ = traffic(model, optimizer, 0)
    assert backward == {GATHER: UNITS, SCATTER: UNITS, "allreduce_": UNITS}


def units() -> list[list[str]]:
    strategies = session.engines()[-1].plan.strategies
    (sharding,) = (strategy for strategy in strategies if isinstance(strategy, Sharding))
    return sharding.units


@world(2)
@pytest.mark.parametrize(
    ("configs", "gathers"),
    [
        ({}, 2),
        # Two blocks are more than 20 KiB: the table and two of them, two more, the rest.
        ({"segment_broadcast_MB": 20 / 1024}, 4),
        ({"segment_anchors": ["layers.1"]}, 3),
        ({"segment_anchors": ["layers.?"]}, 6),
        ({"segment_anchors": ["layers.0", "layers.1", "layers.2.mlp.*"]}, 6),
        (BLOCKS, UNITS),
    ],
)
def test_options_decide_how_many_units_there_are(configs: dict[str, Any], gathers: int) -> None:
    start(configs)
    model, optimizer = distributed()
    assert traffic(model, optimizer, 0)[0] == {GATHER: gathers}
    assert len(units()) == gathers - 1
    known = [name for name, _ in model.named_modules()]
    dealt = [name for unit in units() for name in unit]
    assert dealt == sorted(dealt, key=known.index)


class Spy(TorchDispatchMode):
    """Collectives and the type of what they carry; CommDebugMode stumbles over a replay."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[str, torch.dtype]] = []
        self._pairs = Pairs(lambda name, whole: self.seen.append((name, whole.dtype)))

    def __enter__(self) -> "Spy":
        self._pairs.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._pairs.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            self.seen.append((func._opname, tensors[-1].dtype))
        return func(*args, **(kwargs or {}))

    def types(self, collective: str) -> list[torch.dtype]:
        return [dtype for name, dtype in self.seen if name == collective]


@world(2)
@pytest.mark.parametrize(("stage", "half"), [(1, True), (2, True), (3, True), (3, False)])
def test_gradients_travel_in_16_bits(stage: int, half: bool) -> None:
    start({"stage": stage, **BLOCKS}, fp16_allreduce=half)
    model, optimizer = distributed()
    tokens, targets = share(0)
    with Spy() as spy:
        optimizer.minimize(transformer.loss(model(tokens), targets))
    wire = torch.float16 if half else torch.float32
    assert spy.types(SCATTER) == [wire] * UNITS
    assert set(spy.types(GATHER)) == {torch.float32}, "weights keep 32"
    state = [value["momentum_buffer"].dtype for value in optimizer.state.values()]
    assert set(state) == {torch.float32}


@world(2)
@STAGES
def test_a_replay_finds_its_unit_gathered(stage: int) -> None:
    """Recompute sends nothing of its own: the unit is gathered for backward anyway."""
    blocks = {"recompute": True, "recompute_configs": {"checkpoints": ["layers.*"]}}
    start({"stage": stage, **BLOCKS}, **blocks)
    model, optimizer = distributed()
    for number in range(2):
        tokens, targets = share(number)
        with Spy() as spy:
            optimizer.minimize(transformer.loss(model(tokens), targets))
        assert len(spy.types(GATHER)) == (2 * UNITS if stage == 3 else UNITS)
        assert len(spy.types(SCATTER)) == UNITS


# Company.

RECOMPUTE = {"recompute": True, "recompute_configs": {"checkpoints": ["layers.?"]}}
COMPANY: dict[str, dict[str, Any]] = {
    "clip": {"clip": True, "clip_configs": {"limit": 0.2}},
    "clip norm": {"clip": True, "clip_configs": {"by": "norm", "limit": 0.05}},
    "lars": {"lars": True, "lars_configs": {"lars_coeff": 0.1}},
    "lamb": {"lamb": True},
    "recompute": RECOMPUTE,
    "inside": {
        "recompute": True,
        "recompute_configs": {"checkpoints": ["layers.0.attention", "layers.2.mlp.*"]},
    },
    "offload": {
        "recompute": True,
        "recompute_configs": {"checkpoints": ["layers.?"], "enable_offload": True},
    },
    "merge": {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 2}},
    "sum": {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 2, "avg": False}},
}
COMPANY["all"] = {
    key: value for name in ("recompute", "merge", "clip") for key, value in COMPANY[name].items()
}


def rule_for(company: str) -> str:
    return "adam" if company == "lamb" else "sgd"


TOGETHER = [
    *((company, 3) for company in COMPANY),
    *((company, stage) for company in ("clip", "merge", "all") for stage in (1, 2)),
    ("lamb", 1),
    ("inside", 2),
]


@pytest.mark.parametrize(("company", "stage"), rotating(TOGETHER, 3, rows=True))
def test_company(company: str, stage: int) -> None:
    """The same strategies without sharding, on one worker, give the same weights."""
    settings, rule = COMPANY[company], rule_for(company)
    (expected,) = world(1).run(train, None, settings, rule=rule)
    first, second = world(2).run(train, {"stage": stage, **SMALL}, settings, rule=rule)
    # Adam divides by gradients, so it makes much of the last digit of small ones.
    close(first, expected, tolerance=1e-5 if rule == "adam" else 1e-6)
    close(second, first, tolerance=0)


@pytest.mark.parametrize("company", ["lars", "all"])
def test_company_of_copies(company: str) -> None:
    settings, rule = COMPANY[company], rule_for(company)
    (expected,) = world(1).run(train, None, settings, rule=rule)
    for found in world(4).run(train, {"sharding_degree": 2, **BLOCKS}, settings, rule=rule):
        close(found, expected)


@STAGES
def test_its_own_option_merges_gradients(stage: int) -> None:
    expected = transformer.plain(4, "sgd", merged=2)
    for found in world(2).run(train, {"stage": stage, "gradient_merge_acc_step": 2}, {}):
        close(found, expected)


@pytest.mark.parametrize(
    ("stage", "settings"),
    [
        (3, {"amp_configs": {"dtype": "bfloat16"}}),
        (2, {"amp_configs": {"init_loss_scaling": 1024.0}}),
        (3, {"amp_configs": {"use_pure_bf16": True}}),
        (1, {"amp_configs": {"dtype": "bfloat16"}, **COMPANY["all"]}),
    ],
    ids=["bfloat16", "float16", "pure", "all"],
)
def test_next_to_amp(stage: int, settings: dict[str, Any]) -> None:
    settings = {"amp": True, **settings}
    before, (expected,) = transformer.build().state_dict(), world(1).run(train, None, settings)
    moved = max(float((expected[1][name] - before[name]).abs().max()) for name in before)
    for losses, weights in world(2).run(train, {"stage": stage, **SMALL}, settings):
        torch.testing.assert_close(losses, expected[0], rtol=0, atol=2e-2)
        apart = max(float((expected[1][name] - weights[name]).abs().max()) for name in before)
        assert apart < 0.05 * moved


@world(2)
@STAGES
def test_an_overflow_in_one_part_skips_the_update_of_all(stage: int) -> None:
    scaling = {"decr_every_n_nan_or_inf": 1, "init_loss_scaling": 1024.0}
    start({"stage": stage}, amp=True, amp_configs=scaling)
    model = fleet.distributed_model(nn.Linear(4, 4))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    before = whole(model)
    # Only the first row of the weights, which the first rank holds, gets infinite gradients.
    outputs = model(torch.ones(2, 4))
    loss = (outputs[:, 0] * 1e36).sum() + outputs[:, 1:].sum()
    optimizer.backward(loss)
    gradients = [local(p.grad) for p in model.parameters() if p.grad is not None]
    finite = all(bool(gradient.isfinite().all()) for gradient in gradients)
    assert len(gradients) == 2
    assert finite == (fleet.worker_index() == 1)
    optimizer.step()
    optimizer.zero_grad()
    torch.testing.assert_close(whole(model), before, rtol=0, atol=0)
    assert optimizer.state_dict()["strategies"]["amp"]["scale"] == 512.0
    optimizer.minimize(model(torch.ones(2, 4)).sum())
    assert not torch.equal(whole(model)["weight"], before["weight"])


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def pictures(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(8, 6, generator=generator) + torch.arange(8).view(8, 1)
    return x, torch.randint(0, 4, (8,), generator=generator)


def train_pictures(settings: dict[str, Any], stage: int) -> dict[str, Tensor]:
    start({"stage": stage} if dist.get_world_size() > 1 else None, **settings)
    model = fleet.distributed_model(Pictures())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for number in range(4):
        x, y = (t.chunk(dist.get_world_size())[fleet.worker_index()] for t in pictures(number))
        optimizer.minimize(F.cross_entropy(model(x), y))
    return whole(model)


@pytest.mark.parametrize("stage", [1, 3])
def test_statistics_of_batch_norm_are_the_first_workers(stage: int) -> None:
    first, second = world(2).run(train_pictures, {}, stage)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert first["body.1.num_batches_tracked"] == 4
    (alone,) = world(1).run(train_pictures, {}, stage)
    apart = (first["body.1.running_mean"] - alone["body.1.running_mean"]).abs().max()
    assert apart > 0.1, "the halves differ, so it matters whose statistics they are"


@pytest.mark.parametrize("stage", [2, 3])
def test_synchronised_batch_norm_is_that_of_one_process(stage: int) -> None:
    settings = {"sync_batch_norm": True}
    (expected,) = world(1).run(train_pictures, settings, stage)
    for found in world(2).run(train_pictures, settings, stage):
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-6)


def test_offloaded_state_is_accepted_where_there_is_one_memory() -> None:
    for found in world(2).run(train, {"optimize_offload": True}, {}):
        close(found, transformer.plain(4, "sgd"))


@world(1)
def test_offloaded_state_is_on_the_host_whenever_a_batch_begins() -> None:
    """Also after a checkpoint, which needed it on the device; here the CPU plays that part."""
    mesh = init_device_mesh("cpu", (1, 1, 1, 1), mesh_dim_names=("pp", "dp", "sharding", "tp"))
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    job = Job(device=torch.device("cuda"), mesh=mesh, model=model, optimizer=optimizer)
    step = Sharding(optimize_offload=True).step(plain_step(job), job)

    def held() -> int:
        return memory(value["momentum_buffer"] for value in optimizer.state.values())

    step.sync(True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    step.update()
    assert held() == 0
    optimizer.state_dict()
    assert held() == 4 * (16 + 4)
    step.sync(True)
    assert held() == 0


# Loops that do more than the plain one.


@world(2)
@STAGES
def test_a_forward_between_backward_and_update_leaves_no_old_weights(stage: int) -> None:
    start({"stage": stage, **BLOCKS})
    model, optimizer = distributed()
    for number in range(4):
        tokens, targets = share(number)
        optimizer.backward(transformer.loss(model(tokens), targets))
        with torch.no_grad():
            model(tokens)
        optimizer.step()
        optimizer.zero_grad()
    expected = transformer.plain(4, "sgd")[1]
    torch.testing.assert_close(whole(model), expected, rtol=0, atol=1e-6)


@world(2)
@STAGES
def test_whole_batches_and_evaluation(stage: int) -> None:
    start({"stage": stage, **BLOCKS})
    model: Any = distributed()[0]
    reference = transformer.build()
    update = transformer.OPTIMIZERS["sgd"](reference.parameters())
    batch = transformer.batch(9)
    for number in range(3):
        with torch.no_grad():
            expected = float(transformer.loss(reference(batch[0]), batch[1]))
        assert float(model.eval_batch(batch)) == pytest.approx(expected, abs=1e-5)
        model.train_batch(share(number))
        tokens, targets = transformer.batch(number)
        transformer.loss(reference(tokens), targets).backward()
        update.step()
        update.zero_grad()


@world(2)
@STAGES
def test_the_module_stays_the_users(stage: int) -> None:
    start({"stage": stage, **SMALL})
    model = transformer.build()
    names, modules = list(model.state_dict()), dict(model.named_modules())
    assert fleet.distributed_model(model) is model
    assert isinstance(model, transformer.Transformer)
    assert list(model.state_dict()) == names
    assert dict(model.named_modules()) == modules


def job(
    stage: int, batches: range, states: list[bytes] | None, settings: dict[str, Any]
) -> tuple[bytes, dict[str, Tensor]]:
    start({"stage": stage, **BLOCKS}, **settings)
    model, optimizer = distributed("adam")
    if states is not None:
        mine = io.BytesIO(states[fleet.worker_index()])
        saved = torch.load(mine, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    for number in batches:
        tokens, targets = share(number)
        optimizer.minimize(transformer.loss(model(tokens), targets))
    kept = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, kept)
    return kept.getvalue(), whole(model)


@pytest.mark.parametrize(
    ("stage", "settings"),
    [(1, MERGED), (2, MERGED), (3, MERGED), (3, {}), (1, MERGED | {"fp16_allreduce": True})],
    ids=["1", "2", "3", "3 at the end", "1 in 16 bits"],
)
def test_a_new_job_continues_exactly(stage: int, settings: dict[str, Any]) -> None:
    """The second job begins in the middle of a group of batches."""
    (_, expected), _ = world(2).run(job, stage, range(6), None, settings)
    half = world(2).run(job, stage, range(4), None, settings)
    rest = world(2).run(job, stage, range(4, 6), [state for state, _ in half], settings)
    for _, found in rest:
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


# Refusals.


def refusal(workers: int, configs: dict[str, Any], **settings: Any) -> str:
    with pytest.raises(PlanError) as caught:
        compose(asked(configs, **settings).request(), workers)
    return str(caught.value)


def test_plans_that_spread_nothing_are_refused() -> None:
    told = refusal(4, {"sharding_degree": 1, "dp_degree": 4})
    assert "strategy.sharding = True has no partner" in told
    assert "so it would do nothing. Set the degree of sharding to 2 or more" in told
    told = refusal(4, {"dp_degree": 4})
    assert "it would do nothing" in told


def test_hybrid_without_copies_is_refused() -> None:
    told = refusal(4, {"hybrid_dp": True})
    assert "sharding_configs['hybrid_dp'] = True asks for several copies" in told
    assert "the 4 workers hold one. Set sharding_configs['sharding_degree'] below 4" in told


def test_pipeline_options_without_a_pipeline_are_refused() -> None:
    told = refusal(2, {"pp_allreduce_in_optimize": True})
    assert "speaks of a pipeline's micro-batches, and there is no pipeline" in told
    assert "Set strategy.pipeline = True" in told
    told = refusal(4, {"pp_degree": 2})
    assert "sharding_configs['pp_degree'] = 2 spreads the job over the axis pp" in told
    told = refusal(4, {"mp_degree": 2})
    assert "sharding_configs['mp_degree'] = 2 spreads the job over the axis tp" in told


def test_degrees_that_do_not_fit_are_refused() -> None:
    told = refusal(4, {"sharding_degree": 2, "dp_degree": 3})
    assert "sharding_configs['dp_degree'] = 3" in told
    assert "sharding_configs['sharding_degree'] = 2" in told
    assert "gives 6, which is not the 4 workers" in told
    assert "gives 3, which does not divide the 4 workers" in refusal(4, {"sharding_degree": 3})


def test_two_counts_of_batches_are_refused() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.sharding, strategy.gradient_merge = True, True
    strategy.sharding_configs = {"gradient_merge_acc_step": 2}
    strategy.gradient_merge_configs = {"k_steps": 4}
    with pytest.raises(PlanError, match=r"acc_step'\] = 2 and .*\['k_steps'\] = 4 contradict"):
        strategy.request()
    strategy.gradient_merge_configs = {"k_steps": 2}
    assert strategy.request().strategies["gradient_merge"]["k_steps"] == 2


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("optimize_cast", "weights keep 32 bits between steps"),
        ("enable_tuning", "there is nothing to tune"),
        ("use_calc_stream", "torch overlaps communication on streams of its own"),
    ],
)
def test_options_without_effect_are_refused(option: str, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"{option}'\] = True cannot be in force: {reason}"):
        asked({option: True})
    asked({option: False})


@pytest.mark.parametrize(
    ("configs", "words"),
    [
        ({"sharding_segment_strategy": "segment_anchors"}, "would leave the model in one piece"),
        ({"sharding_segment_strategy": "by_taste"}, "one of 'segment_broadcast_MB', 'segment_anc"),
        ({"segment_broadcast_MB": 0}, "must be above 0, got 0"),
        ({"segment_broadcast_MB": 1, "segment_anchors": ["embed"]}, "it is cut once"),
        ({"stage": 4}, "must be below 4, got 4"),
        ({"stage": 0}, "must be at least 1, got 0"),
        ({"sharding_degree": 0}, "must be at least 1, got 0"),
        ({"gradient_merge_acc_step": 0}, "must be at least 1, got 0"),
        ({"segment_anchor": ["layers"]}, "did you mean 'segment_anchors'"),
    ],
)
def test_wrong_values_are_refused_at_once(configs: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        asked(configs)


@pytest.mark.parametrize("workers", [1, 2])
def test_anchors_that_name_nothing_are_refused_with_a_hint(workers: int) -> None:
    def told(anchor: str) -> str:
        start({"segment_anchors": [anchor]})
        with pytest.raises(PlanError) as caught:
            distributed()
        return str(caught.value)

    (near, *_), (far, *_) = (world(workers).run(told, anchor) for anchor in ("layer.0", "block.*"))
    assert near.startswith("sharding_configs['segment_anchors'] names 'layer.0', and the model has")
    assert near.endswith("no such submodule; did you mean 'layers.0'?")
    assert "names 'block.*', and the model has no such submodule; known: embed, head" in far


def test_the_plan_tells_what_is_sent() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.sharding = True
    strategy.sharding_configs = {"sharding_degree": 2, "dp_degree": 2}
    model, size = transformer.build(), 4 * NUMBERS
    told = strategy.explain(model, workers=4)
    assert "Parameters, gradients and optimizer state are spread over the axis sharding" in told
    assert (
        f"all-gather of parameters in each forward and again in each backward, {kib(size)}" in told
    )
    assert f"reduce-scatter of gradients in each backward, {kib(size // 2)}" in told
    assert (
        f"all-reduce of each rank's share of the gradients in each backward, {kib(size // 2)}"
        in told
    )
    strategy.sharding_configs = {"stage": 1}
    told = strategy.explain(model, workers=4)
    assert f"all-gather of parameters in each forward, {kib(size // 2)}" in told
    assert f"reduce-scatter of gradients in the backward of each update, {kib(size // 2)}" in told
    strategy.fp16_allreduce = True
    told = strategy.explain(model, workers=4)
    assert f"reduce-scatter of gradients in the backward of each update, {kib(size // 4)}" in told


def kib(count: int) -> str:
    return f"{count / 1024:.4g} KiB sent by each rank"


class Branches(nn.Module):
    """A batch goes through one of two layers, or through both."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 1, bias=False) for _ in range(3))

    def forward(self, x: Tensor, names: str) -> Tensor:
        parts = [self.get_submodule(name)(x) for name in names]
        return torch.stack(parts).sum(0) + self.c(x)


def branches(stage: int, **settings: Any) -> tuple[Branches, Any, Callable[[], Any]]:
    start({"stage": stage}, **settings)
    torch.manual_seed(0)
    model = fleet.distributed_model(Branches())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    return model, optimizer, lambda: fleet.full_state_dict(model, everywhere=True)


@world(2)
@STAGES
@pytest.mark.parametrize("compared", [True, False])
@pytest.mark.parametrize("cleared", [True, False])
def test_workers_that_reach_different_parameters_are_refused(
    stage: int, compared: bool, cleared: bool
) -> None:
    model, optimizer, state = branches(stage, find_unused_parameters=compared)
    optimizer.backward(model(torch.ones(2, 4), "ab").sum())
    optimizer.step()
    optimizer.zero_grad(set_to_none=cleared)
    before = state()
    optimizer.backward(model(torch.ones(2, 4), "ab"[fleet.worker_index()]).sum())
    left_out = "ba"[fleet.worker_index()]
    said = f"left out '{left_out}.weight'" if compared else f"no gradient to '{left_out}.weight'"
    with pytest.raises(PlanError, match=said):
        optimizer.step()
    torch.testing.assert_close(state(), before, rtol=0, atol=0)


@world(2)
@STAGES
def test_workers_may_leave_out_the_same_parameters(stage: int) -> None:
    model, optimizer, state = branches(stage, find_unused_parameters=True)
    before = state()
    optimizer.minimize(model(torch.ones(2, 4), "a").sum() * (1 + 2 * fleet.worker_index()))
    moved = {name: (before[name] - value).mean().item() for name, value in state().items()}
    assert moved == pytest.approx({"a.weight": 4.0, "b.weight": 0.0, "c.weight": 4.0})


@world(2)
def test_different_parameters_are_refused_inside_a_group_of_batches() -> None:
    merge = {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 2}}
    model, optimizer, _ = branches(2, **merge)
    optimizer.minimize(model(torch.ones(2, 4), "ab"[fleet.worker_index()]).sum())
    with pytest.raises(PlanError, match="no gradient to"):
        model(torch.ones(2, 4), "ba"[fleet.worker_index()])


@world(2)
@STAGES
def test_what_is_thawed_later_trains(stage: int) -> None:
    start({"stage": stage})
    torch.manual_seed(0)
    layer = Branches()
    layer.a.requires_grad_(False)
    model = fleet.distributed_model(layer)
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    for thawed in (False, True):
        layer.a.requires_grad_(thawed)
        before = fleet.full_state_dict(model, everywhere=True)["a.weight"]
        optimizer.minimize(model(torch.ones(2, 4), "ab").sum())
        after = fleet.full_state_dict(model, everywhere=True)["a.weight"]
        assert torch.equal(before, after) is not thawed


class Looped(nn.Module):
    """Calls the layers of a sequence, and never the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Reader(nn.Module):
    """Reads the weights of a submodule after that has run."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.line = nn.Embedding(6, 4), nn.Linear(4, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(self.line(self.table(ids)), self.table.weight)


def moved_by_one_step(model: nn.Module, inputs: Tensor, stage: int | None) -> dict[str, Tensor]:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    if stage is not None:
        start({"stage": stage})
        model = fleet.distributed_model(model)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1.0)
    if stage is not None:
        optimizer = fleet.distributed_optimizer(optimizer)
        optimizer.minimize(model(inputs).pow(2).mean())
        return fleet.full_state_dict(model, everywhere=True)
    model(inputs).pow(2).mean().backward()
    optimizer.step()
    return model.state_dict()


@world(2)
@STAGES
def test_the_layers_of_a_sequence_may_be_called_without_it(stage: int) -> None:
    inputs = torch.ones(2, 4)
    found = moved_by_one_step(Looped(), inputs, stage)
    torch.testing.assert_close(found, moved_by_one_step(Looped(), inputs, None))


class Attends(nn.Module):
    """Returns a view, as attention does that joins its heads, and linear layers of three axes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.outer(torch.tanh(self.inner(x)).flatten(0, 1))
        made = made.unflatten(0, x.shape[:2])
        made[:, :1] = x[:, :1]  # through a view of the view
        return made


class Residual(nn.Module):
    """Writes to what its layers return, as many a residual block does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.act = Attends(), Attends(), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y += x
        z: Tensor = self.second(y).mul_(0.5)
        return z + self.act(self.first(z))


@world(2)
@STAGES
@pytest.mark.filterwarnings("error:FSDP2-wrapped module")
def test_what_units_return_may_be_written_to(stage: int) -> None:
    inputs = torch.arange(24.0).reshape(2, 3, 4) / 24
    found = moved_by_one_step(Residual(), inputs, stage)
    torch.testing.assert_close(found, moved_by_one_step(Residual(), inputs, None))


@world(2)
@STAGES
def test_weights_that_are_read_without_a_call_are_named(stage: int) -> None:
    ids = torch.tensor([1, 2, 5])
    if stage == 3:
        with pytest.raises(PlanError, match=r"'table\.weight' in Reader.forward: .*'stage'\] = 2"):
            moved_by_one_step(Reader(), ids, stage)
    else:
        found = moved_by_one_step(Reader(), ids, stage)
        torch.testing.assert_close(found, moved_by_one_step(Reader(), ids, None))


def learned_from_images(stage: int | None) -> dict[str, Tensor]:
    start(None if stage is None else {"stage": stage})
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    net: Any = nn.Sequential(*layers)
    net = net.to(memory_format=torch.channels_last)
    net[2].weight = nn.Parameter(torch.randn(16, 3).t())
    assert not net[0].weight.is_contiguous()
    assert not net[2].weight.is_contiguous()
    model = fleet.distributed_model(net)
    optimizer = fleet.distributed_optimizer(torch.optim.Adam(model.parameters(), 0.01, eps=1e-3))
    for at in range(3):
        generator = torch.Generator().manual_seed(2 * at + fleet.worker_index())
        images = torch.randn(4, 3, 4, 4, generator=generator)
        optimizer.minimize(model(images.to(memory_format=torch.channels_last)).square().mean())
    return fleet.full_state_dict(model, everywhere=True)


@STAGES
@world(2)
def test_parameters_are_cut_whatever_their_order_in_memory(stage: int) -> None:
    torch.testing.assert_close(learned_from_images(stage), learned_from_images(None))
