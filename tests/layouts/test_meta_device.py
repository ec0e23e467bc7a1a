"""Models that were made on the meta device: each rank makes its share, and all layouts the same."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

import fleetx as fleet
from fleetx.plan.mesh import data_place
from fleetx.testing import world
from tests.layouts import transformer
from tests.layouts.test_layouts import Layout, layouts, strategy

STEPS = 2


class Transformer(transformer.Transformer):
    """Has a parameter of its own, and says how it begins."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.place, std=0.02)


def started(layout: Layout, extras: tuple[str, ...] = ()) -> tuple[list[float], dict[str, Tensor]]:
    """Losses of the first steps, and the whole weights from before them."""
    fleet.init(is_collective=True, strategy=strategy(layout, extras))
    torch.manual_seed(7 + 10 * fleet.worker_index())  # that of worker 0 counts
    with torch.device("meta"):
        plain = Transformer(tied=True)
    rows = transformer.batch(0)[0][:2]
    model: Any = fleet.distributed_model(plain, criterion=transformer.loss, sample=rows)
    fleet.distributed_optimizer(transformer.OPTIMIZERS["sgd"](model.parameters()))
    begun = fleet.full_state_dict(model)
    place, shares = data_place(layout, fleet.worker_index())
    losses = []
    for number in range(STEPS):
        tokens, targets = transformer.batch(number)
        loss = model.train_batch((tokens.chunk(shares)[place], targets.chunk(shares)[place]))
        losses.append(float(fleet.util.all_reduce(loss.numpy())) / fleet.worker_num())
    return losses, begun


ONE = dict.fromkeys(("pp", "dp", "sharding", "tp"), 1)


def compare(layout: Layout, workers: int) -> None:
    losses, begun = world(workers, timeout=120).run(started, layout)[0]
    alone, weights = world(1).run(started, ONE)[0]
    assert list(begun) == list(weights)
    assert all(torch.equal(begun[name], weights[name]) for name in weights), layout
    assert losses == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize("axis", ["pp", "dp", "sharding", "tp"])
def test_two_workers_begin_as_one(axis: str) -> None:
    compare(ONE | {axis: 2}, 2)


@pytest.mark.rare
@pytest.mark.parametrize("layout", layouts(4), ids=str)
def test_four_workers_begin_as_one(layout: Layout) -> None:
    compare(layout, 4)


def begun(kind: str, layout: Layout) -> tuple[list[float], dict[str, Tensor], bool]:
    """Two updates of a model of transformers; the weights from before, and whether ties held."""
    from tests.graph.test_first_values import MODELS

    chosen: Any = strategy(layout, ())
    if layout["tp"] > 1:
        nothing: Any = dict.fromkeys(("column", "row", "vocabulary"), ())
        chosen.tensor_parallel_configs = {"plan": "transformer", **nothing}
    fleet.init(is_collective=True, strategy=chosen)
    torch.manual_seed(7)
    with torch.device("meta"):
        plain = MODELS[kind]()
    model: Any = fleet.distributed_model(plain)
    optimizer: Any = fleet.distributed_optimizer(torch.optim.AdamW(model.parameters(), lr=1e-2))
    state = fleet.full_state_dict(model)
    losses = []
    for number in range(2):
        tokens = transformer.batch(number)[0]
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        optimizer.minimize(loss)
        optimizer.clear_grad()
        losses.append(loss.item())
    head, embed = model.get_output_embeddings(), model.get_input_embeddings()
    return losses, state, head.weight is embed.weight


@pytest.mark.parametrize(("kind", "axis"), [("gpt2", "sharding"), ("llama", "tp")])
def test_models_of_transformers_begin_as_in_one_process(kind: str, axis: str) -> None:
    apart = world(2, timeout=120).run(begun, kind, ONE | {axis: 2})
    losses, weights, tied = world(1).run(begun, kind, ONE)[0]
    assert all(torch.equal(apart[0][1][name], weights[name]) for name in weights)
    assert apart[0][0] == pytest.approx(losses, abs=1e-4)
    assert {found[2] for found in apart} == {tied} == {kind == "gpt2"}


class Peak(TorchDispatchMode):
    """Counts the bytes of all tensors that are made meanwhile and live at the same time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._seen = weakref.WeakSet[Any]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, list | tuple) else (made,):
            if not isinstance(tensor, Tensor):
                continue
            here = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            storage = here.untyped_storage()
            # Fakes, by which a pipeline follows the forward, have no bytes either.
            if storage.device.type != "meta" and storage not in self._seen:
                self._seen.add(storage)
                self._count(storage.nbytes())
                weakref.finalize(storage, self._count, -storage.nbytes())
        return made

    def _count(self, size: int) -> None:
        self.now += size
        self.most = max(self.most, self.now)


def peak(layout: Layout) -> tuple[int, int]:
    """The most bytes at once while a model is laid out, and what this rank holds afterwards."""
    chosen: Any = strategy(layout, ())
    if layout["pp"] > 1:
        chosen.pipeline_configs = {"split": [f"layers.{BLOCKS // 2}"], "accumulate_steps": 2}
    fleet.init(is_collective=True, strategy=chosen)
    with torch.device("meta"):
        plain = Wide()
    with Peak() as found:
        rows = torch.zeros(2, WIDTH)
        model = fleet.distributed_model(plain, criterion=transformer.loss, sample=rows)
    held = (getattr(p, "to_local", lambda p=p: p)() for p in model.parameters())
    return found.most, sum(part.numel() * part.element_size() for part in held)


WIDTH, BLOCKS = 256, 8


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("axis", ["pp", "sharding"])
def test_a_rank_never_has_more_than_its_share_and_one_block(axis: str) -> None:
    block = 4 * WIDTH * WIDTH
    for most, held in world(2).run(peak, ONE | {axis: 2}):
        assert held == BLOCKS // 2 * block
        assert held + block <= most <= held + 1.3 * block


class Unfilled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(2, 2), nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = self.inner(x) * self.scale
        return scaled


@world(1)
def test_what_nobody_fills_must_be_loaded_before_it_is_used() -> None:
    fleet.init(is_collective=True)
    with torch.device("meta"):
        plain = Unfilled()
    model = fleet.distributed_model(plain)
    with pytest.raises(fleet.PlanError, match=r"nothing gives scale.*reset_parameters.*load_weig"):
        model(torch.ones(1, 2))


@world(1)
def test_tensors_that_are_plain_attributes_are_refused() -> None:
    fleet.init(is_collective=True)
    with torch.device("meta"):
        plain = nn.Sequential(nn.Linear(2, 2))
        plain[0].table = torch.ones(3)
    with pytest.raises(fleet.PlanError, match=r"'0' has a tensor .* plain attribute 'table'"):
        fleet.distributed_model(plain)


@world(1)
def test_an_optimizer_from_before_keeps_its_parameters() -> None:
    fleet.init(is_collective=True)
    with torch.device("meta"):
        plain = nn.Linear(2, 2)
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(plain.parameters(), lr=0.1))
    model = fleet.distributed_model(plain)
    before = model.weight.detach().clone()
    optimizer.minimize(model(torch.ones(1, 2)).sum())
    assert torch.allclose(before - 0.1, model.weight)
