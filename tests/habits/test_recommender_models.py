"""Recommenders as their authors write them: with tables on servers they learn what they would.

Two workers have a share of each batch, and so has the plain run, whose loss is the mean of theirs.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ExponentialLR

from fleetx.api.table_saves import save
from fleetx.nn import SparseEmbedding
from fleetx.ps.worker.carrier import Carrier
from fleetx.ps.worker.carrier_options import CarrierOptions
from fleetx.ps.worker.parameter_split import ParameterSplit
from fleetx.ps.worker.remote_optimizer import RemoteOptimizer
from tests.ps.team import Team, team, together

FIELDS, ITEMS, LENGTH, BATCH, STEPS = (5, 4, 3), 9, 4, 16, 4
Batch = dict[str, Tensor]
_MAKING = threading.RLock()


def fields_of(x: Batch) -> Tensor:
    return x["fields"]


class OfTorchfm(nn.Module):
    """One of that library, with statistics that stay: workers' shares have others."""

    def __init__(self, name: str) -> None:
        super().__init__()
        from torchfm.model import afi, afm, dcn, ffm, nfm

        self.model: nn.Module = {
            "dcn": lambda: dcn.DeepCrossNetworkModel(FIELDS, 4, 2, (8,), 0.0),
            "autoint": lambda: afi.AutomaticFeatureInteractionModel(
                FIELDS, 4, 6, 2, 2, (8,), (0.0, 0.0)
            ),
            "ffm": lambda: ffm.FieldAwareFactorizationMachineModel(FIELDS, 4),
            "nfm": lambda: nfm.NeuralFactorizationMachineModel(FIELDS, 4, (8,), (0.0, 0.0)),
            "afm": lambda: afm.AttentionalFactorizationMachineModel(FIELDS, 4, 4, (0.0, 0.0)),
        }[name]()
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()

    def forward(self, x: Batch) -> Tensor:
        return F.binary_cross_entropy(self.model(fields_of(x)), x["clicked"])


class Din(nn.Module):
    """Attention of the wanted item over a history of any length, padded with 0."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.kinds = (nn.Embedding(n, 4, padding_idx=0) for n in (ITEMS, 5))
        self.attention = nn.Sequential(nn.Linear(32, 8), nn.PReLU(), nn.Linear(8, 1))
        self.head = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))

    def rows(self, ids: Tensor) -> Tensor:
        return torch.cat([self.items(ids), self.kinds(ids % 5)], -1)

    def forward(self, x: Batch) -> Tensor:
        history, wanted = self.rows(x["history"]), self.rows(x["item"])
        each = wanted[:, None].expand_as(history)
        scores = self.attention(torch.cat([each, history, each - history, each * history], -1))
        weights = scores.masked_fill(x["history"][..., None] == 0, -1e9).softmax(1)
        told = self.head(torch.cat([wanted, (weights * history).sum(1)], -1)).squeeze(-1)
        return F.binary_cross_entropy_with_logits(told, x["clicked"])


class TwoTowers(nn.Module):
    """The items of a history and the wanted one are rows of one table; others are negatives."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, 6)
        self.user, self.item = nn.Linear(6, 5), nn.Linear(6, 5)

    def forward(self, x: Batch) -> Tensor:
        user = F.normalize(self.user(self.items(x["history"]).mean(1)), dim=-1)
        item = F.normalize(self.item(self.items(x["item"])), dim=-1)
        return F.cross_entropy(user @ item.T / 0.3, torch.arange(len(user)))


class TiedTwice(nn.Module):
    """Two layers over one weight, one of which has padding."""

    def __init__(self) -> None:
        super().__init__()
        self.history = nn.Embedding(ITEMS, 6, padding_idx=0)
        self.item = nn.Embedding(ITEMS, 6)
        self.item.weight = self.history.weight
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x: Batch) -> Tensor:
        history = self.history(x["history"])
        history *= (x["history"] > 2)[..., None]  # in place, as masks often are
        told = (history.sum(1) * self.item(x["item"])).sum(-1) + self.bias
        return F.binary_cross_entropy_with_logits(told, x["clicked"])


class Experts(nn.Module):
    """MMoE: tables by name, one of them for two columns, and a gate and a head for each task."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleDict(
            {"item": nn.Embedding(ITEMS, 4), "age": nn.Embedding(FIELDS[0], 3, sparse=True)}
        )
        self.experts = nn.ModuleList(nn.Linear(11, 6) for _ in range(3))
        self.gates = nn.ModuleList(nn.Linear(11, 3) for _ in range(2))
        self.heads = nn.ModuleList(nn.Linear(6, 1) for _ in range(2))
        self.spread = nn.Parameter(torch.zeros(2))  # how sure each task is

    def forward(self, x: Batch) -> Tensor:
        columns = [("item", x["item"]), ("age", x["fields"][:, 0]), ("item", x["history"][:, 0])]
        found = torch.cat([self.tables[name](ids) for name, ids in columns], -1)
        experts = torch.stack([expert(found).relu() for expert in self.experts], 1)
        losses = []
        for gate, head, wanted in zip(
            self.gates, self.heads, (x["clicked"], x["rating"]), strict=True
        ):
            mixed = (gate(found).softmax(-1)[..., None] * experts).sum(1)
            losses.append((head(mixed).squeeze(-1) - wanted).square().mean())
        return (torch.stack(losses) * (-self.spread).exp() + self.spread).sum()


class Bags(nn.Module):
    """All kinds of bags, flat and rectangular."""

    def __init__(self) -> None:
        super().__init__()
        self.sums = nn.EmbeddingBag(ITEMS, 4, mode="sum", include_last_offset=True)
        self.means = nn.EmbeddingBag(ITEMS, 4, mode="mean", padding_idx=0)
        self.weighted = nn.EmbeddingBag(ITEMS, 4, mode="sum")
        self.weigh, self.head = nn.Parameter(torch.ones(LENGTH)), nn.Linear(12, 1)

    def forward(self, x: Batch) -> Tensor:
        history = x["history"]
        ends = torch.arange(len(history) + 1) * LENGTH
        found = [
            self.sums(history.flatten(), ends),
            self.means(history),
            self.weighted(history, per_sample_weights=self.weigh.expand(history.shape)),
        ]
        told = self.head(torch.cat(found, -1)).squeeze(-1)
        return (told - x["rating"]).square().mean()


class Spectral(nn.Module):
    """A complex filter over a history, as in recommenders that work on spectra."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, 4)
        self.filter = nn.Parameter(torch.randn(LENGTH // 2 + 1, 4, dtype=torch.complex64))
        self.head = nn.Linear(4, 1)

    def forward(self, x: Batch) -> Tensor:
        spectrum = torch.fft.rfft(self.items(x["history"]), dim=1) * self.filter
        told = self.head(torch.fft.irfft(spectrum, n=LENGTH, dim=1).mean(1)).squeeze(-1)
        return (told - x["rating"]).square().mean()


MODELS: dict[str, Callable[[], nn.Module]] = {
    **{name: partial(OfTorchfm, name) for name in ("dcn", "autoint", "ffm", "nfm", "afm")},
    "din": Din,
    "two towers": TwoTowers,
    "tied twice": TiedTwice,
    "experts": Experts,
    "bags": Bags,
    "spectral": Spectral,
}


def made(name: str) -> nn.Module:
    with _MAKING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MODELS[name]()


def tables_of(model: nn.Module) -> dict[str, Any]:
    kinds = nn.Embedding | nn.EmbeddingBag
    return {path: each for path, each in model.named_modules() if isinstance(each, kinds)}


def served(model: nn.Module) -> nn.Module:
    """The same with tables on servers; layers over one weight are over one table."""
    names: dict[Tensor, str] = {}
    for path, old in tables_of(model).items():
        name = names.setdefault(old.weight, path.replace(".", "_"))
        new = SparseEmbedding.from_pretrained(old, freeze=False, name=name)
        model.set_submodule(path, new.train())
    return model


def batches() -> list[Batch]:
    """Each has all ids, for Adam of torch moves all rows."""
    generator = torch.Generator().manual_seed(2)

    def ids(size: int, *shape: int) -> Tensor:
        drawn = torch.randint(0, size, shape, generator=generator).flatten()
        drawn[:size] = torch.arange(size)
        return drawn[torch.randperm(len(drawn), generator=generator)].view(shape)

    def one() -> Batch:
        history = ids(ITEMS, BATCH, LENGTH)
        history[:, 0].clamp_(min=1)
        return {
            "fields": torch.stack([ids(size, BATCH) for size in FIELDS], 1),
            "history": history,
            "item": ids(ITEMS, BATCH),
            "clicked": torch.rand(BATCH, generator=generator).round(),
            "rating": torch.rand(BATCH, generator=generator),
        }

    return [one() for _ in range(STEPS)]


def share(batch: Batch, index: int, workers: int) -> Batch:
    return {name: value[index::workers] for name, value in batch.items()}


@dataclass(frozen=True)
class Rule:
    """An optimizer with a group for tables, one for matrices and one for the rest."""

    kind: Any
    options: dict[str, Any]
    matrices: dict[str, Any]
    """More options of theirs."""

    def over(self, model: nn.Module) -> Any:
        rows = [model.get_parameter(f"{path}.weight") for path in tables_of(model)]
        rows += [each.anchor for each in model.modules() if isinstance(each, SparseEmbedding)]
        known = {id(p) for p in rows}
        dense = [p for p in model.parameters() if id(p) not in known]
        groups = [
            {"params": list(dict.fromkeys(rows))},
            {"params": [p for p in dense if p.dim() > 1], **self.matrices},
            {"params": [p for p in dense if p.dim() < 2]},
        ]
        return self.kind([group for group in groups if group["params"]], **self.options)


RULES = {
    "sgd": Rule(torch.optim.SGD, {"lr": 0.3}, {"momentum": 0.9, "weight_decay": 0.1}),
    # Their usual eps makes large steps of gradients that are nearly zero and mostly rounding.
    "adagrad": Rule(torch.optim.Adagrad, {"lr": 0.1, "eps": 1e-3}, {"weight_decay": 0.1}),
    "adam": Rule(torch.optim.Adam, {"lr": 0.02, "eps": 1e-3}, {"weight_decay": 0.1, "lr": 0.01}),
    "decoupled": Rule(
        torch.optim.Adam,
        {"lr": 0.02, "eps": 1e-3, "decoupled_weight_decay": True},
        {"weight_decay": 0.9},
    ),
}


def learned(name: str, model: nn.Module) -> dict[str, Tensor]:
    """All parameters, and the rows of all ids but that of padding, as evaluations see them."""
    found = {n: p.detach().clone() for n, p in model.named_parameters() if p.numel()}
    training = [module for module in model.modules() if module.training]
    model.eval()
    for path, like in tables_of(made(name)).items():
        layer = model.get_submodule(path)
        ids = torch.arange(0 if like.padding_idx is None else 1, like.num_embeddings)
        bags = isinstance(like, nn.EmbeddingBag)
        found[f"{path}.weight"] = layer(ids[:, None] if bags else ids).detach().clone()
    for module in training:
        module.training = True
    return found


def plainly(
    name: str, rule: Rule, workers: list[int], limit: float | None = None, falls: float = 1.0
) -> dict[str, Tensor]:
    """What torch learns by itself.

    Args:
        name: of the model.
        rule: by which it learns.
        workers: into how many shares each batch is cut.
        limit: of the norm of gradients.
        falls: what each update leaves of the learning rates.
    """
    model = made(name)
    for each in tables_of(model).values():
        each.sparse &= rule.kind is not torch.optim.Adam and limit is None
    optimizer = rule.over(model)
    schedule = ExponentialLR(optimizer, falls)
    for batch, shares in zip(batches(), workers, strict=False):
        losses = [model(share(batch, index, shares)) for index in range(shares)]
        torch.stack(losses).mean().backward()
        if limit is not None:
            nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return learned(name, model)


class Trainer:
    """A worker with its model."""

    def __init__(self, here: Team, index: int, name: str, rule: Rule) -> None:
        with _MAKING:
            self.model = served(made(name))
        self.index, self.name, self.workers = index, name, here.workers
        self.worker = here.worker(index)
        self.carrier = self._carried(rule)

    def _carried(self, rule: Rule) -> Carrier:
        modules = [each for each in self.model.modules() if isinstance(each, SparseEmbedding)]
        names: dict[Any, str] = {p: name for name, p in self.model.named_parameters()}
        remote = RemoteOptimizer(rule.over(self.model).param_groups)
        options = CarrierOptions(split=ParameterSplit(min_block_size=16))
        carrier = Carrier(remote, names, [*modules], rule.kind.__name__, options)
        carrier._worker = self.worker
        carrier.open(self.worker)
        remote.deliver = carrier.deliver
        for module in modules:
            module.row_source = carrier
        return carrier

    def train(self, several: list[Batch], limit: float | None = None, falls: float = 1.0) -> None:
        optimizer = self.carrier.optimizer
        schedule = ExponentialLR(optimizer, falls)
        for batch in several:
            self.carrier.begin()
            self.model(share(batch, self.index, self.workers)).backward()
            if limit is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), limit)
            optimizer.step()
            self.carrier.clear_gradients()
            optimizer.zero_grad()
            schedule.step()

    def met(self, topic: str) -> None:
        """All have come as far."""
        self.carrier.flush()
        self.worker.agree(0, topic=topic)

    def rows(self) -> int:
        answers = self.worker.client.call_all({"method": "describe"})
        tables = [table for each in answers for table in each["tables"].values()]
        return sum(table.get("rows", 0) for table in tables)

    def ended(self) -> dict[str, Tensor]:
        self.met("end")
        found = learned(self.name, self.model)
        self.worker.stop()
        return found


def close(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    for name, value in wanted.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-4, atol=2e-5, msg=partial("{}: {}".format, name)
        )


def compared() -> list[tuple[int, str, str]]:
    """Each model with two rules, once with one server and once with two."""
    rules = list(RULES)
    turns = [(at, 1 + turn, name) for at, name in enumerate(MODELS) for turn in range(2)]
    return [(servers, name, rules[(at + 2 * servers) % len(rules)]) for at, servers, name in turns]


@pytest.mark.parametrize(("servers", "name", "rule"), compared())
def test_two_workers_learn_what_one_process_does(servers: int, name: str, rule: str) -> None:
    def work(index: int) -> dict[str, Tensor]:
        one = Trainer(here, index, name, RULES[rule])
        one.train(batches(), falls=0.7)
        return one.ended()

    with team(servers, 2) as here:
        found = together(lambda: work(0), lambda: work(1))
    wanted = plainly(name, RULES[rule], [2] * STEPS, falls=0.7)
    first = learned(name, made(name))
    assert max(float((wanted[n] - v).abs().max()) for n, v in first.items()) > 0.01
    for each in found:
        close(each, wanted)


@pytest.mark.parametrize("name", ["tied twice", "experts", "bags"])
def test_a_limit_sees_all_gradients(name: str) -> None:
    with team(2) as here:
        one = Trainer(here, 0, name, RULES["sgd"])
        one.train(batches(), limit=0.05)
        found = one.ended()
    close(found, plainly(name, RULES["sgd"], [1] * STEPS, limit=0.05))


@pytest.mark.parametrize(
    ("name", "rule"),
    [("din", "adam"), ("experts", "sgd"), ("experts", "decoupled"), ("spectral", "adagrad")],
)
def test_a_save_goes_on_with_other_workers_and_servers(
    name: str, rule: str, tmp_path: Path
) -> None:
    """With an evaluation in between, which asks for ids that nobody has trained."""

    def work(index: int) -> None:
        one = Trainer(here, index, name, RULES[rule])
        one.train(batches()[:2])
        one.met("trained")
        if index == 0:
            before = one.rows()
            evaluated(one)
            assert one.rows() == before
            save(one.worker, tmp_path, delta=False)
        one.ended()

    with team(2, 2) as here:
        together(lambda: work(0), lambda: work(1))
    with team(3) as here:
        for handler in here.handlers:
            handler.preload(tmp_path, None)
        last = Trainer(here, 0, name, RULES[rule])
        last.train(batches()[2:])
        found = last.ended()
    close(found, plainly(name, RULES[rule], [2, 2, 1, 1]))


def evaluated(one: Trainer) -> None:
    one.model.eval()
    for each in one.model.modules():
        if isinstance(each, SparseEmbedding):
            assert bool(each(torch.tensor([[10**6, -7]])).isfinite().all())
    one.model.train()
