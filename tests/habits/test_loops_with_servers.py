"""Scripts for one process, over tables on servers: they do what they did before, or say why not."""

import copy
import logging
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

import fleetx as fleet
from fleetx import roles
from fleetx.api import servers
from fleetx.nn import Normal, SparseEmbedding
from fleetx.ps.worker.carrier_async import AsyncCarrier
from tests.ps.team import TOKEN, Team, team

IDS, WIDTH, STEPS = 12, 4, 4
TABLES = ("user", "item")


class Factors(nn.Module):
    """Users and items, as embeddings of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.user: nn.Module = nn.Embedding(IDS, WIDTH)
        self.item: nn.Module = nn.Embedding(IDS, WIDTH)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        scores: Tensor = self.head(self.user(users) * self.item(items))
        return scores.squeeze(-1)


class Shared(Factors):
    """Both are rows of one table."""

    def __init__(self) -> None:
        super().__init__()
        self.item.weight = self.user.weight


def moved_to_servers(model: Factors) -> Factors:
    for name in TABLES:
        table = "user" if isinstance(model, Shared) else name
        setattr(model, name, SparseEmbedding(WIDTH, name=table, initializer=Normal(0.5)))
    return model


Trained = tuple[Factors, Any]


@contextmanager
def job(
    monkeypatch: pytest.MonkeyPatch, servers: int = 2, **flags: dict[str, Any]
) -> Iterator[Team]:
    """This process as the only worker."""
    monkeypatch.setenv("FLEETX_PS_TOKEN", TOKEN.decode())
    strategy = fleet.DistributedStrategy()
    for name, configs in flags.items():
        setattr(strategy, name, True)
        setattr(strategy, f"{name}_configs", configs)
    with team(servers) as here:
        maker = fleet.UserDefinedRoleMaker(
            current_id=0, role=fleet.Role.WORKER, worker_num=1, server_endpoints=here.endpoints
        )
        fleet.init(maker, strategy=strategy)
        try:
            yield here
        finally:
            fleet.stop_worker()
            roles.stop()


def trained(model: Factors | None = None, count: int = 1) -> Trained:
    """A model of this job, after so many batches."""
    torch.manual_seed(0)
    made = fleet.distributed_model(moved_to_servers(Factors()) if model is None else model)
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(made.parameters(), lr=0.5))
    fleet.init_worker()
    for batch in [*batches()][:count]:
        optimizer.minimize(loss_of(made, *batch))
    return made, optimizer


def batches() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    for _ in range(STEPS):
        users, items = torch.randint(0, IDS, (2, 8), generator=generator)
        yield users, items, torch.rand(8, generator=generator)


def values(model: Factors) -> dict[str, Tensor]:
    """All parameters, and the rows of all ids that the plain model has."""
    found = {name: p.detach().clone() for name, p in model.head.named_parameters()}
    with torch.no_grad():
        model.eval()
        found |= {name: model.get_submodule(name)(torch.arange(IDS)) for name in TABLES}
        model.train()
    return found


def loss_of(model: Factors, users: Tensor, items: Tensor, wanted: Tensor) -> Tensor:
    return ((model(users, items) - wanted) ** 2).mean()


Loop = Callable[[Factors, Any], None]


def norm_limited(model: Factors, optimizer: Any) -> None:
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model, *batch).backward()
        clip_grad_norm_(model.parameters(), 0.02)
        optimizer.step()


def values_limited(model: Factors, optimizer: Any) -> None:
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model, *batch).backward()
        clip_grad_value_(model.parameters(), 0.003)
        optimizer.step()


def changed_by_hand(model: Factors, optimizer: Any) -> None:
    for batch in batches():
        loss_of(model, *batch).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad / 2
        optimizer.step()
        optimizer.zero_grad()


def thrown_away(model: Factors, optimizer: Any) -> None:
    """A step is left out, as scripts do where a loss is not finite."""
    for number, batch in enumerate(batches()):
        loss_of(model, *batch).backward()
        if number != 1:
            optimizer.step()
        (model if number == 1 else optimizer).zero_grad()


def differentiated_twice(model: Factors, optimizer: Any) -> None:
    """Tasks one by one, with a look at the gradients of the first."""
    for users, items, wanted in batches():
        optimizer.zero_grad()
        scores = model(users, items)
        (scores - wanted).square().mean().backward(retain_graph=True)
        clip_grad_norm_(model.parameters(), 0.02)
        scores.abs().mean().backward()
        optimizer.step()


def added_up(model: Factors, optimizer: Any) -> None:
    """Two batches make an update, whose gradients are limited."""
    for number, batch in enumerate(batches()):
        loss_of(model, *batch).backward()
        if number % 2:
            clip_grad_norm_(model.parameters(), 0.02)
            optimizer.step()
            optimizer.zero_grad()


def halved_by_hooks(model: Factors, optimizer: Any) -> None:
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient / 2)
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model, *batch).backward()
        optimizer.step()


def limited_by_hooks(model: Factors, optimizer: Any) -> None:
    """Each parameter by itself, while the backward goes on; two backwards make an update."""

    def limit(parameter: Tensor) -> None:
        clip_grad_norm_([parameter], 0.01)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(limit)
    for number, batch in enumerate(batches()):
        loss_of(model, *batch).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


LOOPS = [
    *(norm_limited, values_limited, changed_by_hand, thrown_away, differentiated_twice, added_up),
    *(halved_by_hooks, limited_by_hooks),
]


@pytest.mark.parametrize("made", [Factors, Shared])
@pytest.mark.parametrize("loop", LOOPS)
def test_gradients_of_rows_are_where_loops_of_torch_look_for_them(
    loop: Loop, made: type[Factors], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    plain = made()
    served = moved_to_servers(copy.deepcopy(plain))
    with job(monkeypatch):
        served = fleet.distributed_model(served)
        optimizer = fleet.distributed_optimizer(torch.optim.SGD(served.parameters(), lr=0.5))
        fleet.init_worker()
        first = values(served)
        with torch.no_grad():
            for name in TABLES:
                plain.get_parameter(f"{name}.weight").copy_(first[name])
        loop(served, optimizer)
        found = values(served)
    loop(plain, torch.optim.SGD(plain.parameters(), lr=0.5))
    wanted = values(plain)
    for name in wanted:
        assert not torch.equal(wanted[name], first[name])
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-5, atol=1e-7)


def test_a_penalty_over_parameters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with job(monkeypatch):
        model, _ = trained()
        loss = loss_of(model, *next(batches()))
        loss = loss + 0.01 * sum(p.square().sum() for p in model.parameters())
        with pytest.raises(RuntimeError, match=r"'(user|item)' itself.*not be penalised.*anchor"):
            loss.backward()


def test_a_save_in_the_middle_of_an_update_has_the_gradients_of_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where other servers go on with it."""
    merge = {"k_steps": 2, "avg": False}

    def run(saved: Any, servers: int, share: slice) -> tuple[Any, dict[str, Tensor]]:
        with job(monkeypatch, servers, gradient_merge=merge):
            model, optimizer = trained(count=0)
            if saved is not None:
                optimizer.load_state_dict(saved)
            for batch in [*batches()][share]:
                optimizer.minimize(loss_of(model, *batch))
            return copy.deepcopy(optimizer.state_dict()), values(model)

    _, wanted = run(None, 2, slice(2))
    begun, first = run(None, 2, slice(1))
    _, found = run(begun, 3, slice(1, 2))
    for name in wanted:
        assert not torch.equal(first[name], wanted[name])
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-5, atol=1e-7)


def test_weights_of_earlier_are_brought_back_by_the_servers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Early stopping would mix dense parameters of then with rows of now."""
    with job(monkeypatch):
        model, optimizer = trained()
        with caplog.at_level(logging.WARNING):
            best = copy.deepcopy(model.state_dict())
        assert "holds no rows: those of 2 tables (user, …) are on the servers" in caplog.text
        fleet.save_persistables(str(tmp_path))
        wanted = values(model)
        optimizer.minimize(loss_of(model, *next(batches())))
        with pytest.raises(RuntimeError, match=r"holds no rows.*'user'.*load_persistables"):
            model.load_state_dict(best)
        fleet.load_persistables(str(tmp_path))
        torch.testing.assert_close(values(model), wanted)
    model.load_state_dict(best)  # nobody brings others any more


def test_a_load_says_which_tables_are_not_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a layer that has another name now: its rows would be those of no save."""
    with job(monkeypatch):
        trained()
        fleet.save_persistables(str(tmp_path))
        fleet.load_persistables(str(tmp_path))
    assert "holds nothing" not in caplog.text
    with job(monkeypatch):
        model = moved_to_servers(Factors())
        model.user = SparseEmbedding(WIDTH, name="reader", initializer=Normal(0.5))
        trained(model)
        fleet.load_persistables(str(tmp_path))
        words = "holds nothing of reader, which stays as it is .*; it holds user, which no model"
        assert re.search(words, caplog.text)
        caplog.clear()
        fleet.load_persistables(str(tmp_path), tables=["item"])
    assert "holds nothing" not in caplog.text


MODES: list[dict[str, Any] | None] = [None, {"k_steps": 0}, {"k_steps": 0, "half_async": True}]


def in_mode(mode: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    return {} if mode is None else {"a_sync": mode}


def clamped(weight: Tensor) -> None:
    with torch.no_grad():
        weight.clamp_(-0.01, 0.01)


def made_anew(weight: Tensor) -> None:
    nn.init.ones_(weight)


def copied_to(weight: Tensor) -> None:
    weight.data.copy_(torch.ones_like(weight))


def set_in_part(weight: Tensor) -> None:
    weight.data[0, 1] = 3


def exchanged(weight: Tensor) -> None:
    weight.data = torch.ones_like(weight)


def turned(weight: Tensor) -> None:
    """The same numbers in another order."""
    weight.data.copy_(weight.data.flip(1))


WRITES = [clamped, made_anew, copied_to, set_in_part, exchanged, turned]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("write", WRITES)
def test_what_is_written_to_parameters_between_updates_is_refused(
    write: Callable[[Tensor], None],
    mode: dict[str, Any] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with job(monkeypatch, 2, **in_mode(mode)):
        model, optimizer = trained(count=2)
        fleet.settle_workers()
        loss_of(model, *next(batches())).backward()
        write(model.head.weight)
        with pytest.raises(RuntimeError, match=r"'head.weight' was written to.*load_persistables"):
            optimizer.step()


@pytest.mark.parametrize("mode", MODES)
def test_what_is_written_is_not_left_out_of_saves_nor_written_over_in_silence(
    mode: dict[str, Any] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job(monkeypatch, 2, **in_mode(mode)):
        model, _ = trained(count=2)
        fleet.settle_workers()
        fleet.save_persistables(str(tmp_path))
        wanted = values(model)
        copied_to(model.head.weight)
        with pytest.raises(RuntimeError, match=r"'head.weight' was written to"):
            fleet.save_persistables(str(tmp_path))
        with pytest.raises(RuntimeError, match=r"'head.weight' was written to"):
            fleet.settle_workers()
        fleet.load_persistables(str(tmp_path))
        torch.testing.assert_close(values(model), wanted)
        copied_to(model.head.weight)
    assert bool((model.head.weight == 1).all())  # the job is over


def test_fresh_parameters_do_not_cover_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """An asynchronous worker takes them over when its next batch begins."""
    with job(monkeypatch, 2, a_sync={"k_steps": 0, "max_unsent": 1}):
        model, _ = trained(count=2)
        (carrier,) = servers.carriers()
        for _ in range(6000):
            if not carrier.undelivered():
                break
            time.sleep(0.01)
        copied_to(model.head.weight)
        with pytest.raises(RuntimeError, match=r"'head.weight' was written to"):
            model(*next(batches())[:2])


def test_a_push_has_the_rate_of_its_update_though_it_is_sent_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scheduler steps right after the update, and another thread sends."""
    stepped, send = threading.Event(), AsyncCarrier._deliver

    def late(carrier: AsyncCarrier, *args: Any) -> None:
        assert stepped.wait(60)
        send(carrier, *args)

    def run(*, late_rate: float | None) -> dict[str, Tensor]:
        with job(monkeypatch, 2, a_sync={"k_steps": 0}):
            model, optimizer = trained(count=1)
            if late_rate is not None:
                for group in optimizer.param_groups:
                    group["lr"] = late_rate
            stepped.set()
            fleet.settle_workers()
            return values(model)

    stepped.set()
    wanted = run(late_rate=None)
    stepped.clear()
    monkeypatch.setattr(AsyncCarrier, "_deliver", late)
    found = run(late_rate=0.0)
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=0)


@pytest.mark.parametrize("mode", [*MODES, {"k_steps": 1}])
def test_rates_are_in_force_after_a_state_of_the_optimizer_was_loaded(
    mode: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading makes groups anew, of which a rate is asked."""
    with job(monkeypatch, 2, **in_mode(mode)):
        model, optimizer = trained(count=1)
        fleet.settle_workers()
        before = values(model)
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        for batch in batches():
            optimizer.minimize(loss_of(model, *batch))
        fleet.settle_workers()
        torch.testing.assert_close(values(model), before, rtol=0, atol=0)


def test_copies_go_on_with_the_state_of_the_optimizer_that_was_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def moved(keep: float) -> Tensor:
        """By an update without gradients, after the momentum became this share of itself."""
        torch.manual_seed(0)
        with job(monkeypatch, 2, a_sync={"k_steps": 1}):
            model = fleet.distributed_model(moved_to_servers(Factors()))
            tables = [model.get_parameter(f"{name}.anchor") for name in TABLES]
            head = [*model.head.parameters()]
            groups: list[dict[str, Any]] = [{"params": tables}, {"params": head, "momentum": 0.9}]
            given = torch.optim.SGD(groups, lr=0.5)
            optimizer = fleet.distributed_optimizer(given)
            fleet.init_worker()
            optimizer.minimize(loss_of(model, *next(batches())))
            state = copy.deepcopy(optimizer.state_dict())
            for kept in state["state"].values():
                kept["momentum_buffer"] *= keep
            optimizer.load_state_dict(state)
            before = model.head.bias.item()
            optimizer.minimize(0 * loss_of(model, *next(batches())))
            return torch.tensor(model.head.bias.item() - before)

    whole = moved(1.0)
    assert whole != 0
    torch.testing.assert_close(moved(0.5), whole / 2)


def test_batches_that_are_held_have_the_rate_of_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(*, late_rate: float | None) -> dict[str, Tensor]:
        held = {"k_steps": 0, "half_async": True, "max_merge_var_num": 4}
        with job(monkeypatch, 2, a_sync=held):
            model, optimizer = trained(count=2)
            if late_rate is not None:
                for group in optimizer.param_groups:
                    group["lr"] = late_rate
            fleet.settle_workers()
            return values(model)

    torch.testing.assert_close(run(late_rate=0.0), run(late_rate=None), rtol=0, atol=0)


@pytest.mark.parametrize("mode", MODES)
def test_weights_that_are_lent_for_an_evaluation_may_be_given_back(
    mode: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As scripts do that evaluate an average."""

    def run(*, lend: bool) -> dict[str, Tensor]:
        with job(monkeypatch, 2, **in_mode(mode)):
            model, optimizer = trained(count=1)
            for batch in [*batches()][1:]:
                fleet.settle_workers()
                if lend:
                    kept = model.head.weight.detach().clone()
                    copied_to(model.head.weight)
                    assert not torch.equal(model.head.weight, kept)
                    model.head.weight.data.copy_(kept)
                optimizer.minimize(loss_of(model, *batch))
            fleet.settle_workers()
            return values(model)

    torch.testing.assert_close(run(lend=True), run(lend=False), rtol=0, atol=0)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_a_model_of_a_running_job_is_not_copied(
    copied: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with job(monkeypatch):
        model, _ = trained()
        with pytest.raises(TypeError, match=r"the rows are not in it.*save_inference_model"):
            copied(model)


def test_a_state_has_no_gradients_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with job(monkeypatch):
        model, optimizer = trained()
        loss_of(model, *next(batches())).backward()
        shown = [p.shape for p in model.user.parameters()]
        states = [model.state_dict()]
        optimizer.zero_grad()
        states.append(model.state_dict())
    assert shown[0][0] > 0
    assert [state["user.anchor"].shape for state in states] == [(0, WIDTH), (0, WIDTH)]


class Asking(Dataset[Tensor]):
    """Looks rows up where samples are made."""

    def __init__(self, table: nn.Module) -> None:
        self._table = table

    def __len__(self) -> int:
        return 4

    @override
    def __getitem__(self, place: int) -> Tensor:
        rows: Tensor = self._table(torch.tensor([place]))
        return rows.detach()


def test_processes_of_a_loader_do_not_ask_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the worker's connections, on which answers would get mixed up."""
    with job(monkeypatch):
        model, optimizer = trained()
        loader = DataLoader(Asking(model.user), num_workers=1, multiprocessing_context="fork")
        with pytest.raises(RuntimeError, match=r"forked from the worker.*in the training loop"):
            list(loader)
        optimizer.minimize(loss_of(model, *next(batches())))


def test_names_of_embeddings_that_tables_lack_are_explained() -> None:
    table = SparseEmbedding(WIDTH, name="words")
    assert table.embedding_dim == WIDTH
    for name, words in {"weight": "arange", "num_embeddings": "no size"}.items():
        assert not hasattr(table, name)
        with pytest.raises(AttributeError, match=f"no attribute '{name}'.*{words}"):
            getattr(table, name)
    with pytest.raises(TypeError, match="as_tensor"):
        table([1, 2])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_rows_have_the_format_of_the_model(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(model: Factors, optimizer: Any) -> None:
        for users, items, wanted in batches():
            loss_of(model, users, items, wanted.to(dtype)).backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    torch.manual_seed(0)
    plain = Factors()
    with job(monkeypatch):
        served, optimizer = trained(moved_to_servers(copy.deepcopy(plain)).to(dtype), 0)
        with torch.no_grad():
            for name in TABLES:
                plain.get_parameter(f"{name}.weight").copy_(values(served)[name])
        train(served, optimizer)
        found = values(served)
    plain = plain.to(dtype)
    train(plain, torch.optim.SGD(plain.parameters(), lr=0.5))
    wanted = values(plain)
    exact = 1e-5 if dtype == torch.float64 else 0.03
    for name in wanted:
        assert found[name].dtype == dtype
        torch.testing.assert_close(found[name], wanted[name], rtol=exact, atol=exact)
