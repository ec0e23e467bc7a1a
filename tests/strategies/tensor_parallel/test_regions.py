"""Regions: plain tensors become spread ones at the border and come back, gradients included."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional as F

from fleetx.strategies.tensor_parallel.draws import dropout_by_parts
from fleetx.strategies.tensor_parallel.placing import as_spread, placed
from fleetx.strategies.tensor_parallel.regions import Border, attention
from fleetx.testing import world


def tp() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))


def assert_equal_on_ranks(tensor: Tensor) -> None:
    first = tensor.clone()
    dist.broadcast(first, src=0)
    assert torch.equal(tensor, first)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@world(2)
def test_everything_is_spread_inside_and_plain_outside() -> None:
    border, seen = Border(tp()), []
    options: dict[str, Any] = {"deep": [numbers(2)], "word": "x"}
    untouched: list[Any] = []

    def forward(x: Tensor, more: dict[str, Any], own: list[Any], *, mask: Tensor) -> Any:
        seen.append([type(t) for t in (x, more["deep"][0], mask)])
        own.append("changes reach the caller")
        return {"sum": x + mask, "word": more["word"], "part": placed(x, border._mesh, Shard(0))}

    x = numbers(4, 3).requires_grad_()
    found = border.around(forward)(x, options, untouched, mask=torch.ones(4, 3))
    assert seen == [[DTensor] * 3]
    assert untouched == ["changes reach the caller"]
    assert type(options["deep"][0]) is Tensor
    assert type(found["sum"]) is Tensor
    assert found["word"] == "x"
    assert torch.equal(found["sum"], x + 1)
    assert torch.equal(found["part"], x)
    (found["sum"].sum() + found["part"].sum()).backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((4, 3), 2.0))


@world(2)
@pytest.mark.parametrize("where", [Shard(0), Replicate()], ids=str)
def test_what_comes_out_may_be_written_to(where: Shard | Replicate) -> None:
    mesh = tp()
    run = Border(mesh).around(lambda x: placed((x * 2).exp(), mesh, where))
    x = numbers(4, 3).requires_grad_()
    found = run(x)
    found += x  # as in a residual block; what exp() keeps for its backward stays as it was
    found.sum().backward()
    torch.testing.assert_close(x.grad, 2 * (2 * x).exp() + 1)


@world(2)
def test_only_the_outermost_converts() -> None:
    border, kinds = Border(tp()), []

    def inner(x: Tensor) -> Tensor:
        kinds.append(type(x))
        return x * 2

    def outer(x: Tensor) -> Tensor:
        y = border.around(inner)(x)
        kinds.append(type(y))
        return y

    assert type(border.around(outer)(numbers(3))) is Tensor
    assert kinds == [DTensor, DTensor]


@world(2)
def test_a_replay_of_an_inner_part_stays_inside() -> None:
    mesh = tp()
    border = Border(mesh)
    x = as_spread(numbers(4, 3), mesh)
    found = border.around(lambda x: x * torch.arange(3.0))(x)
    assert isinstance(found, DTensor)
    assert torch.equal(found.full_tensor(), numbers(4, 3) * torch.arange(3.0))


@world(2)
def test_the_border_is_open_again_after_an_error() -> None:
    border = Border(tp())

    def fail(x: Tensor) -> Tensor:
        raise RuntimeError("inside")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="inside"):
            border.around(fail)(numbers(2))
    assert type(border.around(lambda x: x)(numbers(2))) is Tensor
    with pytest.raises(RuntimeError, match="mixed"):
        torch.add(as_spread(numbers(2), border._mesh), torch.ones(2))


MIXED: dict[str, Callable[[Tensor], Tensor]] = {
    "times": lambda x: x * numbers(4, 6, seed=1),
    "from the left": lambda x: numbers(4, 6, seed=1) * x,
    "masked": lambda x: x.masked_fill(torch.ones(4, 6).tril().bool(), 0.0) ** 2,
    "chosen": lambda x: x[:, torch.tensor([0, 2, 3])] ** 2,
    "where": lambda x: torch.where(torch.ones(4, 6).tril().bool(), x, numbers(4, 6, seed=2)) ** 2,
    "joined": lambda x: torch.cat([x, torch.zeros(1, 6)]) ** 2,
    "matrix": lambda x: x @ numbers(6, 2, seed=3),
    "written": lambda x: _written(x) ** 2,
    "asked": lambda x: x**2 if bool((x.detach() > -1e9).all()) else x,
}


def _written(x: Tensor) -> Tensor:
    y = x.new_zeros(4, 6)
    y[:2] = x[:2]
    return y


@world(2)
@pytest.mark.parametrize("name", MIXED)
def test_tensors_that_are_made_inside_take_part(name: str) -> None:
    """Backward, which runs outside of the region, is the proof: torch alone refuses there."""
    border, compute = Border(tp()), MIXED[name]
    ours, theirs = numbers(4, 6).requires_grad_(), numbers(4, 6).requires_grad_()

    def forward(x: Tensor) -> Tensor:
        return compute(placed(x, border._mesh, Shard(1)))

    found, expected = border.around(forward)(ours), compute(theirs)
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@world(2)
def test_a_gradient_that_would_be_lost_is_refused() -> None:
    border = Border(tp())

    def write(x: Tensor) -> Tensor:
        y = torch.zeros(4, 6)
        y[:2] = x[:2]
        return y

    with pytest.raises(ValueError, match=r"gradient would be lost; make the tensor with x.new_z"):
        border.around(write)(numbers(4, 6).requires_grad_())
    with torch.no_grad():
        assert torch.equal(border.around(write)(numbers(4, 6))[:2], numbers(4, 6)[:2])


@world(2)
def test_a_table_may_take_more_than_ids() -> None:
    def forward(x: Tensor, first: int, *, times: int) -> Tensor:
        return (x + first) * times

    found = Border(tp()).gathered(forward)(numbers(3), 1, times=2)
    torch.testing.assert_close(found.to_local(), (numbers(3) + 1) * 2)


def item(x: Tensor) -> None:
    x[:, :3] = x[:, 3:] * 2


def mask(x: Tensor) -> None:
    x[x > 0] = 0.5


def numbers_of_columns(x: Tensor) -> None:
    x[:, torch.tensor([1, 4])] = x[:, :2] * 2


@world(2)
@pytest.mark.parametrize("write", [item, mask, numbers_of_columns])
def test_a_part_of_a_tensor_that_is_cut_is_assigned_to(write: Callable[[Tensor], None]) -> None:
    border, cut = Border(tp()), [Shard(1)]

    def assigned(x: Tensor) -> Tensor:
        y = x.redistribute(placements=cut) * 2 if isinstance(x, DTensor) else x * 2
        write(y)
        assert not isinstance(y, DTensor) or y.placements == tuple(cut)
        return y.square()

    inputs = [numbers(4, 6).requires_grad_() for _ in range(2)]
    found, wanted = border.around(assigned)(inputs[0]), assigned(inputs[1])
    torch.testing.assert_close(found, wanted)
    for outputs in (found, wanted):
        outputs.sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)


def moved(x: Tensor) -> None:
    x[:, :3].mul_(2)


def added(x: Tensor) -> None:
    x.t()[1:3] += 1


def activated(x: Tensor) -> None:
    F.relu(x[:, ::2], inplace=True)


@world(2)
@pytest.mark.parametrize("write", [moved, added, activated])
def test_a_write_to_a_copy_of_a_part_is_refused(write: Callable[[Tensor], None]) -> None:
    def written(x: Tensor) -> None:
        assert isinstance(x, DTensor)
        write(x.redistribute(placements=[Shard(1)]) * 2)

    with pytest.raises(ValueError, match=r"as a copy, so the whole would not change. Assign to"):
        Border(tp()).around(written)(numbers(4, 6))


@world(2)
def test_a_write_without_a_rule_is_explained() -> None:
    border = Border(tp())
    with pytest.raises(ValueError, match="put the operation into a module of its own"):
        border.around(lambda x: (x * 2).renorm_(2, 0, 1.0))(numbers(3, 3))

    def unfinished(x: Tensor) -> Tensor:
        raise NotImplementedError("the user's own")

    with pytest.raises(NotImplementedError, match="the user's own"):
        border.around(unfinished)(numbers(3))


@world(2)
@pytest.mark.parametrize("mask", ["none", "causal", "shared", "per head"])
@pytest.mark.parametrize("cut", [Shard(1), Shard(3), Replicate()], ids=str)
def test_attention_is_that_of_one_process(mask: str, cut: Shard | Replicate) -> None:
    mesh = tp()
    qkv = [numbers(2, 4, 5, 6, seed=seed).requires_grad_() for seed in range(3)]
    biases = {"shared": numbers(5, 5, seed=4), "per head": numbers(2, 4, 5, 5, seed=5)}
    bias = biases[mask].requires_grad_() if mask in biases else None
    leaves = [*qkv, *([] if bias is None else [bias])]
    q, k, v = qkv
    expected = F.scaled_dot_product_attention(q, k, v, bias, is_causal=mask == "causal")
    theirs = torch.autograd.grad(expected.square().sum(), leaves)
    q, k, v = (placed(part, mesh, cut) for part in qkv)
    spread = None if bias is None else as_spread(bias, mesh)
    found = attention(mesh, q, k, v, spread, is_causal=mask == "causal")
    assert found.placements == ((Shard(1),) if cut == Shard(1) else (Replicate(),))
    ours = torch.autograd.grad(found.full_tensor().square().sum(), leaves)
    torch.testing.assert_close(found.full_tensor(), expected)
    torch.testing.assert_close(ours, theirs)


@world(2)
def test_fewer_keys_than_ranks_are_attended_whole() -> None:
    mesh = tp()
    q, kv = numbers(1, 4, 3, 2), numbers(1, 1, 3, 2, seed=1)
    expected = F.scaled_dot_product_attention(q, kv, kv, enable_gqa=True)
    one = placed(kv, mesh, Replicate())
    found = attention(mesh, placed(q, mesh, Shard(1)), one, one, enable_gqa=True)
    torch.testing.assert_close(found.full_tensor(), expected)


@world(2)
@pytest.mark.parametrize("cut", [Shard(0), Shard(1), Replicate()], ids=str)
def test_dropout_draws_the_masks_of_one_process(cut: Shard | Replicate) -> None:
    """Three rows on two ranks: they would draw unequally many numbers for their parts."""
    border, x = Border(tp()), numbers(3, 4)

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        first = nn.Dropout(0.5)(placed(x, border._mesh, cut) if isinstance(x, DTensor) else x)
        return first, F.dropout(x, 0.3)

    torch.manual_seed(3)
    expected = forward(x)
    torch.manual_seed(3)
    found = border.around(forward)(x)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert torch.equal(border.around(lambda x: F.dropout(x, training=False))(x), x)


@world(2)
def test_dropout_by_parts_keeps_ranks_together() -> None:
    """As on GPUs: each rank has memory for its own part alone, and draws as many numbers."""
    mesh, x = tp(), torch.ones(3, 40).requires_grad_()
    torch.manual_seed(3)
    cut = placed(x, mesh, Shard(0))
    found = dropout_by_parts(mesh, dist.get_rank(), cut, 0.5).full_tensor()
    torch.manual_seed(3)
    expected = torch.cat([F.dropout(torch.ones(rows, 40)) for rows in (2, 1)])
    assert torch.equal(found, expected)
    found.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, expected)
    torch.manual_seed(3)
    dropout_by_parts(mesh, dist.get_rank(), cut, 0.5)
    assert_equal_on_ranks(torch.rand(4))


Draw = Callable[[Tensor], Tensor]
DRAWS: dict[str, Draw] = {
    "bernoulli": lambda x: torch.bernoulli(x.abs().clamp(max=1.0)),
    "rand_like": torch.rand_like,
    "normal_": lambda x: torch.zeros_like(x).normal_(1.0),
    "bernoulli_": lambda x: x * x.new_empty(x.shape).bernoulli_(0.5),
    "dropout1d": lambda x: F.dropout1d(x, 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(x, training=True),
    "no dropout": lambda x: F.dropout2d(x, training=False),
}


@world(2)
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("cut", [Shard(0), Replicate()], ids=str)
def test_other_draws_are_those_of_one_process(cut: Shard | Replicate, draw: str) -> None:
    border, x, function = Border(tp()), numbers(3, 4, 5), DRAWS[draw]

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        first = function(placed(x, border._mesh, cut) if isinstance(x, DTensor) else x)
        return first, F.dropout(x, 0.3)

    torch.manual_seed(3)
    expected = forward(x)
    torch.manual_seed(3)
    found = border.around(forward)(x)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@world(2)
def test_statistics_are_written_where_they_belong() -> None:
    border, mean, twin = Border(tp()), torch.zeros(4), torch.zeros(4)

    def forward(x: Tensor) -> Tensor:
        x = placed(x, border._mesh, Shard(1))
        return F.batch_norm(x, mean, torch.ones(4), training=True)

    found = border.around(forward)(numbers(5, 4))
    torch.testing.assert_close(
        found, F.batch_norm(numbers(5, 4), twin, torch.ones(4), training=True)
    )
    torch.testing.assert_close(mean, twin)
    assert twin.abs().max() > 0
