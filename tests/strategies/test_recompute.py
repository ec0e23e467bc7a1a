"""Recompute: the same bits as without it, for more work and less memory, both counted."""

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import fleetx as fleet
from fleetx import PlanError, roles
from fleetx.api import session
from fleetx.plan.job import Job
from fleetx.strategies.recompute import Recompute
from fleetx.strategies.recompute.random_draws import Draws
from fleetx.strategies.recompute.strategy import segments
from fleetx.testing import world
from tests.engine.training import spread, weights


class Block(nn.Module):
    """A residual block with batch norm, dropout and a buffer of its own."""

    steps: Tensor
    calls: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels, momentum=None)
        self.dropout = nn.Dropout(0.3)
        self.register_buffer("steps", torch.ones(()))
        self.register_buffer("calls", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        # The result depends on a buffer that is replaced and on one that is changed in place.
        self.steps = self.steps + 1
        self.calls.add_(1)
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(x + self.dropout(y) / (self.steps + self.calls))


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.layers = nn.ModuleList(Block(4) for _ in range(3))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean((2, 3)))


class Texts(nn.Module):
    """Encoder layers that get a mask as a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True) for _ in range(3)
        )
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        mask = torch.zeros(ids.shape[1], ids.shape[1]).masked_fill(ids[0] == 0, -1e4)
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return self.head(x.mean(1))


MODELS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "pictures": (Pictures, (6, 2, 5, 5)),
    "texts": (Texts, (6, 7)),
}


def batch(kind: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = MODELS[kind][1]
    targets = torch.randint(0, 3, shape[:1], generator=generator)
    if kind == "texts":
        return torch.randint(0, 11, shape, generator=generator), targets
    return torch.randn(shape, generator=generator), targets


def start(
    checkpoints: list[str] | None, options: dict[str, Any] | None = None, **more: Any
) -> None:
    strategy = fleet.DistributedStrategy()
    if checkpoints is not None:
        strategy.recompute = True
        more = {"recompute_configs": {"checkpoints": checkpoints, **(options or {})}, **more}
    for name, value in more.items():
        setattr(strategy, name, value)
    roles.stop()  # a model of the job before may still be there
    fleet.init(is_collective=True, strategy=strategy)


def trained(
    kind: str, checkpoints: list[str] | None, options: dict[str, Any] | None = None, **more: Any
) -> list[Tensor]:
    """Losses, last gradients, parameters, buffers and the random state after three steps."""
    start(checkpoints, options, **more)
    torch.manual_seed(3)
    model = fleet.distributed_model(MODELS[kind][0]())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    losses = []
    for step in range(4):
        x, y = batch(kind, seed=10 * step + fleet.worker_index())
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        optimizer.backward(loss)
        optimizer.step()
        losses.append(loss.detach())
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    assert grads or more.get("gradient_merge")
    return [*losses, *grads, *model.state_dict().values(), torch.get_rng_state()]


def same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)


OFFLOAD = [False, True]


@pytest.mark.parametrize("offload", OFFLOAD)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", MODELS)
def test_bits_are_those_of_the_run_without(kind: str, workers: int, offload: bool) -> None:
    plain = world(workers).run(trained, kind, None)
    ours = world(workers).run(trained, kind, ["layers.*"], {"enable_offload": offload})
    for mine, other in zip(ours, plain, strict=True):
        same(mine, other)


@world(2)
@pytest.mark.parametrize("offload", OFFLOAD)
@pytest.mark.parametrize(
    "more",
    [
        {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 2, "avg": True}},
        {"amp": True, "amp_configs": {"use_pure_bf16": True}},
        {"find_unused_parameters": True},
        {"sync_batch_norm": True},
    ],
    ids=lambda more: next(iter(more)),
)
def test_bits_stay_in_company(more: dict[str, Any], offload: bool) -> None:
    ours = trained("pictures", ["layers.*"], {"enable_offload": offload}, **more)
    same(ours, trained("pictures", None, **more))


def segmented(model: nn.Module, **options: Any) -> nn.Module:
    """The model under a plan with one worker and nothing but recompute."""
    start(options.pop("checkpoints", ["layers.*"]), options)
    return fleet.distributed_model(model)


def flops(run: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("chosen", [["layers.0"], ["layers.0", "layers.2"], ["layers.*"]])
def test_named_segments_run_forward_twice(chosen: list[str]) -> None:
    x, y = batch("pictures")

    def step(model: nn.Module) -> int:
        return flops(lambda: F.cross_entropy(model(x), y).backward())

    inside = flops(lambda: Block(4)(torch.randn(6, 4, 5, 5)))
    count = len(segments(Pictures(), chosen))
    extra = step(segmented(Pictures(), checkpoints=chosen)) - step(Pictures())
    assert extra == count * inside > 0


@contextmanager
def saved() -> Iterator[dict[int, int]]:
    """Storage -> bytes, for whatever a forward keeps for backward."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def kept_bytes(model: nn.Module, x: Tensor) -> int:
    with saved() as kept:
        output = model(x)
    held = {p.untyped_storage().data_ptr() for p in model.parameters()}
    del output
    return sum(size for pointer, size in kept.items() if pointer not in held)


def feed_forward() -> nn.Sequential:
    parts = [[nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8)] for _ in range(4)]
    return nn.Sequential(*(nn.Sequential(*part) for part in parts))


def test_a_segment_keeps_its_input_alone() -> None:
    x, wide = torch.randn(16, 8), feed_forward()
    size = x.numel() * 4
    # The second layer of each part keeps an input of its own, eight times as wide.
    assert kept_bytes(copy.deepcopy(wide), x) == 4 * (size + 8 * size)
    assert kept_bytes(segmented(wide, checkpoints=["?"]), x) == 4 * size


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_random_numbers_are_restored_where_some_were_drawn(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    restoring = create_autospec(Draws._put, side_effect=Draws._put)
    monkeypatch.setattr(Draws, "_put", restoring)
    wide = nn.Sequential(*(nn.Sequential(part, nn.Dropout(rate)) for part in feed_forward()))
    if rate == 0:
        wide = feed_forward()
    segmented(wide, checkpoints=["?"])(torch.randn(16, 8)).sum().backward()
    assert restoring.call_count == (2 * 4 if rate else 0)


class _Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_replays_count_no_batches() -> None:
    wide = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)) for _ in range(2)))
    model = segmented(wide, checkpoints=["?"])
    loss = model(torch.randn(16, 8)).sum()
    with _Calls() as calls:
        loss.backward()
    assert calls.names.count("native_batch_norm") == 2
    assert "add_" not in calls.names
    assert int(model.get_buffer("0.1.num_batches_tracked")) == 1


def recompute() -> Recompute:
    """The strategy of the model that was distributed last."""
    strategies = session.engines()[-1].plan.strategies
    return next(strategy for strategy in strategies if isinstance(strategy, Recompute))


def on_host() -> list[Tensor]:
    host = recompute().host
    assert host is not None
    return host.on_host()


def test_offloaded_inputs_wait_on_the_host_and_are_freed() -> None:
    model = segmented(Pictures(), enable_offload=True)
    x, y = batch("pictures")
    stem: list[Tensor] = []
    model.get_submodule("stem").register_forward_hook(
        lambda module, args, output: stem.append(output.detach())
    )
    loss = F.cross_entropy(model(x), y)
    # Two of three: the last segment is replayed first.
    assert [t.shape for t in on_host()] == [torch.Size([6, 4, 5, 5])] * 2
    assert any(torch.equal(t, stem[0]) for t in on_host())
    held = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    assert not held & {t.untyped_storage().data_ptr() for t in on_host()}
    loss.backward()
    del loss
    assert on_host() == []


def test_a_shared_input_travels_once_and_integers_never() -> None:
    model = segmented(Texts(), enable_offload=True)
    x, y = batch("texts")
    loss = F.cross_entropy(model(x), y)
    assert sorted(tuple(t.shape) for t in on_host()) == [(6, 7, 8), (6, 7, 8), (7, 7)]
    loss.backward()


def test_with_offload_the_graph_keeps_nothing_of_the_inputs() -> None:
    x, wide = torch.randn(16, 8), feed_forward()
    assert kept_bytes(segmented(wide, checkpoints=["?"], enable_offload=True), x) == 0


def test_a_retained_graph_is_replayed_again() -> None:
    for options in ({}, {"enable_offload": True}):
        torch.manual_seed(0)
        model = segmented(Pictures(), **options)
        x, y = batch("pictures")
        loss = F.cross_entropy(model(x), y)
        before = copy.deepcopy(model.state_dict())
        parameters = list(model.parameters())
        first = torch.autograd.grad(loss, parameters, retain_graph=True)
        second = torch.autograd.grad(loss, parameters)
        same([*first, *before.values()], [*second, *model.state_dict().values()])


class Mixer(nn.Module):
    """Takes and returns nested structures, and writes into the list it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(
        self, x: Tensor, log: list[float], *, extra: dict[str, Tensor], flag: bool = True
    ) -> dict[str, Any]:
        log.append(1.0)
        y = torch.tanh(self.linear(x) + extra["bias"])
        return {"pair": (y, [y * 2 if flag else y]), "note": "done"}


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixer = Mixer()

    def forward(self, x: Tensor, log: list[float]) -> Tensor:
        found = self.mixer(x, log, extra={"bias": x.mean()}, flag=True)
        assert found["note"] == "done"
        first, (second,) = found["pair"]
        return (first * second).sum()


@pytest.mark.parametrize("offload", OFFLOAD)
def test_keywords_nested_values_and_inputs_without_gradients(offload: bool) -> None:
    torch.manual_seed(0)
    plain = Nested()
    log: list[float] = []
    model = segmented(copy.deepcopy(plain), checkpoints=["mixer"], enable_offload=offload)
    x = torch.randn(3, 4)
    model(x, log).backward()
    assert log == [1.0]
    plain(x, log).backward()
    same([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])  # type: ignore[misc]


def test_without_gradients_the_forward_is_plain() -> None:
    model = segmented(Pictures(), enable_offload=True).eval()
    x, _ = batch("pictures")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        assert torch.equal(model(x), twin(x))
    assert on_host() == []
    assert not any(segment.ran for segment in recompute()._segments)


def test_the_contexts_of_the_job_are_entered_again() -> None:
    entered = []

    @contextmanager
    def context() -> Iterator[None]:
        entered.append(1)
        with torch.autocast("cpu", torch.bfloat16):
            yield

    model = segmented(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), checkpoints=["0"])
    job: Job = session.engines()[-1].job
    seen = []
    first = model.get_submodule("0")
    first.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    job.contexts.append(context)
    with context():
        output = model(torch.randn(3, 4, requires_grad=True))
    output.float().sum().backward()
    assert len(entered) == 2
    assert seen == [torch.bfloat16]


def test_a_failed_replay_gives_the_live_buffers_back() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn, self.calls = nn.BatchNorm1d(2), 0

        def forward(self, x: Tensor) -> Tensor:
            y = self.bn(x)
            self.calls += 1
            if self.calls > 1:
                raise ArithmeticError("replayed")
            return y.tanh()

    inner = Fails()
    model = segmented(nn.Sequential(nn.Linear(2, 2), inner), checkpoints=["1"])
    loss = model(torch.randn(4, 2)).sum()
    live, state = dict(inner.bn._buffers), copy.deepcopy(inner.state_dict())
    with pytest.raises(ArithmeticError, match="replayed"):
        loss.backward()
    assert all(inner.bn._buffers[name] is buffer for name, buffer in live.items())
    same(list(inner.state_dict().values()), list(state.values()))


@pytest.mark.parametrize("offload", OFFLOAD)
def test_an_input_that_is_overwritten_is_refused(offload: bool) -> None:
    overwrites = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4), nn.Tanh())
    model = nn.Sequential(nn.Linear(4, 4), overwrites, nn.Linear(4, 4))
    segmented(model, checkpoints=["1", "2"], enable_offload=offload)
    with pytest.raises(RuntimeError, match=r"in ?place"):
        model(torch.randn(2, 4)).sum().backward()


def test_the_shape_of_checkpoints_is_checked() -> None:
    model = segmented(Pictures(), checkpoint_shape=[6, 4, 5, 5])
    x, _ = batch("pictures")
    model(x).sum().backward()
    with pytest.raises(
        ValueError, match=r"is \[6, 4, 5, 5\], but 'layers.0' returned \[5, 4, 5, 5\]"
    ):
        model(x[:5])


def test_a_segment_that_is_never_called_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    start(["layers.0.self_attn.out_proj"])
    model = fleet.distributed_model(Texts())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    x, y = batch("texts")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            optimizer.minimize(F.cross_entropy(model(x), y))
    assert [r.getMessage() for r in caplog.records if "out_proj" in r.getMessage()] == [
        "recompute_configs['checkpoints'] names ['layers.0.self_attn.out_proj'], but the model "
        "reached an update without calling them, so nothing of them is recomputed"
    ]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (["stem"], ["stem"]),
        (["layers.*"], ["layers.0", "layers.1", "layers.2"]),
        (["layers*"], ["layers.0", "layers.1", "layers.2"]),
        (["layers.[02]", "layers.0"], ["layers.0", "layers.2"]),
        (["*.bn1"], ["layers.0.bn1", "layers.1.bn1", "layers.2.bn1"]),
        (["head", "stem", "stem"], ["stem", "head"]),
        (["*"], ["stem", "layers.0", "layers.1", "layers.2", "head"]),
    ],
)
def test_names_and_patterns(wanted: list[str], found: list[str]) -> None:
    assert segments(Pictures(), wanted) == found


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (
            ["layer.0"],
            "names 'layer.0', and the model has no such submodule; did you mean 'layers.0'",
        ),
        (["x*"], "names 'x\\*', and the model has no such submodule; known: head, "),
        (["layers"], "a ModuleList, which has no forward that could be replayed; .*'layers.\\*'"),
        (["layers.0", "layers.0.bn1"], "'layers.0.bn1' and 'layers.0', which contains it"),
        (["layers.*", "layers.1.conv*"], "'layers.1.conv\\*' and 'layers.1', which contains it"),
    ],
)
def test_names_that_would_do_nothing_are_refused(wanted: list[str], reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        segments(Pictures(), wanted)


def test_a_module_with_two_names_is_one_segment() -> None:
    model = Pictures()
    model.layers[2] = model.layers[0]
    assert len(segments(model, ["layers.*"])) == 2
    segmented(model)
    reference = Pictures()
    reference.layers[2] = reference.layers[0]
    reference.load_state_dict(model.state_dict())
    x, y = batch("pictures")
    for either in (model, reference):
        torch.manual_seed(1)
        F.cross_entropy(either(x), y).backward()
    same([p.grad for p in model.parameters()], [p.grad for p in reference.parameters()])  # type: ignore[misc]
    same(list(model.state_dict().values()), list(reference.state_dict().values()))


def test_cuts_of_a_program_are_looked_up_first() -> None:
    graph = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)))
    graph.meta["segments"] = {"tanh.out": "1", "0": "2"}
    assert segments(graph, ["tanh.*", "0"]) == ["1", "2"]
    assert Recompute(checkpoints=["tanh.out"]).cuts() == ("tanh.out",)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "empty recompute_configs\\['checkpoints'\\] would recompute nothing"),
        ({"checkpoints": ["a"], "enable_tuning": True}, "'enable_tuning'\\] = True cannot be"),
    ],
)
def test_options_without_effect_are_refused(options: dict[str, Any], reason: str) -> None:
    strategy = fleet.DistributedStrategy()
    strategy.recompute = True
    setattr(strategy, "recompute_configs", options)  # noqa: B010  (a plain dict)
    with pytest.raises(PlanError, match=reason):
        strategy.explain()


@world(2)
def test_workers_stay_equal() -> None:
    start(["layers.*"])
    model = fleet.distributed_model(Pictures())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(3):
        x, y = batch("pictures", seed=step + 7 * fleet.worker_index())
        optimizer.minimize(F.cross_entropy(model(x), y))
    assert spread(weights(model)) == 0
