"""Programs whose parameters are spread over workers: the weights of plain code come out."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx import PlanError, static
from fleetx.static.run.training_run import running
from fleetx.testing import world
from tests.rotation import rotating

STEPS, BATCH = 3, 8
NAMES = [f"fc_{number}.{kind}" for number in range(4) for kind in ("weight", "bias")]


def batch(step: int, share: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(100 * step + share)
    return {"x": rng.standard_normal((BATCH, 8), dtype=np.float32), "y": rng.integers(0, 3, BATCH)}


def network(devices: int = 1) -> tuple[Tensor, Tensor]:
    """Four layers on so many devices; each returns a variable that can be named."""
    static.reset()
    x, y = static.data("x", [None, 8]), static.data("y", [None], "int64")
    h: Any = x
    for number in range(4):
        with static.device_guard(f"gpu:{number * devices // 4}" if devices > 1 else None):
            h = static.nn.fc(h, 16 if number < 3 else 3, activation="tanh" if number < 3 else None)
            h.name = f"layer_{number}"
    with static.device_guard(f"gpu:{devices - 1}" if devices > 1 else None):
        return F.cross_entropy(h, y), h


def by_hand(shares: int, cls: type[torch.optim.Optimizer], **options: Any) -> dict[str, Tensor]:
    """Plain torch in one process, on the batches of all workers together."""
    torch.manual_seed(2)
    layers = [nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 3)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))[:-1]
    optimizer = cls(model.parameters(), **options)
    for step in range(STEPS):
        feeds = [batch(step, share) for share in range(shares)]
        x, y = (torch.from_numpy(np.concatenate([f[name] for f in feeds])) for name in "xy")
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(zip(NAMES, (p.detach() for p in model.parameters()), strict=True))


def strategy(flags: dict[str, Any]) -> fleet.DistributedStrategy:
    made = fleet.DistributedStrategy()
    for name, options in flags.items():
        if name != "hybrid":
            setattr(made, name, True)
        if options:
            setattr(made, f"{name}_configs", options)
    return made


def built(
    flags: dict[str, Any], cls: type[torch.optim.Optimizer], **options: Any
) -> tuple[static.Executor, Tensor, Tensor]:
    several = flags.get("pipeline", {}).get("schedule_mode") == "interleaved"
    loss, out = network(devices=4 if several else 2 if "pipeline" in flags else 1)
    fleet.init(is_collective=True)
    made = fleet.distributed_optimizer(static.Optimizer(cls, **options), strategy(flags))
    made.minimize(loss)
    exe = static.Executor()
    torch.manual_seed(2 + 3 * fleet.worker_index())  # worker 0 decides
    exe.run(fleet.startup_program)
    return exe, loss, out


def weights(program: static.Program) -> dict[str, Tensor]:
    program.parameters()
    return {name: p.detach().clone() for name, p in program.state.trained().items()}


def trained(
    flags: dict[str, Any], cls: type[torch.optim.Optimizer], **options: Any
) -> tuple[dict[str, Tensor], list[list[np.ndarray]]]:
    exe, loss, out = built(flags, cls, **options)
    found = []
    for step in range(STEPS):
        feed = batch(step, fleet.data_index())
        found.append(exe.run(fleet.main_program, feed, [loss, out, "layer_0"]))
    return weights(fleet.main_program), found


SGD: Any = (torch.optim.SGD, {"lr": 0.3, "momentum": 0.9})
ADAM: Any = (torch.optim.AdamW, {"lr": 0.01})
TWO = {"accumulate_steps": 2}
ANCHORS = {"segment_anchors": ["layer_0", "layer_2"]}
CUT = {"tensor_parallel_degree": 2, "column": ["fc_0", "fc_2"], "row": ["fc_1"]}
CASES: list[tuple[int, dict[str, Any], Any]] = [
    (2, {"pipeline": TWO}, SGD),
    (2, {"pipeline": {"accumulate_steps": 4, "schedule_mode": "F-then-B"}}, ADAM),
    (2, {"pipeline": {"accumulate_steps": 4, "schedule_mode": "interleaved"}}, SGD),
    (2, {"sharding": ANCHORS}, SGD),
    (2, {"sharding": {"segment_broadcast_MB": 0.001, "stage": 2}}, ADAM),
    (4, {"pipeline": TWO, "sharding": ANCHORS}, SGD),
    (4, {"pipeline": TWO}, ADAM),
    (2, {"tensor_parallel": CUT}, SGD),
    (4, {"tensor_parallel": CUT, "pipeline": TWO}, ADAM),
    (4, {"tensor_parallel": CUT, "sharding": ANCHORS}, SGD),
]


def sharers(workers: int, flags: dict[str, Any]) -> int:
    """Workers that see samples of their own."""
    return workers // 2 ** len({"pipeline", "tensor_parallel"} & flags.keys())


def name(value: object) -> str:
    return "+".join(value) if isinstance(value, dict) else str(value) if value == 4 else ""


@pytest.mark.parametrize(("workers", "flags", "rule"), rotating(CASES, 2, rows=True), ids=name)
def test_spread_programs_train_like_plain_code(
    workers: int, flags: dict[str, Any], rule: Any
) -> None:
    cls, options = rule
    ranks = world(workers).run(trained, flags, cls, **options)
    shares = sharers(workers, flags)
    expected = by_hand(shares, cls, **options)
    for found, _ in ranks:
        assert found.keys() == expected.keys()
        for key, value in found.items():
            assert torch.allclose(value, expected[key], rtol=0, atol=1e-6), key
    for step in range(STEPS):
        per_share: dict[int, list[np.ndarray]] = {}
        for rank, (_, fetched) in enumerate(ranks):
            # Workers of one pipeline, or of one group of tensor_parallel, have the same results.
            share = rank // (2 if "tensor_parallel" in flags else 1) % shares
            first = per_share.setdefault(share, fetched[step])
            assert all(np.array_equal(a, b) for a, b in zip(first, fetched[step], strict=True))
        for loss, out, hidden in per_share.values():
            assert (loss.shape, out.shape, hidden.shape) == ((), (BATCH, 3), (BATCH, 16))


def fetched_values(flags: dict[str, Any]) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    exe, loss, out = built(flags, torch.optim.SGD, lr=0.3)
    main, feed = fleet.main_program, batch(0, fleet.data_index())
    values: Any = ["fc_0.weight@GRAD", "fc_3.bias@GRAD", "fc_0.weight", "learning_rate_0"]
    found = exe.run(main, feed, [loss, out, *values])
    test = main.clone(for_test=True)
    (after,) = exe.run(test, feed, [out])
    with pytest.raises(PlanError, match="none can train alone"):
        _ = fleet._origin_program
    return found, after, np.asarray(static.global_scope().find_var("fc_0.weight"))


@pytest.mark.parametrize(
    "flags", [{"pipeline": TWO}, {"sharding": ANCHORS}, {"tensor_parallel": CUT}], ids=name
)
def test_values_and_gradients_are_whole_on_every_worker(flags: dict[str, Any]) -> None:
    ranks = world(2).run(fetched_values, flags)
    shares = sharers(2, flags)
    torch.manual_seed(2)
    layers = [nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 3)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))[:-1]
    feeds = [batch(0, share) for share in range(shares)]
    x, y = (torch.from_numpy(np.concatenate([f[name] for f in feeds])) for name in "xy")
    out = model(x)
    F.cross_entropy(out, y).backward()
    gradients = [p.grad for p in model.parameters()]
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            assert gradient is not None
            parameter.sub_(0.3 * gradient)
        after = model(x)
    for rank, (found, later, scoped) in enumerate(ranks):
        mine = slice(BATCH * (rank % shares), BATCH * (rank % shares + 1))
        expected = [out[mine], gradients[0], gradients[-1], layers[0].weight, torch.tensor(0.3)]
        for ours, theirs in zip(found[1:], expected, strict=True):
            assert theirs is not None
            assert np.allclose(ours, theirs.detach().numpy(), rtol=0, atol=1e-6)
        assert np.allclose(later, after[mine].numpy(), rtol=0, atol=1e-6)
        assert np.array_equal(scoped, found[4])


def stopped(flags: dict[str, Any], folder: Path, load: bool) -> list[dict[str, Tensor]]:
    """Two steps, a save, and one step more; or the load and the one step more."""
    exe, loss, _ = built(flags, torch.optim.AdamW, lr=0.01)
    main, states = fleet.main_program, []
    if load:
        exe.run(main, batch(9, fleet.data_index()), [loss])  # something to overwrite
        fleet.load_persistables(exe, folder, main)
    else:
        for step in range(2):
            exe.run(main, batch(step, fleet.data_index()), [loss])
        fleet.save_persistables(exe, folder, main)
        static.save(main, folder / "beside" / "model")
    states.append(weights(main))
    exe.run(main, batch(2, fleet.data_index()), [loss])
    return [*states, weights(main)]


@pytest.mark.parametrize(
    ("workers", "flags"),
    [
        (2, {"pipeline": TWO}),
        (2, {"sharding": ANCHORS}),
        (2, {"tensor_parallel": CUT}),
        (4, {"pipeline": TWO, "sharding": {}}),
    ],
    ids=name,
)
def test_training_goes_on_from_files(workers: int, flags: dict[str, Any], tmp_path: Path) -> None:
    before = world(workers).run(stopped, flags, tmp_path, load=False)
    again = world(workers).run(stopped, flags, tmp_path, load=True)
    names = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert {*NAMES, "@ticks", "fc_0.weight@exp_avg", "fc_3.bias@exp_avg_sq"} <= names
    shares = sharers(workers, flags)
    expected = by_hand(shares, torch.optim.AdamW, lr=0.01)
    for first, second in zip(before, again, strict=True):
        for key in NAMES:
            assert torch.equal(first[0][key], second[0][key]), key
            assert torch.equal(first[1][key], second[1][key]), key
            assert torch.allclose(first[1][key], expected[key], rtol=0, atol=1e-6), key
    # The files know no layout: one process alone goes on with them, too.
    alone = world(1).run(stopped, {}, tmp_path, load=True)[0]
    assert all(torch.equal(alone[0][key], before[0][0][key]) for key in NAMES)


def saved_model(flags: dict[str, Any], folder: Path) -> list[str]:
    exe, loss, out = built(flags, torch.optim.SGD, lr=0.3, momentum=0.9)
    for step in range(STEPS):
        exe.run(fleet.main_program, batch(step, fleet.data_index()), [loss])
    names: list[str] = fleet.save_inference_model(exe, folder, ["x"], [out], fleet.main_program)
    exe.run(fleet.main_program, batch(0, fleet.data_index()), [loss])  # nobody was disturbed
    return names


@pytest.mark.parametrize("flags", [{"pipeline": TWO}, {"sharding": {}}], ids=name)
def test_inference_models_are_whole(flags: dict[str, Any], tmp_path: Path) -> None:
    assert world(2).run(saved_model, flags, tmp_path) == [["layer_3"]] * 2
    model = torch.export.load(tmp_path / "model.pt2").module()
    shares = sharers(2, flags)
    expected = by_hand(shares, torch.optim.SGD, lr=0.3, momentum=0.9)
    state = model.state_dict()
    for key in NAMES:
        assert torch.allclose(state[key], expected[key], rtol=0, atol=1e-6), key


def numbers_held(flags: dict[str, Any]) -> dict[str, int]:
    """Parameters that train on this worker, and how many of their numbers are here."""
    exe, loss, _ = built(flags, torch.optim.SGD, lr=0.3)
    exe.run(fleet.main_program, batch(0, fleet.data_index()), [loss])
    run = running(fleet.main_program, fleet.device())
    held: dict[str, Any] = dict(run.lowered.named_parameters())
    return {key: getattr(p, "_local_tensor", p).numel() for key, p in held.items()}


def test_every_worker_holds_its_part_alone() -> None:
    sizes = {key: p.numel() for key, p in by_hand(1, torch.optim.SGD, lr=0.3).items()}
    first, second = world(2).run(numbers_held, {"pipeline": TWO})
    assert list(first) == NAMES[:4]
    assert list(second) == NAMES[4:]
    assert first | second == sizes
    first, second = world(2).run(numbers_held, {"sharding": ANCHORS})
    assert {key: first[key] + second[key] for key in NAMES} == sizes
    assert all(first[key] <= (sizes[key] + 16) // 2 for key in NAMES)  # whole rows


def initialised_again() -> bool:
    exe, loss, _ = built({"sharding": ANCHORS}, torch.optim.SGD, lr=0.3)
    first = {key: p.detach().clone() for key, p in fleet.main_program.state.trained().items()}
    exe.run(fleet.main_program, batch(0), [loss])
    held = next(iter(fleet.main_program.state.trained().values()))
    assert held.isnan().all(), "old values would deceive"
    assert held.untyped_storage().nbytes() < 8, "and whole ones take memory"
    torch.manual_seed(2)
    exe.run(fleet.startup_program)
    (loss_again,) = exe.run(fleet.main_program, batch(0), [loss])
    now = weights(fleet.main_program)
    exe.run(fleet.startup_program)
    static.global_scope().find_var("fc_0.bias").set(np.ones(16, np.float32))
    assert weights(fleet.main_program)["fc_0.bias"].eq(1).all()
    return bool(np.isfinite(loss_again)) and not any(torch.equal(first[k], now[k]) for k in NAMES)


def test_the_start_up_program_can_run_again() -> None:
    assert world(2).run(initialised_again) == [True, True]


def saves_alone(folder: Path) -> str:
    exe, loss, _ = built({"pipeline": TWO}, torch.optim.SGD, lr=0.3)
    exe.run(fleet.main_program, batch(0), [loss])
    if fleet.worker_index() == 1:
        return ""
    with pytest.raises(RuntimeError, match="its script has ended") as caught:
        fleet.save_persistables(exe, folder, fleet.main_program)
    return str(caught.value)


def test_a_worker_that_saves_alone_learns_who_is_missing(tmp_path: Path) -> None:
    message = world(2).run(saves_alone, tmp_path)[0]
    assert "fleet.save_persistables() was not reached by: 1" in message
    assert not list(tmp_path.iterdir())


def refused(flags: dict[str, Any], devices: list[str]) -> str:
    static.reset()
    h: Any = static.data("x", [None, 8])
    for device in devices:
        with static.device_guard(device):
            h = static.nn.fc(h, 8)
    fleet.init(is_collective=True)
    made = fleet.distributed_optimizer(static.Optimizer(torch.optim.SGD, lr=0.1), strategy(flags))
    with pytest.raises(PlanError) as caught:
        made.minimize(h.mean())
    return str(caught.value)


GPU = ["gpu:0", "gpu:1"]
BAD: list[tuple[dict[str, Any], list[str], str]] = [
    (
        {"pipeline": {}, "hybrid": {"pp_degree": 2}},
        [*GPU, "gpu:2"],
        "names 3 devices (gpu:0, gpu:1, gpu:2), and a pipeline of 2 ranks with 1 on each runs 2",
    ),
    ({"pipeline": {}}, [*GPU, "gpu:2"], "the 3 ranks that device_guard() needs"),
    ({"pipeline": {}}, ["gpu:0", "gpu:0"], "at least two devices"),
    ({"pipeline": {}}, ["gpu:1", "gpu:0"], "under device_guard('gpu:0') comes after one under"),
    ({"pipeline": {}}, [*GPU, "gpu:0"], "under device_guard('gpu:0') comes after one under"),
    ({"pipeline": {}}, ["cpu", "gpu:1"], "number all devices"),
    (
        {"pipeline": {"schedule_mode": "interleaved"}, "hybrid": {"pp_degree": 2}},
        GPU,
        "a pipeline of 2 ranks with 2 on each runs 4",
    ),
    ({"sharding": {"segment_anchors": ["fc_9"]}}, ["gpu:0"], "cuts the program at 'fc_9'"),
]


@pytest.mark.parametrize(("flags", "devices", "reason"), BAD, ids=range(len(BAD)))
def test_what_cannot_be_spread_is_refused_at_minimize(
    flags: dict[str, Any], devices: list[str], reason: str
) -> None:
    for message in world(2).run(refused, flags, devices):
        assert reason in message


def blocks() -> nn.Sequential:
    torch.manual_seed(2)
    sizes = [8, 16, 16, 16, 3]
    layers = [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(sizes)]
    return nn.Sequential(*layers)


def combined_program(
    flags: dict[str, Any], cls: type[torch.optim.Optimizer], **options: Any
) -> list[Tensor]:
    static.reset()
    h: Any = static.data("x", [None, 8])
    for number, block in enumerate(blocks()):
        with static.device_guard(f"gpu:{number // 2}"):
            h = block(h)
            h.name = f"layer_{number}"
    with static.device_guard("gpu:1"):
        loss = F.cross_entropy(h, static.data("y", [None], "int64"))
    fleet.init(is_collective=True)
    fleet.distributed_optimizer(static.Optimizer(cls, **options), strategy(flags)).minimize(loss)
    exe = static.Executor()
    exe.run(fleet.startup_program)
    for step in range(STEPS):
        exe.run(fleet.main_program, batch(step, fleet.data_index()), [loss])
    return list(weights(fleet.main_program).values())


def _for_modules(options: Any) -> Any:
    """The names of variables as those of modules."""
    if isinstance(options, dict):
        return {key: _for_modules(value) for key, value in options.items()}
    if isinstance(options, list):
        return [_for_modules(value) for value in options]
    return options.removeprefix("layer_") if isinstance(options, str) else options


def combined_eager(
    flags: dict[str, Any], cls: type[torch.optim.Optimizer], **options: Any
) -> list[Tensor]:
    flags = _for_modules(flags)
    if "pipeline" in flags:
        flags["pipeline"]["split"] = ["2"]
    fleet.init(is_collective=True, strategy=strategy(flags))
    model: Any = fleet.distributed_model(blocks(), criterion=F.cross_entropy)
    fleet.distributed_optimizer(cls(model.parameters(), **options))
    for step in range(STEPS):
        feed = batch(step, fleet.data_index())
        model.train_batch((torch.from_numpy(feed["x"]), torch.from_numpy(feed["y"])))
    return list(fleet.full_state_dict(model, everywhere=True).values())


BRAIN = {"dtype": "bfloat16"}
CHECKPOINTS = {"checkpoints": ["layer_0", "layer_2"]}
NO_BIAS = {"exclude_from_weight_decay": ["bias"]}
MERGED = {"k_steps": 2, "avg": True}
COMBINATIONS: list[tuple[int, dict[str, Any], Any]] = [
    (2, {"amp": BRAIN, "recompute": CHECKPOINTS, "lars": NO_BIAS, "sharding": ANCHORS}, SGD),
    (2, {"amp": BRAIN, "recompute": CHECKPOINTS, "lamb": NO_BIAS, "sharding": {}}, ADAM),
    (2, {"recompute": CHECKPOINTS, "gradient_merge": MERGED, "clip": {}, "sharding": ANCHORS}, SGD),
    (2, {"amp": BRAIN, "recompute": CHECKPOINTS, "lars": NO_BIAS, "pipeline": TWO}, SGD),
    (2, {"lamb": NO_BIAS, "clip": {}, "gradient_merge": MERGED, "pipeline": TWO}, ADAM),
    (
        4,
        {
            "amp": BRAIN,
            "recompute": CHECKPOINTS,
            "lamb": NO_BIAS,
            "pipeline": TWO,
            "sharding": ANCHORS,
        },
        ADAM,
    ),
    (4, {"fp16_allreduce": {}, "recompute": CHECKPOINTS, "pipeline": TWO}, SGD),
    (4, {"amp": BRAIN, "localsgd": {"k_steps": 2}, "pipeline": TWO}, SGD),
]


@pytest.mark.parametrize(
    ("workers", "flags", "rule"), rotating(COMBINATIONS, 2, rows=True), ids=name
)
def test_combinations_train_a_program_as_they_train_a_model(
    workers: int, flags: dict[str, Any], rule: Any
) -> None:
    cls, options = rule
    if "lamb" in flags:
        cls = torch.optim.Adam
    ours = world(workers).run(combined_program, flags, cls, **options)
    theirs = world(workers).run(combined_eager, flags, cls, **options)
    start = list(blocks().parameters())
    for rank in range(workers):
        for first, mine, other in zip(start, ours[rank], theirs[rank], strict=True):
            assert torch.allclose(mine, other, rtol=0, atol=1e-6)
            assert not torch.equal(first, mine)


class Front(nn.Module):
    """Reads a parameter of its own directly."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 8))
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.words(ids) * self.scale
        return h + self.fc2(F.gelu(self.fc1(h)))


class Back(nn.Module):
    """Keeps statistics of weights beside them, and shares the table of words with the front."""

    def __init__(self, words: nn.Embedding) -> None:
        super().__init__()
        self.words = words
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.norm = nn.LayerNorm(8)

    def forward(self, h: Tensor) -> Tensor:
        return F.linear(self.norm(self.lstm(h)[0]), self.words.weight)


def nested(flags: dict[str, Any]) -> dict[str, Tensor]:
    static.reset()
    torch.manual_seed(4)
    front = Front()
    back = Back(front.words)
    ids, y = static.data("x", [None, 5], "int64"), static.data("y", [None, 5], "int64")
    with static.device_guard("gpu:0"):
        h = front(ids)
    with static.device_guard("gpu:1"):
        loss = F.cross_entropy(back(h).flatten(0, 1), y.flatten())
    fleet.init(is_collective=True)
    made = static.Optimizer(torch.optim.SGD, lr=0.3, momentum=0.9)
    fleet.distributed_optimizer(made, strategy(flags)).minimize(loss)
    exe = static.Executor()
    exe.run(fleet.startup_program)
    rng = np.random.default_rng(0)
    for _ in range(STEPS):  # the same on every worker, so that one alone is the reference
        feed = {key: rng.integers(0, 20, (BATCH, 5)) for key in "xy"}
        exe.run(fleet.main_program, feed, [loss])
    return weights(fleet.main_program)


NESTED: list[dict[str, Any]] = [
    {"pipeline": TWO},
    {"sharding": {"segment_broadcast_MB": 1e-4}},
    {"tensor_parallel": {"tensor_parallel_degree": 2, "column": ["*.fc1"], "row": ["*.fc2"]}},
]


@pytest.mark.parametrize("flags", NESTED, ids=name)
def test_models_with_tied_weights_and_parameters_of_their_own(flags: dict[str, Any]) -> None:
    (expected,) = world(1).run(nested, {})
    for found in world(2).run(nested, flags):
        assert found.keys() == expected.keys()
        for key, value in found.items():
            assert torch.allclose(value, expected[key], rtol=0, atol=1e-6), key


def with_a_second_head(flags: dict[str, Any]) -> list[np.ndarray]:
    static.reset()
    x, y = static.data("x", [None, 8]), static.data("y", [None], "int64")
    with static.device_guard("gpu:0"):
        h = static.nn.batch_norm(static.nn.fc(x, 16))
        other = static.nn.fc(h, 5)  # nothing that is trained depends on it
    with static.device_guard("gpu:1"):
        loss = F.cross_entropy(static.nn.fc(h, 3), y)
    fleet.init(is_collective=True)
    made = fleet.distributed_optimizer(static.Optimizer(torch.optim.SGD, lr=0.3), strategy(flags))
    made.minimize(loss)
    exe = static.Executor()
    torch.manual_seed(2)
    exe.run(fleet.startup_program)
    main, feed = fleet.main_program, batch(0)
    found = exe.run(main, feed, [loss])
    found += exe.run(main, feed, [other, h, "y", "batch_norm_0.running_mean"])
    found += exe.run(main, feed, [loss])
    return [*found, *exe.run(main.clone(for_test=True), feed, [other, h])]


@pytest.mark.parametrize("flags", [{"pipeline": {}}, {"sharding": {}}], ids=name)
def test_other_fetches_in_other_runs(flags: dict[str, Any]) -> None:
    """One micro-batch, so that statistics are those of one process."""
    if "pipeline" in flags:
        flags = {"pipeline": {"micro_batch_size": BATCH, "schedule_mode": "F-then-B"}}
    (expected,) = world(1).run(with_a_second_head, {})
    for found in world(2).run(with_a_second_head, flags):
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.shape == theirs.shape
            assert np.allclose(ours, theirs, rtol=0, atol=1e-6)


def with_a_torch_optimizer() -> tuple[dict[str, Tensor], list[str]]:
    loss: Any = network()[0]
    exe = static.Executor()
    main = static.default_main_program()
    fleet.init(is_collective=True, strategy=strategy({"sharding": ANCHORS}))
    inner = torch.optim.SGD(main.parameters(), lr=0.3, momentum=0.9)
    optimizer = fleet.distributed_optimizer(inner)
    optimizer.minimize(loss)
    torch.manual_seed(2)
    exe.run(fleet.startup_program)
    for step in range(STEPS):
        exe.run(main, batch(step, fleet.data_index()), [loss])
    complaints = []
    other = main.clone(for_test=True)
    static.minimize(static.Optimizer(torch.optim.SGD, lr=0.1), other.var(loss.name))
    with pytest.raises(static.ProgramError) as caught:
        exe.run(other, batch(0), [loss])
    complaints.append(str(caught.value))
    return weights(main), complaints


def test_a_torch_optimizer_over_parameters_that_are_spread() -> None:
    expected = by_hand(2, torch.optim.SGD, lr=0.3, momentum=0.9)
    for found, complaints in world(2).run(with_a_torch_optimizer):
        assert all(torch.allclose(found[k], expected[k], rtol=0, atol=1e-6) for k in NAMES)
        assert "another program trains these parameters already" in complaints[0]
