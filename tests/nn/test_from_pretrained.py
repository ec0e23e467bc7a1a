"""Tables that begin with an embedding of torch, and train as it does."""

import copy
import gc
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fleetx as fleet
from fleetx.nn import SGD, CountFilterEntry, SparseEmbedding
from fleetx.ps.server.logged_sparse_table import LoggedSparseTable
from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.worker.carrier import Carrier
from tests.habits.test_loops_with_servers import MODES, in_mode, job
from tests.libraries import transformers
from tests.ps.team import Team, carried, team, train

WORDS, WIDTH, STEPS = 50, 8, 3
ALL_MODES: list[dict[str, Any] | None] = [*MODES, {"k_steps": 2}]


def bert() -> Any:
    """Small, and without anything by chance; the row of what is padded is not zero."""
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config, add_pooling_layer=False)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[0] = torch.linspace(-1, 1, WIDTH)
    return model.train()


def texts() -> list[Tensor]:
    """Of several lengths, padded."""
    generator = torch.Generator().manual_seed(1)
    found = [torch.randint(1, 20, (4, 6), generator=generator) for _ in range(STEPS)]
    for ids in found:
        ids[1, 3:] = ids[3, 5:] = 0
    return found


def loss_of(model: Any, ids: Tensor) -> Tensor:
    """Of all places, padded ones among them."""
    loss: Tensor = model(input_ids=ids).last_hidden_state[..., 0].square().mean()
    return loss


def learned(model: nn.Module, words: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """All parameters, and the rows of all words."""
    found = {
        name: p.detach().clone()
        for name, p in model.named_parameters()
        if "word_embeddings" not in name
    }
    model.eval()
    with torch.no_grad():
        found["words"] = words(torch.arange(WORDS)).clone()
    model.train()
    return found


def swapped(model: Any, **options: Any) -> Any:
    """The same with words on servers."""
    old = model.embeddings.word_embeddings
    new = SparseEmbedding.from_pretrained(old, name="words", **options)
    model.set_submodule("embeddings.word_embeddings", new)
    return model


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("mode", ALL_MODES)
def test_bert_trains_as_with_its_own_words(
    mode: dict[str, Any] | None, freeze: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = bert()
    first = plain.embeddings.word_embeddings.weight.detach().clone()
    plain.embeddings.word_embeddings.weight.requires_grad_(not freeze)
    optimizer: Any = torch.optim.SGD(plain.parameters(), lr=0.5)
    for ids in texts():
        optimizer.zero_grad()
        loss_of(plain, ids).backward()
        optimizer.step()
    wanted = learned(plain, plain.embeddings.word_embeddings)
    assert torch.equal(wanted["words"], first) is freeze
    with job(monkeypatch, 2, **in_mode(mode)):
        served = fleet.distributed_model(swapped(bert(), freeze=freeze))
        optimizer = fleet.distributed_optimizer(torch.optim.SGD(served.parameters(), lr=0.5))
        fleet.init_worker()
        for ids in texts():
            optimizer.minimize(loss_of(served, ids))
            fleet.settle_workers()
        found = learned(served, served.embeddings.word_embeddings)
    assert torch.equal(found["words"][0], first[0])
    assert torch.equal(found["words"][20:], first[20:])  # words that no text has
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=1e-6)


def test_a_frozen_table_needs_no_place_in_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """AdamW has a weight_decay, which rows have not."""
    with job(monkeypatch, 2):
        served = fleet.distributed_model(swapped(bert()))
        trained = [p for p in served.parameters() if p.requires_grad]
        optimizer = fleet.distributed_optimizer(torch.optim.AdamW(trained, lr=0.01))
        fleet.init_worker()
        optimizer.minimize(loss_of(served, texts()[0]))
        found = learned(served, served.embeddings.word_embeddings)["words"]
    assert torch.equal(found, bert().embeddings.word_embeddings.weight)


class Scores(nn.Module):
    """A row, and what becomes of it."""

    def __init__(self, words: nn.Module) -> None:
        super().__init__()
        self.words = words

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.words(ids).sum(-1)
        return found


MATRIX = torch.randn(9000, 4, generator=torch.Generator().manual_seed(2))
IDS = torch.arange(9000) * 7_919_000_000_007 - 2**61


def rows(layer: nn.Module, ids: Tensor) -> Tensor:
    with torch.no_grad():
        layer.eval()
        found: Tensor = layer(ids).clone()
        layer.train()
    return found


@pytest.mark.parametrize(
    ("options", "exact"),
    [
        ({}, 0.0),
        ({"entry": CountFilterEntry(10)}, 0.0),
        ({"wire": "bfloat16"}, 2**-8),  # of what travels here; the table has all bits
        ({"dtype": "float16"}, 2**-10),
        ({"dtype": "bfloat16"}, 2**-8),
        ({"dtype": "int8"}, 2**-6),
        ({"storage": "disk", "memory": "1MiB"}, 0.0),
        ({"storage": "disk", "memory": "1MiB", "dtype": "int8"}, 2**-6),
    ],
)
def test_rows_of_any_ids_in_every_kind_of_table(options: dict[str, Any], exact: float) -> None:
    layer = SparseEmbedding.from_pretrained(
        MATRIX, ids=IDS, freeze=False, name="words", rule=SGD(0.5), **options
    )
    with team(2) as here:
        worker = here.worker()
        carrier = carried(Scores(layer), worker)
        chosen = torch.randperm(9000, generator=torch.Generator().manual_seed(3))[:500]
        torch.testing.assert_close(rows(layer, IDS[chosen]), MATRIX[chosen], rtol=exact, atol=exact)
        unknown = rows(layer, torch.tensor([5, 6]))
        assert float(unknown.abs().max()) < 1e-3  # as ever
        train(Scores(layer), carrier, IDS[chosen], torch.zeros(500))
        moved = rows(layer, IDS[chosen])
        assert not torch.allclose(moved, MATRIX[chosen], rtol=exact, atol=max(exact, 1e-6))
        untouched = chosen.new_tensor([*{*range(9000)} - {*chosen.tolist()}])
        torch.testing.assert_close(
            rows(layer, IDS[untouched]), MATRIX[untouched], rtol=exact, atol=exact
        )
        worker.stop()


def given_to(
    here: Team, matrix: Tensor, index: int = 0, **options: Any
) -> tuple[Any, Any, Carrier]:
    """A layer with rows, trained by hand."""
    layer = SparseEmbedding.from_pretrained(
        matrix, freeze=False, name="words", rule=SGD(0.5), **options
    )
    worker = here.worker(index)
    return layer, worker, carried(Scores(layer), worker)


def test_what_was_learned_is_not_given_anew() -> None:
    """A worker that is started again, or another one in its place, brings the same rows."""
    with team(2) as here:
        layer, worker, carrier = given_to(here, MATRIX[:20])
        train(Scores(layer), carrier, torch.arange(5), torch.zeros(5))
        before = rows(layer, torch.arange(30))
        _, _, other = given_to(here, MATRIX[:30])
        after = rows(layer, torch.arange(30))
        torch.testing.assert_close(after[:20], before[:20], rtol=0, atol=0)
        torch.testing.assert_close(after[20:], MATRIX[20:30], rtol=0, atol=0)
        assert other is not carrier
        worker.stop()


@pytest.mark.parametrize("freeze", [True, False])
def test_a_worker_lets_go_of_what_the_servers_have(
    freeze: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kept the matrix, and a second one without the row of the padding, for the whole job."""
    matrix = MATRIX[:50].clone()
    layer = SparseEmbedding.from_pretrained(matrix, freeze, 3, name="words", rule=SGD(0.5))
    model, wanted, kept = Scores(layer), matrix.clone(), weakref.ref(matrix)
    model.head = nn.Linear(1, 1)
    del matrix
    assert layer.given is not None
    less = weakref.ref(layer.given.rows)

    def trained() -> Any:
        made: Any = fleet.distributed_model(model)
        optimizer = fleet.distributed_optimizer(torch.optim.SGD(made.parameters(), lr=0.5))
        fleet.init_worker()
        optimizer.minimize(made(torch.arange(5)).square().mean() + made.head.weight.sum())
        return made

    with job(monkeypatch, 2):
        made = trained()
        gc.collect()
        assert (kept(), less()) == (None, None)
        found = rows(made.words, torch.arange(50))
        assert torch.equal(found[5:], wanted[5:])
        assert torch.equal(found[3], wanted[3])  # that of the padding, which no server has
        assert torch.equal(found, wanted) is freeze
    with (
        job(monkeypatch, 2),
        pytest.raises(RuntimeError, match=r"'words' was to begin.*make it anew"),
    ):
        trained()


@pytest.mark.parametrize("options", [{}, {"storage": "disk", "memory": "1MiB"}])
def test_a_server_that_was_killed_has_them(options: dict[str, Any], tmp_path: Path) -> None:
    """Its log is copied as it is; nothing was closed."""
    with team(1, folder=tmp_path / "here") as here:
        layer, worker, carrier = given_to(here, MATRIX, **options)
        train(Scores(layer), carrier, torch.arange(50), torch.zeros(50))
        wanted = rows(layer, torch.arange(9000)).numpy()
        shutil.copytree(tmp_path / "here", tmp_path / "left")
        worker.stop()
    back = RequestHandler(Membership(1), folder=tmp_path / "left" / "server-0")
    (words,) = back._tables
    found = np.empty_like(wanted)
    assert isinstance(words, LoggedSparseTable)
    words.table.pull(np.arange(9000), found, train=False)
    np.testing.assert_array_equal(found, wanted)
    assert not np.array_equal(wanted, MATRIX.numpy())


def test_a_save_comes_before_what_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def begun() -> Any:
        model = fleet.distributed_model(swapped(bert(), freeze=False))
        optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.5))
        fleet.init_worker()
        return model, optimizer

    with job(monkeypatch, 2):
        model, optimizer = begun()
        for ids in texts():
            optimizer.minimize(loss_of(model, ids))
        fleet.save_persistables(str(tmp_path))
        wanted = learned(model, model.embeddings.word_embeddings)
    with job(monkeypatch, 3):
        model, optimizer = begun()
        optimizer.minimize(loss_of(model, texts()[0]))
        assert not torch.equal(
            learned(model, model.embeddings.word_embeddings)["words"], wanted["words"]
        )
        fleet.load_persistables(str(tmp_path))
        found = learned(model, model.embeddings.word_embeddings)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_tied_weights_are_not_parted_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head of a language model is its words; it would go on to learn without them."""
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_embd=WIDTH, n_layer=1, n_head=2, n_positions=16
    )

    def train(given: Callable[[Any], Any]) -> None:
        model = transformers.GPT2LMHeadModel(config)
        words = model.transformer.wte
        assert model.lm_head.weight is words.weight
        table = SparseEmbedding.from_pretrained(given(words), name="words", freeze=False)
        model.set_submodule("transformer.wte", table)
        with job(monkeypatch, 2):
            served = fleet.distributed_model(model)
            optimizer = fleet.distributed_optimizer(torch.optim.SGD(served.parameters(), lr=0.5))
            fleet.init_worker()
            optimizer.minimize(served(input_ids=texts()[0]).logits.square().mean())

    with pytest.raises(ValueError, match=r"'lm_head.weight' shares its numbers.*'words'.*clone"):
        train(lambda words: words)
    train(lambda words: words.weight.detach().clone())


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags(mode: str) -> None:
    plain = nn.EmbeddingBag(20, 4, mode=mode, padding_idx=3, include_last_offset=True)
    with torch.no_grad():
        plain.weight[3] = 5.0  # bags leave it out
    with team(2) as here:
        layer = SparseEmbedding.from_pretrained(plain, freeze=False, name="words", rule=SGD(0.5))
        worker = here.worker()
        model = nn.ModuleList([layer])
        carried(model, worker)
        ids, offsets = torch.tensor([1, 3, 3, 2, 3, 9, 9]), torch.tensor([0, 2, 2, 5, 7])
        with torch.no_grad():
            layer.eval()
            torch.testing.assert_close(layer(ids, offsets), plain(ids, offsets))
        worker.stop()


def test_padding_is_where_torch_has_it() -> None:
    matrix = MATRIX[:10].clone()
    last = SparseEmbedding.from_pretrained(matrix, padding_idx=-1, name="words")
    assert last.padding_idx == 9
    torch.testing.assert_close(last.get_buffer("padding_row"), matrix[9])
    zero = SparseEmbedding.from_pretrained(nn.Embedding(10, 4, padding_idx=2), name="words")
    assert zero.padding_idx == 2
    assert not [*zero.buffers()]
    named = SparseEmbedding.from_pretrained(matrix, ids=IDS[:10], padding_idx=-1, name="words")
    assert named.padding_idx == -1
    again = copy.deepcopy(last)
    assert again.given is not None
    assert again.given.rows.shape == (9, 4)
    assert not last.anchor.requires_grad


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ([[1.0]], {}, "a list; pass a tensor of floats"),
        (torch.ones(3), {}, r"shape \[3\]"),
        (torch.ones(3, 2, dtype=torch.long), {}, "int64"),
        (torch.full((3, 2), torch.nan), {}, "NaN"),
        (torch.ones(3, 2), {"ids": [1, 2]}, "3 whole numbers"),
        (torch.ones(3, 2), {"ids": [1, 2, 1]}, "id 1 of table 'words' has 2 rows"),
        (torch.ones(3, 2), {"ids": [1.0, 2.0, 3.0]}, "whole numbers"),
        (torch.ones(3, 2), {"padding_idx": 3}, "none of the 3 rows"),
        (torch.ones(3, 2), {"max_norm": 1.0}, "max_norm.*leave it out"),
        (nn.Embedding(3, 2, max_norm=1.0), {}, "max_norm.*leave it out"),
        (nn.Embedding(3, 2, scale_grad_by_freq=True), {}, "scale_grad_by_freq.*leave it out"),
        (nn.EmbeddingBag(3, 2, mode="max"), {}, "pooling='max' is not known"),
    ],
)
def test_what_cannot_be(given: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SparseEmbedding.from_pretrained(given, name="words", **options)
