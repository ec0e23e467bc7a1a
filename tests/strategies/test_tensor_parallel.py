"""Tensor parallel: cut layers train as one process does; what is sent and kept is counted."""

import copy
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

import fleetx as fleet
from fleetx import PlanError, roles
from fleetx.plan.job import Job
from fleetx.strategies.tensor_parallel import TensorParallel
from fleetx.strategies.tensor_parallel.strategy import chosen
from fleetx.testing import world

WORDS, WIDTH, HEADS, LENGTH = 24, 16, 4, 8
Rule = Callable[[Any], Optimizer]


class Attention(nn.Module):
    """Heads and widths are those of the whole model, as everybody writes them."""

    mask: Tensor

    def __init__(self, packed: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.packed = packed
        # No biases before the softmax: the gradient of the keys' is nothing but rounding errors.
        if packed:
            self.c_attn = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        else:
            self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
            self.k_proj = nn.Linear(WIDTH, WIDTH, bias=False)
            self.v_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out_proj = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH).tril().bool())

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        if self.packed:
            parts = self.c_attn(x).split(width, dim=2)
        else:
            parts = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q, k, v = (p.view(batch, length, HEADS, width // HEADS).transpose(1, 2) for p in parts)
        if self.packed:
            # By hand, with a buffer and a tensor that is made here.
            scores = q @ k.transpose(-2, -1) / torch.tensor([[width / HEADS]]).sqrt()
            scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))
            y = scores.softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.dropout(self.out_proj(y.transpose(1, 2).reshape(batch, length, width)))


class Block(nn.Module):
    def __init__(self, packed: bool, dropout: float) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(packed, dropout)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, *, packed: bool = False, dropout: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(packed, dropout) for _ in range(2))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


class Perceptron(nn.Module):
    def __init__(self, hidden: int = 12, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem = nn.Linear(6, 8)
        self.body = nn.Sequential(nn.Linear(8, hidden), nn.Tanh(), nn.Linear(hidden, 8))
        self.norm: nn.Module = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.norm(torch.tanh(self.stem(x)))))


def adam(parameters: Any) -> Optimizer:
    return torch.optim.Adam(parameters, lr=1e-2)


def momentum(parameters: Any) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def batches(model: nn.Module, count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)

    def words() -> Tensor:
        return torch.randint(0, WORDS, (3, LENGTH), generator=generator)

    def vectors() -> Tensor:
        return torch.randn(9, 6, generator=generator)

    if isinstance(model, GPT):
        return [(words(), words()) for _ in range(count)]
    return [(vectors(), torch.randint(0, 3, (9,), generator=generator)) for _ in range(count)]


def criterion(outputs: Tensor, targets: Tensor) -> Tensor:
    assert type(outputs) is Tensor, "outside of regions everything is plain"
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def start(configs: dict[str, Any] | None, **settings: Any) -> None:
    strategy = fleet.DistributedStrategy()
    if configs is not None:
        strategy.tensor_parallel = True
        degree = {"tensor_parallel_degree": dist.get_world_size()} if dist.is_initialized() else {}
        settings = {"tensor_parallel_configs": degree | configs, **settings}
    for name, value in settings.items():
        setattr(strategy, name, value)
    roles.stop()  # a model of the job before may still be there
    fleet.init(is_collective=True, strategy=strategy)


def train(model: nn.Module, rule: Rule, steps: int = 2) -> tuple[nn.Module, Any]:
    distributed = fleet.distributed_model(model)
    assert distributed is model
    optimizer = fleet.distributed_optimizer(rule(model.parameters()))
    for x, y in batches(model, steps):
        optimizer.minimize(criterion(model(x), y))
    return model, optimizer


def placements(model: nn.Module) -> dict[str, Any]:
    parameters: dict[str, Any] = dict(model.named_parameters())
    return {name: parameter.placements for name, parameter in parameters.items()}


def gradient(parameter: Any) -> Tensor:
    """The complete gradient, which must lie like its parameter."""
    assert isinstance(parameter.grad, DTensor)
    assert parameter.grad.placements == parameter.placements
    return parameter.grad.full_tensor()


def plain(model: nn.Module, rule: Rule, steps: int = 2) -> nn.Module:
    optimizer = rule(model.parameters())
    for x, y in batches(model, steps):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    return model


def whole(model: nn.Module) -> dict[str, Tensor]:
    """All weights, complete."""
    found = {}
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor), name
        assert isinstance(parameter, nn.Parameter), name
        found[name] = parameter.full_tensor().detach()
    return found


def close(ours: nn.Module, theirs: nn.Module, tolerance: float = 1e-6) -> None:
    expected = {name: p.detach() for name, p in theirs.named_parameters()}
    found = whole(ours)
    assert list(found) == list(expected), "names and their order stay"
    for name, value in found.items():
        apart = float((value - expected[name]).abs().max())
        assert apart <= tolerance, (name, apart)


TRANSFORMER = {"plan": "transformer"}
BY_HAND = {
    "column": ["*.[qkv]_proj", "blocks.*.mlp.0"],
    "row": ["*.out_proj", "blocks.?.mlp.2"],
}
SEQUENCE = {"sequence": ["*.ln?", "ln_f"]}


@pytest.mark.parametrize(
    ("workers", "packed", "configs"),
    [
        (2, False, TRANSFORMER),
        (4, False, TRANSFORMER),
        (2, True, TRANSFORMER),
        (2, False, BY_HAND),
        (2, False, {"plan": "mlp"}),
        (4, False, {"vocabulary": ["wte", "head"]}),
        (4, False, TRANSFORMER | SEQUENCE),
        (2, True, TRANSFORMER | SEQUENCE),
    ],
    ids=["plan", "four", "packed", "by hand", "mlp", "words", "sequence", "packed sequence"],
)
def test_a_transformer_trains_as_in_one_process(
    workers: int, packed: bool, configs: dict[str, Any]
) -> None:
    def job() -> None:
        start(configs)
        model = GPT(packed=packed, seed=dist.get_rank())
        train(model, adam)
        assert model.head.weight is model.wte.weight
        close(model, plain(GPT(packed=packed), adam))

    world(workers).run(job)


@world(2)
def test_a_perceptron_trains_as_in_one_process() -> None:
    start({"plan": "mlp"})
    model, _ = train(Perceptron(seed=dist.get_rank()), adam)
    reference = plain(Perceptron(), adam)
    close(model, reference)
    for name, buffer in model.named_buffers():
        assert type(buffer) is Tensor
        torch.testing.assert_close(buffer, reference.get_buffer(name))


class Normed(Perceptron):
    """A batch norm between the layers of a pair, whose channels are cut like their activations."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Identity()
        self.body = nn.Sequential(
            nn.Linear(8, 12, bias=False), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 8)
        )


@world(2)
def test_statistics_of_a_batch_norm_inside_are_complete() -> None:
    start({"column": ["body.0"], "row": ["body.3"]})
    model, _ = train(Normed(), adam)
    reference = plain(Normed(), adam)
    close(model, reference)
    for name, buffer in model.named_buffers():
        assert type(buffer) is Tensor
        torch.testing.assert_close(buffer, reference.get_buffer(name), msg=name)


@world(4)
def test_next_to_data_parallel_and_synchronised_statistics() -> None:
    """Two ranks per layer, two workers per batch: the numbers of one process on all samples."""
    configs = {"tensor_parallel_degree": 2, "column": ["body.0"], "row": ["body.3"]}
    start(configs, sync_batch_norm=True)
    model, reference = Normed(), Normed()
    fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(momentum(model.parameters()))
    theirs, mine = momentum(reference.parameters()), slice(dist.get_rank() // 2, None, 2)
    for x, y in batches(model, 3):
        optimizer.minimize(criterion(model(x[:8][mine]), y[:8][mine]))
        theirs.zero_grad()
        criterion(reference(x[:8]), y[:8]).backward()
        theirs.step()
    close(model, reference)
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(buffer, reference.get_buffer(name), msg=name)


class Recurrent(Perceptron):
    """A layer with a kernel of its own between those of a pair."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.memory, self.fc2 = nn.Linear(6, 4), nn.GRU(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.memory(self.fc1(x))[0])


@world(2)
def test_a_recurrent_layer_inside() -> None:
    start({"column": ["fc1"], "row": ["fc2"]})
    model, _ = train(Recurrent(), adam)
    close(model, plain(Recurrent(), adam))


COMPANY: dict[str, dict[str, Any]] = {
    "amp": {"amp": True, "amp_configs": {"dtype": "bfloat16"}},
    "pure": {"amp": True, "amp_configs": {"use_pure_bf16": True}},
    "half": {"amp": True, "amp_configs": {"init_loss_scaling": 1024.0}},
    "recompute": {"recompute": True, "recompute_configs": {"checkpoints": ["blocks.*"]}},
    "inside": {
        "recompute": True,
        "recompute_configs": {
            "checkpoints": ["blocks.0.attention", "blocks.1.mlp.*", "blocks.1.ln1"]
        },
    },
    "merge": {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 2}},
    "clip": {"clip": True, "clip_configs": {"limit": 0.2}},
    "lars": {"lars": True, "lars_configs": {"lars_coeff": 0.1}},
    "lamb": {"lamb": True},
}
COMPANY["all"] = {
    key: value
    for name in ("amp", "recompute", "merge", "clip")
    for key, value in COMPANY[name].items()
}


@pytest.mark.parametrize(
    ("company", "configs"),
    [
        *((name, TRANSFORMER) for name in COMPANY),
        *((name, TRANSFORMER | SEQUENCE) for name in ("inside", "lars", "all")),
    ],
    ids=lambda value: value if isinstance(value, str) else "sequence" * ("sequence" in value),
)
def test_company(company: str, configs: dict[str, Any]) -> None:
    """The same strategies without tensor parallel give the same weights."""
    settings = COMPANY[company]
    rule = momentum if company == "lars" else adam
    # Numbers in 16 bits differ by the order of sums, and Adam makes much of small gradients.
    rough = "amp" in settings
    # Two updates each: the second one sees what the first left behind.
    steps = 4 if "gradient_merge" in settings else 2

    def alone() -> dict[str, Tensor]:
        start(None, **settings)
        model, _ = train(GPT(), momentum if rough else rule, steps)
        return {name: p.detach() for name, p in model.named_parameters()}

    def job() -> dict[str, Tensor]:
        start(configs, **settings)
        return whole(train(GPT(), momentum if rough else rule, steps)[0])

    expected, found = world(1).run(alone)[0], world(2).run(job)
    before = {name: p.detach() for name, p in GPT().named_parameters()}
    moved = max(float((expected[n] - before[n]).abs().max()) for n in expected)
    for name, value in expected.items():
        assert torch.equal(found[0][name], found[1][name]), name
        apart = float((found[0][name] - value).abs().max())
        assert apart < (0.05 * moved if rough else 2e-6), (name, apart, moved)


@world(2)
def test_gradients_are_complete_sums_and_lie_like_their_parameters() -> None:
    start({"plan": "mlp"})
    model = fleet.distributed_model(Perceptron())
    (x, y), reference = batches(model, 1)[0], Perceptron()
    criterion(model(x), y).backward()
    criterion(reference(x), y).backward()
    for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(gradient(p), q.grad, msg=name)


class Collectives(TorchDispatchMode):
    """Counts collectives as CommDebugMode does, without the hooks it puts on every module."""

    counts: Counter[str]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # what it is made of comes by
        name = str(func).removesuffix(".default")
        if name.startswith("_c10d_functional.") and "wait" not in name and "wrap" not in name:
            self.counts[name.rpartition(".")[2]] += 1
        return func(*args, **(kwargs or {}))


def counted(run: Callable[[], Any]) -> dict[str, int]:
    with Collectives() as mode:  # type: ignore[no-untyped-call]
        mode.counts = Counter()
        run()
    return dict(mode.counts)


@world(2)
def test_one_all_reduce_per_pair_forward_and_backward() -> None:
    start({"plan": "mlp"})
    model = fleet.distributed_model(Perceptron())
    ((x, _),) = batches(model, 1)
    outputs = []
    assert counted(lambda: outputs.append(model(x).sum())) == {"all_reduce": 1}
    assert counted(outputs[0].backward) == {"all_reduce": 1}
    with CommDebugMode() as debug:
        model(x).sum().backward()
    assert debug.get_total_counts() == 2


@world(2)
def test_layers_that_share_an_input_share_the_exchange() -> None:
    start(BY_HAND)
    model = fleet.distributed_model(GPT())
    ((x, y),) = batches(model, 1)
    losses = []
    pairs = 4
    assert counted(lambda: losses.append(criterion(model(x), y))) == {"all_reduce": pairs}
    assert counted(losses[0].backward) == {"all_reduce": pairs}


@world(2)
def test_cut_sequences_gather_before_and_scatter_after_each_pair() -> None:
    start(BY_HAND | {"sequence": ["*.ln?"]})
    model = fleet.distributed_model(GPT())
    ((x, y),) = batches(model, 1)
    losses = []
    pairs, norms = 4, 4
    forward = counted(lambda: losses.append(criterion(model(x), y)))
    # One more to give the output back complete.
    assert forward == {"reduce_scatter_tensor": pairs, "all_gather_into_tensor": pairs + 1}
    backward = counted(losses[0].backward)
    assert backward["reduce_scatter_tensor"] == pairs
    assert backward["all_gather_into_tensor"] in {pairs, pairs + 1}
    # Weights and biases of norms, and biases of row layers, saw some of the positions.
    assert backward["all_reduce"] == 2 * norms + pairs


@world(2)
def test_each_rank_keeps_its_part() -> None:
    start(TRANSFORMER)
    model, optimizer = train(GPT(), adam, steps=1)
    found = placements(model)
    assert found["wte.weight"] == (Shard(0),)
    assert found["wpe.weight"] == (Replicate(),)
    assert found["blocks.0.attention.q_proj.weight"] == (Shard(0),)
    assert found["blocks.0.attention.out_proj.weight"] == (Shard(1),)
    assert found["blocks.0.attention.out_proj.bias"] == (Replicate(),)
    assert found["blocks.1.mlp.0.bias"] == (Shard(0),)
    up: Any = model.get_parameter("blocks.1.mlp.0.weight")
    assert up.shape == (32, WIDTH)
    assert up.to_local().shape == (16, WIDTH)
    assert up.to_local().untyped_storage().nbytes() == 16 * WIDTH * 4
    assert optimizer.state[up]["exp_avg"].to_local().shape == (16, WIDTH)


@world(2)
def test_ranks_draw_the_same_masks_although_their_seeds_differ() -> None:
    start(TRANSFORMER)
    model = fleet.distributed_model(GPT(dropout=0.5))
    torch.manual_seed(100 + dist.get_rank())
    before = torch.get_rng_state()
    ((x, _),) = batches(model, 1)
    outputs = [model(x), model(x)]
    assert torch.equal(torch.get_rng_state(), before), "the user's own numbers go on undisturbed"
    assert not torch.equal(*outputs)
    for output in outputs:
        other = output.detach().clone()
        dist.broadcast(other, src=0)
        assert torch.equal(output, other)


def masks(seed: int, configs: dict[str, Any], *, recompute: bool = False) -> Tensor:
    settings = COMPANY["recompute"] if recompute else {}
    start(TRANSFORMER | configs, **settings)
    model = GPT(dropout=0.5)
    torch.manual_seed(seed + dist.get_rank())
    fleet.distributed_model(model)
    ((x, y),) = batches(model, 1)
    criterion(model(x), y).backward()
    return gradient(model.wpe.weight)


def test_the_seed_is_the_first_ranks_or_the_one_that_was_set() -> None:
    once, again = (world(2).run(masks, 7, {})[0] for _ in range(2))
    assert torch.equal(once, again)
    assert not torch.equal(once, world(2).run(masks, 8, {})[0])
    fixed = [world(2).run(masks, seed, {"tensor_init_seed": 3})[0] for seed in (7, 8)]
    assert torch.equal(*fixed)


def test_a_replay_repeats_the_masks() -> None:
    kept, replayed = (world(2).run(masks, 7, {}, recompute=flag)[0] for flag in (False, True))
    torch.testing.assert_close(kept, replayed)


@world(2)
def test_the_count_of_forwards_survives_a_restart() -> None:
    start(TRANSFORMER)
    model, optimizer = train(GPT(dropout=0.5), adam, steps=2)
    state = copy.deepcopy(optimizer.state_dict()["strategies"])
    assert state == {"tensor_parallel": {"forwards": 2}}
    ((x, _),) = batches(model, 1)
    expected = model(x)
    assert not torch.equal(model(x), expected)
    optimizer.load_state_dict({**optimizer.state_dict(), "strategies": state})
    assert torch.equal(model(x), expected)


@world(2)
def test_plain_complete_checkpoints_load() -> None:
    start(TRANSFORMER)
    model = fleet.distributed_model(GPT(seed=1))
    assert model.load_state_dict(GPT(seed=9).state_dict()) == ([], [])
    close(model, GPT(seed=9), tolerance=0)
    block = GPT(seed=4).blocks[0]
    model.blocks[0].load_state_dict(block.state_dict())
    close(model.blocks[0], block, tolerance=0)
    with pytest.raises(RuntimeError, match=r"size mismatch for wpe\.weight"):
        model.load_state_dict(GPT().state_dict() | {"wpe.weight": torch.ones(2, 2)})
    assert model.load_state_dict(model.state_dict()) == ([], [])


@world(4)
def test_plain_complete_checkpoints_load_where_sharding_cuts_again() -> None:
    sharding = {"sharding_degree": 2, "stage": 2, "segment_broadcast_MB": 1e-3}
    start(TRANSFORMER | {"tensor_parallel_degree": 2}, sharding=True, sharding_configs=sharding)
    model = fleet.distributed_model(GPT(seed=1))
    ((x, _),) = batches(model, 1)
    # The second time parameters are still gathered from the forward.
    for seed in (8, 9):
        reference = GPT(seed=seed)
        assert model.load_state_dict(reference.state_dict()) == ([], [])
        close(model, reference, tolerance=0)
        with torch.no_grad():
            torch.testing.assert_close(model(x), reference(x))


@world(2)
def test_frozen_parameters_stay_frozen_and_may_thaw() -> None:
    start(TRANSFORMER | SEQUENCE)
    model = GPT()
    model.ln_f.requires_grad_(False)
    fleet.distributed_model(model)
    assert [n for n, p in model.named_parameters() if not p.requires_grad] == [
        "ln_f.weight",
        "ln_f.bias",
    ]
    ((x, y),) = batches(model, 1)
    criterion(model(x), y).backward()
    assert model.ln_f.weight.grad is None
    model.ln_f.requires_grad_(True)
    criterion(model(x), y).backward()
    assert gradient(model.ln_f.weight).abs().sum() > 0


@world(2)
def test_evaluation_and_submodules_called_by_themselves() -> None:
    start(TRANSFORMER)
    model, reference = fleet.distributed_model(GPT()).eval(), GPT().eval()
    ((x, _),) = batches(model, 1)
    hidden = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(x), reference(x))
        for path in ("blocks.0", "blocks.0.mlp", "blocks.1.mlp.0", "ln_f", "head"):
            found = model.get_submodule(path)(hidden)
            assert type(found) is Tensor
            torch.testing.assert_close(found, reference.get_submodule(path)(hidden), msg=path)


class Encoder(nn.Module):
    """torch's own layers, which read weights of their children without calling them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.first = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True)
        self.second = nn.TransformerEncoderLayer(WIDTH, HEADS, 30, dropout=0.0, batch_first=True)
        self.memory = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.second(self.first(self.words(ids)))
        x, _ = self.memory(x)
        # A weight that is used by somebody else than its owner.
        return F.linear(x * self.scale, self.words.weight)


@world(4)
def test_layers_of_torch_inside_and_outside_of_regions() -> None:
    """Four ranks cut the first layer; 30 features of the second cannot be cut and stay whole."""
    start({"plan": "mlp"})
    model, reference = fleet.distributed_model(Encoder()), Encoder()
    cut = [name for name, where in placements(model).items() if where != (Replicate(),)]
    assert cut == ["first.linear1.weight", "first.linear1.bias", "first.linear2.weight"]
    ids = torch.randint(0, WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    for net in (model, reference):
        criterion(net(ids), ids).backward()
    for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(gradient(p), q.grad, rtol=1e-4, atol=1e-6, msg=name)
    with torch.no_grad():
        found, expected = model.eval()(ids), reference.eval()(ids)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@world(4)
@pytest.mark.parametrize("configs", [TRANSFORMER, TRANSFORMER | SEQUENCE], ids=["", "sequence"])
def test_fully_sharded_afterwards(configs: dict[str, Any]) -> None:
    """What another strategy does later: each parameter is cut a second time, along the data."""
    mesh = init_device_mesh("cpu", (1, 1, 2, 2), mesh_dim_names=("pp", "dp", "sharding", "tp"))
    model, reference = GPT(), GPT()
    TensorParallel(**configs).model(model, Job(device=torch.device("cpu"), mesh=mesh, model=model))
    for block in model.blocks:
        fully_shard(block, mesh=mesh["sharding"])
    fully_shard(model, mesh=mesh["sharding"])
    ours, theirs = adam(model.parameters()), adam(reference.parameters())
    for x, y in batches(model, 2):
        for net, optimizer in ((model, ours), (reference, theirs)):
            optimizer.zero_grad()
            criterion(net(x), y).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
    close(model, reference)


def refusal(model: nn.Module, degree: int = 2, **configs: Any) -> str:
    with pytest.raises(PlanError) as caught:
        chosen(model, TensorParallel(**configs).config, degree)
    return str(caught.value)


def test_refusals_say_what_to_set_instead() -> None:
    with pytest.raises(PlanError, match=r"would cut nothing.*Set tensor_parallel_configs = "):
        TensorParallel(tensor_parallel_degree=2)
    gpt, encoder = GPT(), Encoder()
    assert "['column'] names 'blocks.*.fc', and the model has no such submodule" in refusal(
        gpt, column=["blocks.*.fc"]
    )
    assert "did you mean 'wte'" in refusal(gpt, vocabulary=["wtf"])
    assert "'wte', a Embedding, and 'column' cuts nn.Linear" in refusal(gpt, column=["wte"])
    assert "'blocks.0', a Block, and 'row' cuts nn.Linear" in refusal(gpt, row=["blocks.0*"])
    assert "a LayerNorm, and 'vocabulary' cuts nn.Linear or nn.Embedding" in refusal(
        gpt, vocabulary=["ln_f"]
    )
    for name in ("first.self_attn", "first.self_attn.out_proj"):
        assert "write the attention with one nn.Linear for each" in refusal(encoder, row=[name])
    assert (
        "whose 32 output features cannot be dealt out evenly to 3 ranks; make them 33"
        in refusal(gpt, 3, column=["blocks.0.mlp.0"])
    )
    assert "whose 32 input features" in refusal(gpt, 3, row=["blocks.0.mlp.2"])
    assert "whose 24 entries cannot be dealt out evenly to 5 ranks; make them 25" in refusal(
        gpt, 5, vocabulary=["wte"]
    )
    assert "names, too, and a layer is cut in one way" in refusal(
        gpt, column=["blocks.0.mlp.0"], row=["*.mlp.0"]
    )
    assert "'sequence' takes single layers" in refusal(gpt, sequence=["blocks.0.mlp.0"])
    assert "a Block, and 'sequence' takes single layers" in refusal(gpt, sequence=["blocks.?"])
    table = nn.Sequential(nn.Embedding(4, 4, max_norm=1.0))
    assert "needs the whole table; set neither" in refusal(table, vocabulary=["0"])


def test_a_plan_that_cuts_nothing_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    assert "'mlp' cuts nothing of this model" in refusal(model, plan="mlp")
    assert "with features that 5 divides" in refusal(GPT(), 5, plan="transformer")


def test_names_that_somebody_gave_come_before_the_plan() -> None:
    config = TensorParallel(plan="mlp", row=["blocks.0.mlp.0"]).config
    model = GPT()
    found = chosen(model, config, 2)
    assert found[model.get_submodule("blocks.0.mlp.0")] == "row"
    assert found[model.get_submodule("blocks.1.mlp.0")] == "column"


@pytest.mark.parametrize("workers", [1, 2])
def test_names_are_checked_on_any_number_of_workers(workers: int) -> None:
    def attempt() -> None:
        start({"column": ["nowhere"]})
        fleet.distributed_model(GPT())

    with pytest.raises(PlanError, match="names 'nowhere', and the model has no such submodule"):
        world(workers).run(attempt)


def test_one_worker_has_nothing_to_cut() -> None:
    start(TRANSFORMER)
    model = fleet.distributed_model(GPT())
    assert all("forward" not in vars(module) for module in model.modules() if module is not model)
    assert all(type(p) is nn.Parameter for p in model.parameters())


@world(2)
def test_a_shared_weight_is_cut_in_one_way() -> None:
    start({"vocabulary": ["head"]})
    with pytest.raises(PlanError, match=r"'wte.weight' and 'head.weight' are one parameter"):
        fleet.distributed_model(GPT())


class Biased(Perceptron):
    """Has the bias of a cut layer, too, and computes with it, as heads of BERT may."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.inner = self.body[0].bias

    def forward(self, x: Tensor) -> Tensor:
        inner: Any = self.inner
        weights = torch.linspace(0, 1, inner.numel())
        return super().forward(x) * (1 + (inner * weights).sum())


@world(2)
def test_a_parameter_of_a_cut_layer_is_whole_elsewhere() -> None:
    start({"plan": "mlp"})
    model, _ = train(Biased(seed=dist.get_rank()), adam)
    close(model, plain(Biased(), adam))


@world(2)
def test_modules_elsewhere_are_known_but_not_cut() -> None:
    mesh = init_device_mesh("cpu", (1, 1, 1, 2), mesh_dim_names=("pp", "dp", "sharding", "tp"))
    model = GPT()
    absent = model.blocks[1].to("meta")
    job = Job(device=torch.device("cpu"), mesh=mesh, model=model, elsewhere={absent})
    TensorParallel(column=["blocks.1.mlp.0"], row=["blocks.1.mlp.2"]).model(model, job)
    assert all(type(p) is nn.Parameter for p in absent.parameters())
    assert all(isinstance(p, DTensor) for p in model.blocks[0].parameters())
    assert all("forward" not in vars(module) for module in absent.modules())


@world(2)
def test_an_overflow_in_one_shard_is_everybodys() -> None:
    start(TRANSFORMER)
    _, optimizer = train(GPT(), adam, steps=1)
    step = optimizer._engine.step
    flag = torch.tensor([float(dist.get_rank())])
    assert step.agree(flag).item() == 1.0
    assert flag.item() == dist.get_rank(), "the argument stays"


@world(2)
def test_what_is_cut_is_logged() -> None:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("fleetx.strategies.tensor_parallel.strategy")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    start({"plan": "mlp"})
    fleet.distributed_model(Perceptron())
    logger.removeHandler(handler)
    assert records == ["tensor_parallel cuts over 2 ranks: body.0 (column), body.2 (row)"]


def told(**configs: Any) -> str:
    strategy = fleet.DistributedStrategy()
    configs = {"tensor_parallel": True, "tensor_parallel_configs": configs}
    for name, value in configs.items():
        setattr(strategy, name, value)
    return strategy.explain(GPT(), workers=4)


def test_the_plan_tells_what_is_sent() -> None:
    by_plan = told(tensor_parallel_degree=4, plan="transformer")
    assert "Layers are cut over the axis tp by plan 'transformer'" in by_plan
    assert (
        "all-reduce of each float32 number that enters or leaves a pair of column and row layers "
        "in each forward, and of its gradient in each backward, 6 B sent by each rank"
    ) in by_plan
    words = "all-reduce or all-gather of each float32 number that a vocabulary layer returns"
    assert words in by_plan
    assert words not in told(tensor_parallel_degree=4, plan="mlp")
    by_name = told(tensor_parallel_degree=4, sequence=["*ln*"], vocabulary=["wte", "head"])
    assert "reduce-scatter and all-gather of each float32 number" in by_name
    assert words in by_name
