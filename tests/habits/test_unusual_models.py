"""Models whose outputs, number formats or weights are of a kind that torch's own tools overlook."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

import fleetx as fleet
from fleetx import roles
from fleetx.io import load_checkpoint, save_checkpoint
from fleetx.testing import world

STEPS, BATCH = 3, 4
Flags = dict[str, Any]
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]

UNUSED: Flags = {"find_unused_parameters": True}
LAST: Flags = {"sharding": True, "sharding_configs": {"stage": 3}}
PIECES = {"stage": 3, "segment_anchors": ["token", "mix"]}
FIRST: Flags = {"sharding": True, "sharding_configs": {"stage": 1}}


class TwoHeads(nn.Module):
    """Both heads are called, and the loss uses the first: models for several tasks do so."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(6, 8)
        self.heads = nn.ModuleDict({"used": nn.Linear(8, 3), "unused": nn.Linear(8, 3)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.trunk(x).relu()
        return {name: head(hidden) for name, head in self.heads.items()}


def of_first_head(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x)["used"], y)


class Gaussian(nn.Module):
    """Returns a distribution, as autoencoders and neural processes do, and so does a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.spare = Encoder(), nn.Linear(2, 2)
        self.decoder = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Normal:
        inner = self.encoder(x)
        return Normal(self.decoder(inner.mean), 1 + self.decoder(inner.stddev).square())


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Normal:
        return Normal(self.mean(x), F.softplus(self.spread(x)) + 0.1)


def unlikeliness(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return -model(x).log_prob(F.one_hot(y, 3).float()).mean()


class Spectral(nn.Module):
    """A complex weight on a spectrum, as neuraloperator has them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, dtype=torch.complex64))
        self.inner, self.outer = nn.Linear(6, 8), nn.Linear(8, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(self.inner(x)) * self.weight
        return self.outer(torch.fft.irfft(spectrum, n=8).double())


class Token(nn.Module):
    """Returns its weight as a view, as the class token of rtdl's FT-Transformer is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))

    def forward(self, rows: int) -> Tensor:
        return self.weight.expand(rows, 1, -1)


class WithToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.mix, self.head = Token(), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.cat([self.token(len(x)), self.mix(x)[:, None]], 1)
        return self.head(tokens.tanh().mean(1))


class Words(nn.Module):
    """Its first state is made from a parameter, as in PyTorch's word language model."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(6, 6, 2), nn.Linear(6, 3)

    def first_state(self, rows: int) -> tuple[Tensor, Tensor]:
        weight = next(self.parameters())
        return weight.new_zeros(2, rows, 6), weight.new_zeros(2, rows, 6)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Any]:
        output, state = self.rnn(x, state)
        return self.head(output), state


def of_words(model: Any, x: Tensor, y: Tensor) -> Tensor:
    state, loss = model.first_state(len(x)), torch.zeros(())
    for _ in range(2):
        output, state = model(x[None], tuple(each.detach() for each in state))
        loss = loss + F.cross_entropy(output[0], y)
    return loss


def entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


CASES: dict[str, tuple[type[nn.Module], Loss, list[Flags]]] = {
    "an unused head": (TwoHeads, of_first_head, [LAST | UNUSED]),
    "distributions": (Gaussian, unlikeliness, [UNUSED, FIRST | UNUSED, LAST | UNUSED]),
    "complex": (Spectral, entropy, [{}, FIRST, LAST]),
    "a state made from a weight": (Words, of_words, [{}, FIRST, LAST]),
    "a returned weight": (WithToken, entropy, [LAST | {"sharding_configs": PIECES}]),
}


def begun(flags: Flags) -> None:
    roles.stop()
    strategy = fleet.DistributedStrategy()
    for name, value in flags.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)


def learn(model: nn.Module, loss: Loss, share: slice, optimizer: Any) -> None:
    torch.manual_seed(1)
    for _ in range(STEPS):
        x, y = torch.randn(BATCH, 6), torch.randint(0, 3, (BATCH,))
        loss(model, x[share], y[share]).backward()
        optimizer.step()
        optimizer.zero_grad()


def rule(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)


def on_workers(name: str) -> list[dict[str, Tensor]]:
    make, loss, plans = CASES[name]
    found = []
    for flags in plans:
        begun(flags)
        torch.manual_seed(0)
        model = fleet.distributed_model(make())
        share = slice(fleet.worker_index(), None, fleet.worker_num())
        learn(model, loss, share, fleet.distributed_optimizer(rule(model)))
        found.append(fleet.full_state_dict(model))
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_model_learns_what_a_plain_run_teaches_it(name: str) -> None:
    make, loss, plans = CASES[name]
    torch.manual_seed(0)
    model = make()
    first = {key: value.clone() for key, value in model.state_dict().items()}
    learn(model, loss, slice(None), rule(model))
    wanted = dict(model.state_dict())
    moved = {key for key in wanted if not torch.allclose(wanted[key], first[key], atol=1e-3)}
    assert len(moved) >= 3
    found = world(2).run(on_workers, name)[0]
    assert len(found) == len(plans)
    for each in found:
        torch.testing.assert_close(each, wanted, rtol=1e-4, atol=1e-5)


class Mixed(nn.Module):
    """A layer with parameters of two formats."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 6, dtype=torch.complex64))
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x + 0j, self.weight).abs() + self.bias


class WithoutTokens(nn.Module):
    """Has as many tokens of its own as its configuration says: none."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Parameter(torch.zeros(0, 6)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.tokens, x]))


@world(2)
def test_a_parameter_without_numbers_is_named() -> None:
    for flags in (FIRST, LAST):
        begun(flags)
        model: Any = WithoutTokens()
        with pytest.raises(fleet.PlanError, match=r"'tokens' has no numbers\. Freeze it"):
            fleet.distributed_model(model)
        begun(flags)
        model = WithoutTokens()
        model.tokens.requires_grad_(False)
        model = fleet.distributed_model(model)
        learn(model, entropy, slice(None), fleet.distributed_optimizer(rule(model)))


@world(2)
def test_what_cannot_be_in_force_is_refused() -> None:
    begun(LAST)
    with pytest.raises(fleet.PlanError, match=r"'0\.weight' in complex64, '0\.bias' in float32"):
        fleet.distributed_model(nn.Sequential(Mixed(), nn.Linear(3, 3)))
    begun(LAST)
    heads = fleet.distributed_model(TwoHeads())
    with pytest.raises(fleet.PlanError, match=r"copy\.deepcopy\(model\).*strategy\.sharding"):
        copy.deepcopy(heads)
    begun({"lars": True})
    model = fleet.distributed_model(Mixed())
    with pytest.raises(fleet.PlanError, match=r"strategy\.lars = True .* 'weight' is complex"):
        fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    begun({"amp": True, "amp_configs": {"use_pure_bf16": True}})
    with pytest.raises(fleet.PlanError, match=r"'0' is made by torch\.nn\.utils\.spectral_norm"):
        fleet.distributed_model(nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 3))))
    begun(LAST)
    heads = fleet.distributed_model(TwoHeads())
    optimizer = fleet.distributed_optimizer(rule(heads))
    of_first_head(heads, torch.randn(2, 6), torch.zeros(2, dtype=torch.long)).backward()
    with pytest.raises(fleet.PlanError, match=r"no gradient to 'heads\.unused\.weight'"):
        optimizer.step()


def made_weights() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(6, 8)),
        parametrizations.orthogonal(nn.Linear(8, 8)),
        parametrizations.orthogonal(nn.Linear(8, 8), orthogonal_map="cayley"),
        parametrizations.weight_norm(nn.Linear(8, 3)),
    )


def test_weights_that_are_made_in_each_forward_are_made_in_float32() -> None:
    x, y = torch.randn(BATCH, 6), torch.randint(0, 3, (BATCH,))
    begun({"amp": True, "amp_configs": {"use_pure_bf16": True}})
    plain, model = made_weights(), fleet.distributed_model(made_weights())
    F.cross_entropy(plain(x), y).backward()
    fleet.distributed_optimizer(rule(model)).backward(F.cross_entropy(model(x), y))
    roles.stop()
    for name, parameter in plain.named_parameters():
        found = model.get_parameter(name).grad
        assert found is not None
        torch.testing.assert_close(found, parameter.grad, rtol=0.1, atol=0.02)
    seen: list[torch.dtype] = []
    assert parametrize.is_parametrized(model[1])
    model[1].register_forward_hook(lambda layer, args, output: seen.append(output.dtype))
    model(x)
    assert seen == [torch.bfloat16]


class Wraps(nn.Module):
    """Wraps exceptions in its own, as einx does, by which x-transformers computes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.linear(x.tanh()).exp().tanh()
        except Exception as error:
            raise RuntimeError("the operation failed") from error


def test_a_replay_ends_early_inside_of_code_that_wraps_exceptions() -> None:
    begun({"recompute": True, "recompute_configs": {"checkpoints": ["0"]}})
    torch.manual_seed(0)
    plain = nn.Sequential(Wraps(), nn.Linear(3, 3))
    torch.manual_seed(0)
    model = fleet.distributed_model(nn.Sequential(Wraps(), nn.Linear(3, 3)))
    x = torch.randn(BATCH, 6)
    plain(x).sum().backward()
    model(x).sum().backward()
    roles.stop()
    found, wanted = (each.get_parameter("0.linear.weight").grad for each in (model, plain))
    assert found is not None
    assert wanted is not None
    assert torch.equal(found, wanted)


class Packed(nn.Module):
    """One layer for queries, keys and values, reshaped into three, as monai and timm have it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(6, 24), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).reshape(len(x), 3, 2, 4).unbind(1)
        return self.proj(F.scaled_dot_product_attention(q, k, v).flatten(1))


def packed_learned() -> dict[str, Tensor]:
    cut = {"tensor_parallel_degree": 2, "column": ["qkv"], "row": ["proj"]}
    begun({"tensor_parallel": True, "tensor_parallel_configs": cut})
    torch.manual_seed(0)
    model = fleet.distributed_model(Packed())
    learn(model, entropy, slice(None), fleet.distributed_optimizer(rule(model)))
    return fleet.full_state_dict(model)


def test_a_cut_layer_is_reshaped_into_parts_that_ranks_do_not_divide() -> None:
    torch.manual_seed(0)
    model = Packed()
    learn(model, entropy, slice(None), rule(model))
    found = world(2).run(packed_learned)[0]
    torch.testing.assert_close(found, dict(model.state_dict()), rtol=1e-4, atol=1e-5)


class Described(nn.Linear):
    """Adds its arguments to its state, as models of neuraloperator do."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return super().state_dict(*args, **kwargs) | {"_metadata": {"features": [6, 3]}}

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        kept = {name: value for name, value in state_dict.items() if name != "_metadata"}
        return super().load_state_dict(kept, *args, **kwargs)


@world(2)
def test_what_a_model_adds_to_its_state_is_saved_and_not_looked_for(tmp_path: Path) -> None:
    begun(LAST)
    model = fleet.distributed_model(Described(6, 3))
    optimizer = fleet.distributed_optimizer(rule(model))
    optimizer.minimize(entropy(model, torch.randn(2, 6), torch.tensor([0, 1])))
    state = fleet.full_state_dict(model, everywhere=True)
    assert state["_metadata"] == {"features": [6, 3]}
    save_checkpoint(tmp_path / "run", model, optimizer, step=1)
    fleet.save_weights(model, tmp_path / "weights")
    loads: list[Callable[[], Any]] = [
        lambda: fleet.load_full_state_dict(model, state),
        lambda: load_checkpoint(tmp_path / "run", model, optimizer),
        lambda: fleet.load_weights(model, tmp_path / "weights"),
    ]
    for load in loads:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        load()
        torch.testing.assert_close(fleet.full_state_dict(model, everywhere=True), state)


class Converts(nn.Module):
    """Brings its parameter to the format of its inputs, as pytorch-metric-learning does."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.weight = nn.Linear(6, 4), nn.Parameter(torch.randn(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.trunk(x)
        self.weight.data = self.weight.data.to(hidden.dtype)
        return hidden @ self.weight


@world(2)
def test_a_parameter_that_a_forward_converts_is_named() -> None:
    begun({"amp": True, "amp_configs": {"dtype": "bfloat16"}})
    model = fleet.distributed_model(Converts())
    optimizer = fleet.distributed_optimizer(rule(model))
    entropy(model, torch.randn(2, 6), torch.tensor([0, 1])).backward()
    with pytest.raises(RuntimeError, match=r"'weight' was torch\.float32 .* torch\.bfloat16 now"):
        optimizer.step()
