"""Dense parameters on servers stay as they are while they have no gradient, as they do in torch.

Models with a head for each task, of which a batch trains some, and parts that no loss reaches (the
pooler of BERT under a loss over words) have such parameters.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fleetx.api.table_saves import save
from fleetx.ps.server.logged_dense_table import LoggedDenseTable
from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.tables.dense_rules import OPTIMIZERS
from fleetx.ps.tables.dense_table import DenseSpec, DenseTable
from fleetx.ps.wire.frames import BadFrameError, Flag, Frame, Op
from fleetx.ps.wire.handshake import Claim
from fleetx.ps.worker.carrier import Carrier
from fleetx.ps.worker.carrier_async import HalfAsyncCarrier
from fleetx.ps.worker.carrier_options import CarrierOptions
from fleetx.ps.worker.parameter_split import ParameterSplit
from tests.ps.team import Team, carried, team, together
from tests.ps.test_dense_rules import NAMES, RULES

SIZES = {"a": 5, "b": 3, "c": 0, "d": 4, "e": 2}
SPEC: dict[str, Any] = {
    "name": "d",
    "blocks": tuple((name, 0, size) for name, size in SIZES.items()),
}
PRESENT = ["abcd", "abcd", "acd", "ce", "abcde", "e", "abcde"]
"""Which have a gradient at each update: b goes and comes, d and a go, e comes late."""
BEGIN = 0.1 * torch.arange(sum(SIZES.values()), dtype=torch.float32)


def gradients() -> list[Any]:
    drawn = np.random.default_rng(5)
    return [drawn.standard_normal(len(BEGIN)).astype(np.float32) for _ in PRESENT]


def by_torch(name: str, options: dict[str, Any]) -> Any:
    parts = [nn.Parameter(part.clone()) for part in BEGIN.split([*SIZES.values()])]
    plain = {key: tuple(v) if isinstance(v, list) else v for key, v in options.items()}
    make: Any = OPTIMIZERS[name]
    optimizer = make(parts, lr=0.05, **plain)
    for present, flat in zip(PRESENT, gradients(), strict=True):
        pieces = torch.from_numpy(flat).split([*SIZES.values()])
        for part, piece, at in zip(parts, pieces, SIZES, strict=True):
            part.grad = piece.clone() if at in present else None
        optimizer.step()
    return torch.cat([part.detach() for part in parts]).numpy()


def marks(present: str) -> Any:
    return None if present == "abcde" else np.array([name in present for name in SIZES])


@pytest.mark.parametrize(("name", "options"), RULES, ids=NAMES)
@pytest.mark.parametrize("copied", [False, True])
def test_parts_without_a_gradient_stay(name: str, options: dict[str, Any], copied: bool) -> None:
    spec = DenseSpec(optimizer=name, options={"lr": 0.05, **options}, **SPEC)
    table = DenseTable(spec)
    table.fill(BEGIN.numpy())
    for present, flat in zip(PRESENT, gradients(), strict=True):
        if copied:
            table, before = DenseTable(spec), table
            table.put(before.arrays())
        table.push(flat, present=marks(present))
    np.testing.assert_allclose(table.values, by_torch(name, options), rtol=2e-5, atol=1e-6)


class Heads(nn.Module):
    """A body and heads, as models for several tasks have them; nothing reaches ``spare``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.body = nn.Linear(6, 20)
        self.heads = nn.ModuleList(nn.Linear(20, 3) for _ in range(3))
        self.spare = nn.Linear(20, 20)

    def loss(self, x: torch.Tensor, tasks: list[int]) -> torch.Tensor:
        hidden = torch.tanh(self.body(x))
        return sum((self.heads[task](hidden).pow(2).mean() for task in tasks), torch.zeros(()))


TASKS = [[0], [0, 1], [1], [2], [0, 1, 2], [2], [0], [1, 2]]
X = torch.randn(len(TASKS), 4, 6, generator=torch.Generator().manual_seed(2))
RULE: dict[str, Any] = {"optimizer": torch.optim.AdamW, "lr": 0.03, "weight_decay": 0.2}
SPLIT = CarrierOptions(split=ParameterSplit(min_block_size=16))


def update(model: Heads, carrier: Carrier, x: torch.Tensor, tasks: list[int]) -> None:
    carrier.begin()
    model.loss(x, tasks).backward()
    carrier.optimizer.step()
    carrier.optimizer.zero_grad()


def kept(model: Heads) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def plainly(batches: list[list[list[int]]]) -> list[torch.Tensor]:
    """Torch alone; each update is the mean over the workers' losses."""
    model = Heads()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.03, weight_decay=0.2)
    for x, tasks in zip(X, batches, strict=True):
        losses = [model.loss(x + index, each) for index, each in enumerate(tasks)]
        (sum(losses, torch.zeros(())) / len(losses)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return kept(model)


def work(
    here: Team, model: Heads, index: int, batches: list[list[list[int]]]
) -> list[torch.Tensor]:
    worker = here.worker(index)
    carrier = carried(model, worker, carrier_options=SPLIT, **RULE)
    for x, tasks in zip(X, batches, strict=True):
        update(model, carrier, x + index, tasks[index])
    worker.agree(0, topic="end")
    carrier.refresh(worker)
    worker.stop()
    return kept(model)


@pytest.mark.parametrize("workers", [1, 2])
def test_heads_that_some_batches_do_not_train(workers: int) -> None:
    # The second worker has other tasks: what one of them trains is trained.
    batches = [[TASKS[at - index] for index in range(workers)] for at in range(len(TASKS))]
    models = [Heads() for _ in range(workers)]  # threads would share torch's generator
    with team(2, workers) as here:
        found = together(
            *(
                lambda i=i, model=model: work(here, model, i, batches)
                for i, model in enumerate(models)
            )
        )
    for each in found:
        torch.testing.assert_close(each, plainly(batches), rtol=1e-5, atol=1e-6)


def test_batches_that_make_one_push_are_their_mean() -> None:
    options = CarrierOptions(merge=2, split=SPLIT.split)
    with team(2) as here:
        model, worker = Heads(), here.worker()
        carrier = carried(model, worker, HalfAsyncCarrier, carrier_options=options, **RULE)
        for x, tasks in zip(X, TASKS, strict=True):
            update(model, carrier, x, tasks)
        carrier.flush()
        worker.stop()
    expected = Heads()
    optimizer = torch.optim.AdamW(expected.parameters(), lr=0.03, weight_decay=0.2)
    for at in range(0, len(TASKS), 2):
        losses = [expected.loss(X[i], TASKS[i]) for i in (at, at + 1)]
        (sum(losses, torch.zeros(())) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(kept(model), kept(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("half", [1, 4])
def test_a_save_goes_on_with_other_servers(tmp_path: Path, half: int) -> None:
    def run(servers: int, begin: int, end: int) -> list[torch.Tensor]:
        with team(servers) as here:
            model, worker = Heads(), here.worker()
            carrier = carried(model, worker, carrier_options=SPLIT, **RULE)
            if begin:
                worker.client.call_all({"method": "load", "folder": str(tmp_path)})
                carrier.refresh(worker, 0)
            for at in range(begin, end):
                update(model, carrier, X[at], TASKS[at])
            if not begin:
                save(worker, tmp_path, delta=False)
            worker.stop()
        return kept(model)

    run(2, 0, half)
    after = run(3, half, len(TASKS))
    torch.testing.assert_close(after, plainly([[t] for t in TASKS]), rtol=1e-5, atol=1e-6)


ME = Claim(0, 1)
FORM = DenseSpec(optimizer="Adam", options={"lr": 0.05}, **SPEC).to_plain()


def server(folder: Path | None = None) -> RequestHandler:
    return RequestHandler(Membership(1, silence=100.0), server=0, servers=1, folder=folder)


def opened(handler: RequestHandler) -> LoggedDenseTable:
    handler.call(ME, {"method": "create", "kind": "dense", "spec": FORM})
    return handler.dense(Frame(Op.READ, 0))


def change(table: LoggedDenseTable, seq: int, values: Any, present: Any = None) -> None:
    flag = Flag.INITIAL if seq == 1 else Flag.NONE
    parts = [values] if present is None else [values, present]
    body = b"".join(part.tobytes() for part in parts)
    width = 0 if present is None else len(present)
    frame = Frame(Op.WRITE, 0, flag, seq, len(values), width, rate=0.05, body=len(body))
    table.change(ME, frame, memoryview(body))


def test_what_was_logged_is_repeated_with_it(tmp_path: Path) -> None:
    undisturbed, logged = opened(server()), opened(server(tmp_path))
    for table in (undisturbed, logged):
        change(table, 1, BEGIN.numpy())
        for seq, (present, flat) in enumerate(zip(PRESENT, gradients(), strict=True), 2):
            if seq == 4:
                flat[1] = np.nan  # left out; the marks of the others stay
            change(table, seq, flat, marks(present))
    assert logged.not_finite.count == 1
    assert logged.journal is not None
    logged.journal.close()
    back = server(tmp_path).dense(Frame(Op.READ, 0))
    for key, array in undisturbed.table.arrays().items():
        assert (back.table.arrays()[key] == array).all(), key


def test_marks_for_other_blocks_are_refused() -> None:
    table = opened(server())
    with pytest.raises(BadFrameError, match="3 blocks of table 'd', which has 5"):
        change(table, 2, BEGIN.numpy(), np.array([True, False, True]))


def test_the_pooler_of_a_bert_that_nothing_asks_for() -> None:
    from tests.libraries import transformers

    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )

    def trained(here: Team | None) -> dict[str, torch.Tensor]:
        torch.manual_seed(7)
        model = transformers.BertModel(config)
        ids = torch.randint(0, 40, (6, 5), generator=torch.Generator().manual_seed(3))
        worker = None if here is None else here.worker()
        rule: dict[str, Any] = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.3}
        optimizer: Any = torch.optim.SGD(model.parameters(), **rule)
        if worker is not None:
            optimizer = carried(model, worker, **rule).optimizer
        for row in ids:
            model(row[None]).last_hidden_state[..., 0].pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        if worker is not None:
            worker.stop()
        return {name: p.detach() for name, p in model.named_parameters()}

    with team(2) as here:
        found = trained(here)
    torch.testing.assert_close(found, trained(None), rtol=1e-4, atol=1e-5)
