"""The ways in which workers exchange: synchronous, asynchronous, half-asynchronous, geo."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fleetx.nn import CountFilterEntry, ShowClickEntry, SparseEmbedding
from fleetx.ps.tables import kernels
from fleetx.ps.tables.rules import SGD, Adam
from fleetx.ps.tables.sparse_spec import Pace, SparseSpec
from fleetx.ps.wire.errors import PeerLostError
from fleetx.ps.wire.frames import Frame, Op
from fleetx.ps.worker.carrier import Carrier
from fleetx.ps.worker.carrier_async import AsyncCarrier, HalfAsyncCarrier
from fleetx.ps.worker.carrier_geo import GeoCarrier, local_optimizer
from fleetx.ps.worker.carrier_options import CarrierOptions
from fleetx.ps.worker.parameter_split import ParameterSplit
from tests.ps.team import Team, carried, push, rows, table, team, together, train

BATCH, STEPS = 6, 8
OPTIMIZERS: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.2}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    # Their usual eps makes large steps of gradients that are nearly zero and mostly rounding: sums
    # of a batch and of its halves differ there by half a percent, in plain torch as well.
    (torch.optim.Adagrad, {"lr": 0.1, "eps": 1e-4}),
    (torch.optim.Adam, {"lr": 0.02, "eps": 1e-4}),
]


class Net(nn.Module):
    def __init__(self, embedding: nn.Module | None = None) -> None:
        super().__init__()
        self.words: Any = embedding or SparseEmbedding(4, name="words")
        self.body = nn.Linear(12, 64)
        self.head = nn.Linear(64, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(self.words(ids).flatten(1))))


def data(workers: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(0, 40, (STEPS, workers, BATCH, 3), generator=generator)
    return ids, torch.randn(STEPS, workers, BATCH, generator=generator)


_SEEDING = threading.RLock()


def net(rule: SGD | None = None) -> Net:
    torch.manual_seed(0)
    return Net(SparseEmbedding(4, name="words", rule=rule))


def run(  # noqa: PLR0917
    here: Team,
    index: int,
    kind: type[Carrier],
    step: Callable[[Carrier, nn.Module], None],
    chosen: CarrierOptions | None = None,
    optimizer: Any = torch.optim.SGD,
    **options: Any,
) -> list[torch.Tensor]:
    """One worker; returns its dense parameters and the rows of all ids."""
    # Rows have no momentum and no decay.
    rule = SGD(options["lr"]) if "momentum" in options else None
    with _SEEDING:
        model = net(rule)
        if index:
            model.body, model.head = nn.Linear(12, 64), nn.Linear(64, 1)  # only the first's count
    worker = here.worker(index)
    carrier = carried(model, worker, kind, optimizer=optimizer, carrier_options=chosen, **options)
    try:
        step(carrier, model)
        carrier.flush()
        worker.agree(0, topic="end")
        carrier.refresh(worker)
        found = [p.detach().clone() for p in model.parameters() if p.numel()]
        model.eval()
        found.append(model.words(torch.arange(40)).detach().clone())
    finally:
        worker.stop()
    return found


@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS)
@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 2), (3, 2)])
def test_k_workers_are_one_process_on_k_times_the_batch(
    workers: int, servers: int, optimizer: Any, options: dict[str, Any]
) -> None:
    ids, targets = data(workers)

    def steps(index: int) -> Callable[[Carrier, nn.Module], None]:
        def go(carrier: Carrier, model: nn.Module) -> None:
            for step in range(STEPS):
                train(model, carrier, ids[step, index], targets[step, index])

        return go

    chosen = CarrierOptions(split=ParameterSplit(min_block_size=32))
    with team(servers, workers) as here:
        found = together(
            *(
                lambda i=i: run(here, i, Carrier, steps(i), chosen, optimizer, **options)
                for i in range(workers)
            )
        )
    expected = alone(ids.flatten(1, 2), targets.flatten(1), optimizer, options)
    for one in found:
        for ours, theirs in zip(one, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def alone(ids: Any, targets: Any, optimizer: Any, options: Any) -> list[torch.Tensor]:
    """Plain torch on the whole batches, with the rows in an ordinary embedding."""
    with team() as here:
        probe = net()
        worker = here.worker()
        carried(probe, worker)
        probe.eval()
        rows = probe.words(torch.arange(40)).detach()
        worker.stop()
    model = net()
    model.words = nn.Embedding(40, 4)
    model.words.weight.data.copy_(rows)
    sparse = {k: v for k, v in options.items() if k not in ("momentum", "weight_decay")}
    dense = [p for name, p in model.named_parameters() if not name.startswith("words")]
    updates = [optimizer(dense, **options), _PerRow(model.words.weight, optimizer, sparse)]
    for inputs, wanted in zip(ids, targets, strict=True):
        loss = ((model(inputs).squeeze(-1) - wanted) ** 2).mean()
        loss.backward()
        for each in updates:
            each.step()
            each.zero_grad()
    return [*(p.detach() for p in dense), model.words.weight.detach()]


class _PerRow:
    """An optimizer for each row, which only moves when its row was used."""

    def __init__(self, weight: Any, optimizer: Any, options: Any) -> None:
        self.weight = weight
        self.rows = [nn.Parameter(row.clone()) for row in weight.detach()]
        self.each = [optimizer([row], **options) for row in self.rows]

    def step(self) -> None:
        for index, (row, rule) in enumerate(zip(self.rows, self.each, strict=True)):
            if self.weight.grad[index].abs().sum() > 0:
                row.grad = self.weight.grad[index].clone()
                rule.step()
                self.weight.data[index] = row.data

    def zero_grad(self) -> None:
        self.weight.grad = None


@pytest.mark.parametrize("kind", [AsyncCarrier, HalfAsyncCarrier, GeoCarrier])
def test_one_worker_that_does_not_wait_learns_what_plain_torch_learns(kind: Any) -> None:
    """Alone and without delay, every way of exchanging is the same as none."""
    ids, targets = data(1)

    def go(carrier: Carrier, model: nn.Module) -> None:
        for step in range(STEPS):
            train(model, carrier, ids[step, 0], targets[step, 0])
            if kind is AsyncCarrier:
                carrier.flush()

    with team(2) as here:
        found = run(here, 0, kind, go, CarrierOptions(every=2), torch.optim.Adagrad, lr=0.1)
    expected = alone(ids[:, 0], targets[:, 0], torch.optim.Adagrad, {"lr": 0.1})
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_half_async_averages_batches_into_one_push() -> None:
    ids, targets = data(1)

    def go(carrier: Carrier, model: nn.Module) -> None:
        for step in range(4):
            train(model, carrier, ids[step, 0], targets[step, 0])

    with team() as here:
        found = run(here, 0, HalfAsyncCarrier, go, CarrierOptions(merge=2), lr=0.2)
        report = here.handlers[0].call(None, {"method": "describe"})  # type: ignore[arg-type]
        assert report["tables"]["words"]["updates"] == 2
    both = ids[:4, 0].reshape(2, 2 * BATCH, 3), targets[:4, 0].reshape(2, 2 * BATCH)
    expected = alone(*both, torch.optim.SGD, {"lr": 0.2})
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [AsyncCarrier, HalfAsyncCarrier, GeoCarrier])
def test_two_workers_that_do_not_wait_learn(kind: Any) -> None:
    ids, _ = data(2)
    targets = (ids % 2).float().mean(-1)

    def loss(model: nn.Module) -> float:
        model.eval()
        with torch.no_grad():
            found = ((model(ids.flatten(0, 2)).squeeze(-1) - targets.flatten()) ** 2).mean().item()
        model.train()
        return found

    def steps(index: int) -> Callable[[Carrier, nn.Module], None]:
        def go(carrier: Carrier, model: nn.Module) -> None:
            carrier.worker.rest()
            before = loss(model)
            carrier.worker.rest()
            for s in range(12 * STEPS):
                train(model, carrier, ids[s % STEPS, index], targets[s % STEPS, index])
            carrier.flush()
            carrier.worker.rest()  # whoever was faster
            carrier.catch_up()
            assert loss(model) < 0.5 * before

        return go

    with team(2, 2) as here:
        together(
            *(
                lambda i=i: run(
                    here, i, kind, steps(i), CarrierOptions(every=3), torch.optim.Adagrad, lr=0.05
                )
                for i in range(2)
            )
        )


@pytest.mark.parametrize("bound", [-1, 0, 2])
def test_staleness_is_measured_and_its_bound_is_held(bound: int) -> None:
    """The second worker begins when the first is as far ahead as it may be."""
    ids, targets = data(2)
    ahead, expected = threading.Event(), bound if bound >= 0 else STEPS - 1

    def steps(index: int) -> Callable[[Carrier, nn.Module], None]:
        def go(carrier: Carrier, model: nn.Module) -> None:
            if index == 1:
                assert ahead.wait(100)
            for step in range(STEPS):
                train(model, carrier, ids[step, index], targets[step, index])
                if step == expected:
                    ahead.set()

        return go

    chosen = CarrierOptions(bound=bound if bound >= 0 else 1000)
    with team(1, 2) as here:
        together(
            *(lambda i=i: run(here, i, AsyncCarrier, steps(i), chosen, lr=0.1) for i in (0, 1))
        )
        lead = here.handlers[0].barriers.largest_lead
        report = here.handlers[0].call(None, {"method": "describe"})["tables"]["words"]  # type: ignore[arg-type]
    assert lead == expected
    assert report["updates"] == 2 * STEPS


def test_a_worker_waits_for_its_own_pushes() -> None:
    """Servers that do not answer stop it after a few batches, not after a queue full of them."""
    ids, targets = data(1)
    held, under_way = threading.Event(), []

    def go(carrier: Carrier, model: nn.Module) -> None:
        assert isinstance(carrier, AsyncCarrier)
        deliver = carrier._deliver

        def slow(*args: Any) -> None:
            assert held.wait(100)
            deliver(*args)

        def watched() -> None:
            under_way.append(carrier.undelivered())
            if len(under_way) == 3:
                threading.Timer(0.2, held.set).start()

        carrier._deliver = slow  # type: ignore[assignment, method-assign]
        for step in range(STEPS):
            carrier._keep_pace()
            watched()
            train(model, carrier, ids[step, 0], targets[step, 0])

    with team() as here:
        run(here, 0, AsyncCarrier, go, CarrierOptions(unsent=2), lr=0.1)
    assert under_way[:3] == [0, 1, 2]
    assert max(under_way) == 2


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_copies_whose_exchange_is_interrupted_give_nothing_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``except KeyboardInterrupt: fleet.save_persistables(...)`` exchanges again."""
    ids, wanted = torch.tensor([[1, 2, 3]]), torch.ones(1)
    with team(2) as here:
        model, worker = net(), here.worker()
        seldom = CarrierOptions(every=10)
        carrier = carried(model, worker, GeoCarrier, carrier_options=seldom, lr=0.1)
        train(model, carrier, ids, wanted)
        learned = model.head.weight.detach().clone()
        with monkeypatch.context() as patch:
            patch.setattr(worker.client, "read", interrupted)
            with pytest.raises(KeyboardInterrupt):
                carrier.flush()
        carrier.flush()
        carrier.catch_up()
        torch.testing.assert_close(model.head.weight, learned)
        worker.stop(finished=False)


def test_a_worker_waits_for_no_push_that_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, wanted = torch.tensor([[1, 2, 3]]), torch.ones(1)
    with team(2) as here:
        model, worker = net(), here.worker()
        carrier = carried(model, worker, AsyncCarrier, lr=0.1)
        train(model, carrier, ids, wanted)
        for name in ("_put", "rates"):
            with monkeypatch.context() as patch:
                patch.setattr(carrier, name, interrupted)
                with pytest.raises(KeyboardInterrupt):
                    train(model, carrier, ids, wanted)
        carrier.flush()
        assert carrier.undelivered() == 0
        worker.stop(finished=False)


def test_updates_of_others_between_a_pull_and_its_push_are_counted() -> None:
    spec = SparseSpec(name="t", dim=2)
    with team(1, 2) as here:
        slow, fast = here.client(0), here.client(1)
        handle = table(slow, spec)
        rows(slow, handle, [1], train=True)
        for _ in range(3):
            push(fast, table(fast, spec), [1], [[1.0, 1.0]])
        push(slow, handle, [1], [[1.0, 1.0]])
        report = slow.call({"method": "describe"})["tables"]["t"]["staleness"]
    assert report == {"largest": 3, "mean": 0.75}


def test_the_learning_rate_falls_with_the_updates_of_all_workers() -> None:
    model = nn.Linear(1, 1, bias=False)
    with team() as here:
        worker = here.worker()
        chosen = CarrierOptions(pace=Pace(decay=0.5, every=2))
        carrier = carried(model, worker, HalfAsyncCarrier, carrier_options=chosen, lr=1.0)
        start, moved = model.weight.item(), []
        for _ in range(6):
            model.weight.grad = torch.ones(1, 1)
            carrier.optimizer.step()
            moved.append(start - model.weight.item())
            start = model.weight.item()
        worker.stop()
    np.testing.assert_allclose(moved, [1, 1, 0.5, 0.5, 0.25, 0.25], rtol=1e-5)


def test_a_scheduler_of_the_worker_is_obeyed() -> None:
    model = nn.Linear(1, 1, bias=False)
    with team() as here:
        worker = here.worker()
        carrier = carried(model, worker, lr=1.0)
        before = model.weight.item()
        for rate in (1.0, 0.25):
            carrier.optimizer.param_groups[0]["lr"] = rate
            model.weight.grad = torch.ones(1, 1)
            carrier.optimizer.step()
        worker.stop()
    assert abs(before - model.weight.item() - 1.25) < 1e-6


def test_a_dead_worker_stops_the_others_by_name_when_they_wait_for_it() -> None:
    ids, targets = data(2)
    model = net()
    with team(1, 2, grace=0.5) as here:
        lost, worker = here.worker(1), here.worker(0)

        def die() -> None:
            carried(Net(), lost, lr=0.1)
            lost.heartbeat.stop()
            lost.client.close()
            lost.ahead.close()

        def go() -> None:
            carrier = carried(model, worker, lr=0.1)
            train(model, carrier, ids[0, 0], targets[0, 0])

        with pytest.raises(PeerLostError, match="worker 1 is dead, and synchronous"):
            together(go, die)
        worker.stop()


def test_servers_end_when_the_last_worker_says_so_and_not_when_one_dies() -> None:
    with team(1, 2, grace=0.5) as here:
        membership = here.handlers[0].membership
        first, second = here.worker(0), here.worker(1)
        first.stop(finished=False)  # it vanishes
        deadline = time.monotonic() + 60
        while membership.dead() != [0] and time.monotonic() < deadline:
            time.sleep(0.05)
        assert membership.dead() == [0]
        assert not membership.ended.wait(0.6)
        second.stop()
        assert membership.ended.wait(60)


def test_a_worker_that_is_done_early_is_not_waited_for() -> None:
    ids, targets = data(2)

    def steps(index: int) -> Callable[[], float]:
        def go() -> float:
            worker = here.worker(index)
            with _SEEDING:
                model = net()
            carrier = carried(model, worker, lr=0.1)
            for step in range(2 if index else 4):
                loss = train(model, carrier, ids[step, index], targets[step, index])
            worker.stop()
            return loss

        return go

    with team(2, 2) as here:
        together(steps(0), steps(1))
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and here.handlers[0].sparse(WORDS).version < 4:
            time.sleep(0.05)
        assert here.handlers[0].sparse(WORDS).version == 4


WORDS = Frame(Op.PULL, table=1)


def test_shares_of_different_length_end_together_and_training_goes_on() -> None:
    """The first worker has four batches, the second seven; after that both have two."""
    ids, targets = data(2)
    ids, targets = torch.cat([ids, 39 - ids]), torch.cat([targets, -targets])
    own = [(0, 1, 2, 3, 7, 8), (0, 1, 2, 3, 4, 5, 6, 7, 8)]

    def steps(index: int) -> Callable[[Carrier, nn.Module], None]:
        def go(carrier: Carrier, model: nn.Module) -> None:
            for step in own[index]:
                if step == 7:
                    carrier.flush()
                    carrier.worker.rest()
                    carrier.catch_up()
                train(model, carrier, ids[step, index], targets[step, index])
            assert carrier.worker.step == 9

        return go

    optimizer, options = OPTIMIZERS[2]
    with team(2, 2) as here:
        found = together(
            *(
                lambda i=i: run(here, i, Carrier, steps(i), None, optimizer, **options)
                for i in range(2)
            )
        )
    both = {step: [i for i in range(2) if step in own[i]] for step in range(9)}
    batches = [ids[step, index].flatten(0, 1) for step, index in both.items()]
    wanted = [targets[step, index].flatten() for step, index in both.items()]
    expected = alone(batches, wanted, optimizer, options)
    for one in found:
        for ours, theirs in zip(one, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [AsyncCarrier, HalfAsyncCarrier, GeoCarrier])
def test_after_a_rest_every_worker_sees_what_all_have_learned(kind: Any) -> None:
    """The second worker only begins when the first rests, which a bound does not hinder."""
    ids, targets = data(2)
    resting = threading.Event()

    def steps(index: int) -> Callable[[Carrier, nn.Module], None]:
        def go(carrier: Carrier, model: nn.Module) -> None:
            if index == 1:
                assert resting.wait(100)
            for step in range(STEPS if index else 2):
                train(model, carrier, ids[step, index], targets[step, index])
            carrier.flush()
            resting.set()
            carrier.worker.rest()
            carrier.catch_up()
            assert carrier.worker.step == STEPS
            seen[index] = [p.detach().clone() for p in model.parameters() if p.numel()]

        return go

    seen: dict[int, list[torch.Tensor]] = {}
    chosen = CarrierOptions(bound=3, every=2)
    with team(2, 2) as here:
        together(*(lambda i=i: run(here, i, kind, steps(i), chosen, lr=0.1) for i in (0, 1)))
    for one, other in zip(seen[0], seen[1], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("early", [True, False], ids=["before the batch", "within the batch"])
def test_prefetched_rows_are_those_of_the_update_before(early: bool) -> None:
    ids, targets = data(1)

    def losses(ahead: bool) -> tuple[list[float], int]:
        with team(2) as here:
            model, worker = net(), here.worker()
            carrier = carried(model, worker, optimizer=torch.optim.Adagrad, lr=0.1)
            pulls: list[int] = []
            client_pulling = worker.client.pulling

            def counted(*args: Any, **kwargs: Any) -> Any:
                pulls.append(1)
                return client_pulling(*args, **kwargs)

            worker.client.pulling = counted  # type: ignore[method-assign]
            found = []
            for step in range(STEPS):
                if ahead and step + 1 < STEPS:
                    carrier.begin()
                    if early:
                        model.words.prefetch(ids[step + 1, 0])
                    loss = ((model(ids[step, 0]).squeeze(-1) - targets[step, 0]) ** 2).mean()
                    if not early:
                        model.words.prefetch(ids[step + 1, 0])
                    loss.backward()
                    carrier.optimizer.step()
                    carrier.clear_gradients()
                    carrier.optimizer.zero_grad()
                    found.append(loss.item())
                else:
                    found.append(train(model, carrier, ids[step, 0], targets[step, 0]))
            worker.stop()
        return found, len(pulls)

    plain, many = losses(False)
    ahead, few = losses(True)
    assert ahead == plain
    assert (many, few) == (STEPS, 1)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("pooling", [None, "sum"])
def test_looked_up_rows_may_be_written_to(servers: int, pooling: str | None) -> None:
    weights = torch.randn(2, 2, 3) if pooling is None else torch.randn(2, 3)
    ids = torch.tensor([[3, 1], [0, 2]])

    def gradients(written: bool) -> torch.Tensor:
        with team(servers) as here:
            worker, layer = here.worker(), SparseEmbedding(3, name="t", pooling=pooling)
            carried(layer, worker, lr=0.1)
            found = layer(ids)
            found = found.mul_(2).add_(1) if written else found * 2 + 1
            (found.square() * weights).sum().backward()
            gathered = layer.take(servers)
            worker.stop()
        order = np.argsort(gathered.batch.ids)
        return torch.from_numpy(gathered.gradients[order])

    torch.testing.assert_close(gradients(True), gradients(False), rtol=0, atol=0)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("order", [[3, 0, 2, 1], [3, 0, 2, 0]], ids=["once each", "one twice"])
def test_gradients_of_ids_that_come_once_are_not_added_up(
    servers: int, order: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    adding = Mock(wraps=kernels.active.sum_rows)
    monkeypatch.setattr(kernels.active, "sum_rows", adding)
    ids, weights = torch.tensor(order).reshape(2, 2), torch.randn(2, 2, 4)
    with team(servers) as here:
        worker, model = here.worker(), net()
        carried(model, worker, lr=0.1)
        before = model.words(torch.arange(4)).detach()
        (model.words(ids) * weights).sum().backward()
        gathered = model.words.take(servers)
        assert gathered.batch is worker.sort_ids(ids.flatten().numpy())
        gradients = torch.from_numpy(gathered.gradients)
        found = {int(i): g for i, g in zip(gathered.batch.ids, gradients, strict=True)}
        worker.stop()
    table = before.clone().requires_grad_()
    (F.embedding(ids, table) * weights).sum().backward()
    assert table.grad is not None
    for i, gradient in found.items():
        torch.testing.assert_close(gradient, table.grad[i])
    assert set(found) == set(order)
    assert adding.call_count == (servers > 1 or len(found) < len(order))


def test_a_tensor_may_be_filled_anew_after_its_rows_were_asked_for() -> None:
    with team(1) as here:
        worker, model = here.worker(), net()
        carried(model, worker, AsyncCarrier, lr=0.1)
        later, other = torch.arange(5), torch.arange(5) + 7
        buffer = later.clone()
        model.words.prefetch(buffer)
        model.words._ahead[-1][-1].result()
        buffer.copy_(other)
        looked_up = model.words(buffer)
        torch.testing.assert_close(looked_up, model.words(other), rtol=0, atol=0)
        assert not torch.equal(looked_up, model.words(later))
        worker.stop()


@pytest.mark.parametrize("merged", [1, 2], ids=["the first batch", "a part of an update"])
def test_a_batch_never_waits_for_the_update_that_it_is_part_of(merged: int) -> None:
    ids, targets = data(1)

    def rows(ahead: bool) -> Any:
        with team(2) as here:
            model, worker = net(), here.worker()
            carrier = carried(model, worker, optimizer=torch.optim.Adagrad, lr=0.1)
            for step in range(0, 4, merged):
                for part in range(step, step + merged):
                    if ahead:
                        model.words.prefetch(ids[part, 0])
                    ((model(ids[part, 0]).squeeze(-1) - targets[part, 0]) ** 2).mean().backward()
                carrier.optimizer.step()
                carrier.clear_gradients()
                carrier.optimizer.zero_grad()
            found = model.words(ids[:4]).detach()
            worker.stop()
        return found

    assert torch.equal(rows(True), rows(False))


def test_rows_that_nobody_asked_for_in_the_end_hold_nobody_up() -> None:
    ids, targets = data(1)
    with team(1) as here:
        model, worker = net(), here.worker()
        carrier = carried(model, worker, optimizer=torch.optim.SGD, lr=0.1)
        train(model, carrier, ids[0, 0], targets[0, 0])
        model.words.prefetch(ids[1, 0])  # waits for an update that never comes
        (*_, coming), *_ = model.words._ahead
        worker.stop(finished=False)
        done, _ = wait([coming], timeout=60)
        assert done
        assert coming.cancelled() or isinstance(coming.exception(), ConnectionError)


def test_bags_padding_shared_tables_and_other_widths() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.user = SparseEmbedding(3, name="ids", padding_idx=0)
            self.bag = SparseEmbedding(3, name="ids", pooling="sum")
            self.wide = SparseEmbedding(7, name="wide", rule=SGD(0.5), pooling="mean")

    with team(2) as here:
        model, worker = Two(), here.worker()
        carrier = carried(model, worker, lr=1.0)
        carrier.begin()
        before = model.wide(torch.tensor([[9]])).detach().clone()
        user = model.user(torch.tensor([[5, 0], [5, 6]]))
        assert (user[0, 1] == 0).all()
        bag = model.bag(torch.tensor([5, 6, 7]), torch.tensor([0, 2, 3]))
        assert bag.shape == (3, 3)
        assert (bag[2] == 0).all()
        wide = model.wide(torch.tensor([[9, 9], [9, 9]]))
        (user.sum() + bag.sum() + wide.sum()).backward()
        carrier.optimizer.step()
        carrier.clear_gradients()
        model.eval()
        now = model.user(torch.tensor([5, 6, 7, 0]))
        first = SparseEmbedding(3, name="ids").options.initializer.rows(np.array([5, 6, 7]), 3, 0)
        # 5 was looked up three times, 6 twice, 7 once, whichever layer asked.
        np.testing.assert_allclose(now[:3], first - [[3.0], [2.0], [1.0]], atol=1e-6)
        assert (now[3] == 0).all()
        np.testing.assert_allclose(model.wide(torch.tensor([[9]])), before - 0.5 * 2, atol=1e-6)
        report = worker.client.call_all({"method": "describe"})
        assert sum(each["tables"]["ids"]["rows"] for each in report) == 3
        worker.stop()


@pytest.mark.parametrize("kind", [Carrier, AsyncCarrier, HalfAsyncCarrier, GeoCarrier])
def test_ids_are_counted_where_an_entry_asks_for_it(kind: Any) -> None:
    model = nn.Sequential(SparseEmbedding(2, name="rare", entry=CountFilterEntry(3)))
    with team(2) as here:
        worker = here.worker()
        carrier = carried(model, worker, kind, carrier_options=CarrierOptions(every=2), lr=1.0)
        for ids in ([1, 1, 2], [1, 1, 2], [1]):
            step(carrier, partial(model, torch.tensor(ids)))
        carrier.flush()
        model.eval()
        assert model(torch.tensor([1])).abs().sum() > 1, "met five times"
        assert model(torch.tensor([2])).abs().sum() == 0, "met twice"
        worker.stop()


@pytest.mark.parametrize("kind", [Carrier, AsyncCarrier, HalfAsyncCarrier, GeoCarrier])
@pytest.mark.parametrize("rule", [SGD(0.5), Adam(0.5)], ids=["sgd", "adam"])
def test_shows_and_clicks_are_counted_and_decide_who_stays(kind: Any, rule: Any) -> None:
    entry = ShowClickEntry(decay=0.5, lowest=0.8)
    model: Any = SparseEmbedding(2, name="seen", entry=entry, rule=rule)
    ids, clicks = torch.tensor([1, 1, 2, 3]), torch.tensor([1.0, 0.0, 0.0, 1.0])
    with team(2) as here:
        worker = here.worker()
        carrier = carried(model, worker, kind, carrier_options=CarrierOptions(every=2), lr=1.0)
        for _ in range(3):
            step(carrier, lambda: model(ids, click=clicks))
        carrier.flush()
        before = rows_of(model)
        held: Any = [handler._tables[0] for handler in here.handlers]
        stats: dict[int, list[float]] = {}
        for logged in held:
            part = logged.table.part(0, 0)
            stats |= dict(zip(part.ids.tolist(), part.stats.tolist(), strict=True))
        assert stats == {1: [6, 3], 2: [3, 0], 3: [3, 3]}
        gone = worker.client.call_all({"method": "shrink", "threshold": 30, "table": None})
        assert sum(each["removed"] for each in gone) == 1, "the one that was never clicked"
        torch.testing.assert_close(rows_of(model)[[0, 2]], before[[0, 2]], rtol=0, atol=0)
        worker.stop()
    assert before.abs().min() > 0.4, "telling of shows moves nothing"


@pytest.mark.parametrize(
    ("counts", "error", "words"),
    [
        (torch.tensor([1.0, float("nan"), 0.0]), ValueError, "'seen' holds NaN, infinity or a neg"),
        (torch.tensor([1.0, -1.0, 0.0]), ValueError, "'seen' holds NaN, infinity or a negative"),
        (torch.ones(2), ValueError, "has 2 numbers for 3 ids.*expand_as"),
        ([1.0, 0.0, 0.0], TypeError, "must be a tensor, got list"),
    ],
)
@pytest.mark.parametrize("name", ["show", "click"])
def test_shows_and_clicks_that_are_none_are_refused(
    name: str, counts: Any, error: type[Exception], words: str
) -> None:
    model = SparseEmbedding(2, name="seen", entry=ShowClickEntry(), rule=SGD(0.1))
    with team(2) as here:
        worker = here.worker()
        carried(model, worker, lr=1.0)
        with pytest.raises(error, match=f"{name}.*{words}"):
            model(torch.tensor([1, 2, 3]), **{name: counts})
        worker.stop()


def rows_of(model: nn.Module) -> torch.Tensor:
    model.eval()
    found: torch.Tensor = model(torch.tensor([1, 2, 3])).detach()
    return found


def step(carrier: Carrier, forward: Callable[[], torch.Tensor]) -> None:
    """An update by a gradient of one for each number."""
    carrier.begin()
    forward().sum().backward()
    carrier.optimizer.step()
    carrier.clear_gradients()


def test_an_embedding_outside_of_a_job_says_what_it_needs() -> None:
    with pytest.raises(RuntimeError, match=r"live on parameter servers.*--server_num"):
        SparseEmbedding(2, name="x")(torch.tensor([1]))
    with pytest.raises(TypeError, match="whole numbers"):
        SparseEmbedding(2, name="x")(torch.tensor([1.0]))
    with pytest.raises(TypeError, match="whole numbers"):
        SparseEmbedding(2, name="x")(torch.tensor([1 + 1j]))
    with pytest.raises(ValueError, match="pooling='max' is not known"):
        SparseEmbedding(2, name="x", pooling="max")


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense gradients", "sparse gradients"])
def test_dense_parameters_of_copies_move_as_torch_moves_them(kind: Any, sparse: bool) -> None:
    if sparse and kind is torch.optim.Adam:
        kind = torch.optim.SparseAdam
    torch.manual_seed(0)
    ours, theirs = nn.Embedding(9, 4, sparse=sparse), nn.Embedding(9, 4, sparse=sparse)
    theirs.load_state_dict(ours.state_dict())
    make: Any = local_optimizer(kind, set())
    one = make(kind(ours.parameters(), lr=0.1).param_groups)
    other = kind(theirs.parameters(), lr=0.1)
    one.deliver = lambda: None
    for _ in range(3):
        for layer, rule in ((ours, one), (theirs, other)):
            layer(torch.tensor([1, 1, 2, 8])).square().sum().backward()
            rule.step()
            rule.zero_grad()
    fused = one.inner.param_groups[0].get("fused")
    assert fused is (None if sparse else True)
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", [Carrier, AsyncCarrier, HalfAsyncCarrier, GeoCarrier])
@pytest.mark.parametrize(
    ("optimizer", "option"),
    [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.SGD, {"weight_decay": 0.1}),
        (torch.optim.SGD, {"maximize": True}),
        (torch.optim.Adagrad, {"lr_decay": 0.1}),
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.AdamW, {"weight_decay": 0.01}),
    ],
)
def test_options_that_rows_do_not_have_are_refused_before_training(
    kind: Any, optimizer: Any, option: dict[str, Any]
) -> None:
    """Unless the tables have a rule of their own."""
    ((name, value),) = option.items()
    nobody: Any = None
    wanted = f"has {name}={value}, which would be left out.*{name}="
    with pytest.raises(ValueError, match=wanted):
        carried(net(), nobody, kind, optimizer=optimizer, join=False, lr=0.1, **option)
    carried(net(SGD(0.1)), nobody, kind, optimizer=optimizer, join=False, lr=0.1, **option)


@pytest.mark.parametrize("kind", [Carrier, AsyncCarrier, HalfAsyncCarrier])
def test_options_that_are_tensors_are_those_numbers(kind: Any) -> None:
    """Servers are told numbers; what a script writes to its tensors later does not reach them."""
    ids, wanted = torch.tensor([[1, 2, 3]]), torch.ones(1)
    heads = []
    for betas in ((0.5, 0.75), (torch.tensor(0.5), torch.tensor(0.75))):
        with team(2) as here:
            model, worker = net(), here.worker()
            carrier = carried(
                model, worker, kind, optimizer=torch.optim.Adam, lr=0.1, betas=betas, foreach=False
            )
            train(model, carrier, ids, wanted)
            carrier.flush()
            heads.append(model.head.weight.detach().clone())
            if isinstance(betas[0], torch.Tensor):
                betas[0].fill_(0.9)
                with pytest.raises(ValueError, match=r"betas of group 0 .* was \[0.5, 0.75\] when"):
                    train(model, carrier, ids, wanted)
            worker.stop(finished=False)
    assert torch.equal(*heads)


@pytest.mark.parametrize("optimizer", [torch.optim.RMSprop, torch.optim.Adamax])
def test_optimizers_that_rows_do_not_have_are_refused_before_training(optimizer: Any) -> None:
    nobody: Any = None
    with pytest.raises(ValueError, match=f"is {optimizer.__name__}, and rows .* Adagrad or Adam"):
        carried(net(), nobody, GeoCarrier, optimizer=optimizer, join=False)
    carried(net(SGD(0.1)), nobody, GeoCarrier, optimizer=optimizer, join=False)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"rule": "sgd"}, r"rule='sgd'.*SGD\(...\) or Adagrad\(...\) or Adam"),
        ({"rule": torch.optim.Adam}, r"rule=<class.*SGD\(...\)"),
        ({"initializer": "uniform"}, r"initializer='uniform'.*Uniform\(...\) or Normal"),
        ({"entry": 3}, r"entry=3 .*CountFilterEntry\(...\)"),
        ({"seed": 1.5}, "seed=1.5 .* no whole number"),
        ({"padding_idx": 1.5}, "padding_idx=1.5 .* no whole number"),
        ({"padding_idx": True}, "padding_idx=True .* no whole number"),
        ({"padding_idx": 2**64 - 1}, "no id.*an unsigned one less"),
    ],
)
def test_options_that_would_not_be_in_force_are_refused(option: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SparseEmbedding(2, name="x", **option)


def test_whole_numbers_of_any_kind_are_taken() -> None:
    layer = SparseEmbedding(2, name="x", padding_idx=np.int64(-1), seed=np.int32(3))  # type: ignore[arg-type]
    assert (layer.padding_idx, layer.options.seed) == (-1, 3)


class Shared(nn.Module):
    """Two layers over one table."""

    def __init__(self, rule: SGD | None = None) -> None:
        super().__init__()
        self.one = SparseEmbedding(2, name="ids", rule=rule)
        self.other = SparseEmbedding(2, name="ids", rule=rule)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return (self.one(ids) + self.other(ids)).sum(1)


def in_two_groups(**option: Any) -> type[torch.optim.Optimizer]:
    """Adam whose second parameter has another option."""

    class Adam(torch.optim.Adam):
        def __init__(self, params: Any, **options: Any) -> None:
            one, other = params
            super().__init__([{"params": [one]}, {"params": [other], **option}], **options)

    return Adam


@pytest.mark.parametrize("kind", [Carrier, AsyncCarrier, HalfAsyncCarrier, GeoCarrier])
@pytest.mark.parametrize("option", [{"lr": 0.5}, {"betas": (0.5, 0.9)}, {"eps": 1e-3}])
def test_groups_that_move_one_table_in_two_ways_are_refused(kind: Any, option: Any) -> None:
    """Unless the table has a rule of its own."""
    nobody: Any = None
    optimizer = in_two_groups(**option)
    with pytest.raises(ValueError, match=r"over table 'ids' share.*Adam.* and Adam.*one group"):
        carried(Shared(), nobody, kind, optimizer=optimizer, join=False)
    carried(Shared(SGD(0.1)), nobody, kind, optimizer=optimizer, join=False)


@pytest.mark.parametrize("kind", [Carrier, AsyncCarrier, HalfAsyncCarrier, GeoCarrier])
def test_groups_of_one_table_have_one_rate_all_the_time(kind: Any) -> None:
    with team(2) as here:
        model, worker = Shared(), here.worker()
        carrier = carried(model, worker, kind, optimizer=in_two_groups(), lr=0.1)
        ids, wanted = torch.tensor([1, 2]), torch.zeros(2)
        train(model, carrier, ids, wanted)
        carrier.optimizer.param_groups[1]["lr"] = 0.2
        with pytest.raises(ValueError, match=r"'ids' share.*learning rates \[0.1, 0.2\]; put"):
            train(model, carrier, ids, wanted)
        worker.stop(finished=False)


@pytest.mark.parametrize("name", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_that_would_not_be_called_are_refused(name: str) -> None:
    """Those of the first layer over a table see the gradients of all of them."""
    seen: list[torch.Tensor] = []
    ids, wanted = torch.tensor([1, 2]), torch.zeros(2)
    with team(2) as here:
        model, worker = Shared(), here.worker()
        carrier = carried(model, worker, lr=0.1)
        for layer in (model.one, model.other):
            getattr(layer.anchor, name)(seen.append)
        train(model, carrier, ids, wanted)
        assert len(seen) == 1
        getattr(model.other.anchor, name)(seen.append)
        with pytest.raises(RuntimeError, match=r"layer over table 'ids'.*Register the hook"):
            train(model, carrier, ids, wanted)
        worker.stop(finished=False)


@pytest.mark.parametrize("frozen", [False, True])
def test_models_that_move_one_table_in_two_ways_are_refused(frozen: bool) -> None:
    """The rates may differ, for each push brings its own."""
    with team(2) as here:
        worker, models = here.worker(), [net(), net(), net()]
        models[0].words.requires_grad_(not frozen)
        carried(models[0], worker, lr=0.1)
        if frozen:
            models[0](torch.tensor([[1, 2, 3]]))
        carried(models[1], worker, lr=0.2)
        with pytest.raises(ValueError, match=r"table 'words' move by SGD.*asks for Adam.*one rule"):
            carried(models[2], worker, optimizer=torch.optim.Adam, lr=0.1)
        worker.stop(finished=False)


def test_copies_of_models_move_as_each_of_them_says() -> None:
    with team(2) as here:
        worker, models = here.worker(), [Shared(), Shared()]
        kinds = [torch.optim.SGD, torch.optim.Adam]
        for number, (model, rule) in enumerate(zip(models, kinds, strict=True)):
            options = CarrierOptions(every=1)
            carrier = carried(
                model, worker, GeoCarrier, optimizer=rule, carrier_options=options, lr=0.1
            )
            before = model.one(torch.tensor([number])).detach().clone()
            step(carrier, lambda: 5 * model.one(torch.tensor([number])))  # noqa: B023
            carrier.flush()
            model.eval()
            moved = model.one(torch.tensor([number])) - before
            torch.testing.assert_close(moved, torch.full((1, 2), [-0.5, -0.1][number]))
        worker.stop()


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("flat", [False, True])
def test_bags_with_padding_are_those_of_torch(pooling: str, *, flat: bool) -> None:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = SparseEmbedding(
                3, name="bags", padding_idx=0, pooling=pooling, rule=SGD(1.0), seed=3
            )

    ids = torch.tensor([[5, 0, 6], [0, 0, 0], [7, 7, 5]])
    given = (ids.flatten(), torch.tensor([0, 3, 6])) if flat else (ids,)
    scale = torch.tensor([[1.0], [2.0], [5.0]])
    with team(2) as here:
        model, worker = Bags(), here.worker()
        first = model.bag.options.initializer.rows(np.arange(8), 3, 3)
        theirs = nn.EmbeddingBag.from_pretrained(
            torch.from_numpy(first), freeze=False, mode=pooling, padding_idx=0
        )
        carrier = carried(model, worker, lr=1.0)
        carrier.begin()
        ours = model.bag(*given)
        torch.testing.assert_close(ours, theirs(*given))
        (ours * scale).sum().backward()
        (theirs(*given) * scale).sum().backward()
        carrier.optimizer.step()
        carrier.clear_gradients()
        model.eval()
        assert theirs.weight.grad is not None
        expected = theirs.weight.detach() - theirs.weight.grad
        everything = torch.arange(1, 8)[:, None]
        torch.testing.assert_close(model.bag(everything), expected[1:])
        worker.stop()


@pytest.mark.parametrize("padding", [None, 0])
@pytest.mark.parametrize("flat", [False, True])
def test_weighted_rows_of_bags_are_those_of_torch(flat: bool, padding: int | None) -> None:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            options: Any = {"padding_idx": padding, "include_last_offset": True}
            self.bag = SparseEmbedding(
                3, name="bags", pooling="sum", rule=SGD(1.0), seed=3, **options
            )

    ids = torch.tensor([[5, 0, 6], [0, 0, 0], [7, 7, 5]])
    given: Any = (ids.flatten(), torch.tensor([0, 3, 3, 9])) if flat else (ids, None)
    drawn = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    weights = drawn.flatten() if flat else drawn
    scale = torch.tensor([[1.0], [2.0], [5.0]])
    with team(2) as here:
        model, worker = Bags(), here.worker()
        first = torch.from_numpy(model.bag.options.initializer.rows(np.arange(8), 3, 3))
        theirs = nn.EmbeddingBag.from_pretrained(
            first, freeze=False, mode="sum", padding_idx=padding, include_last_offset=True
        )
        carrier = carried(model, worker, lr=1.0)
        carrier.begin()
        found = []
        for bag in (model.bag, theirs):
            learned = weights.clone().requires_grad_()
            output = bag(*given, learned)
            (output * scale).sum().backward()
            found.append((output.detach(), learned.grad))
        torch.testing.assert_close(*found)
        carrier.optimizer.step()
        carrier.clear_gradients()
        model.eval()
        assert theirs.weight.grad is not None
        expected = theirs.weight.detach() - theirs.weight.grad
        torch.testing.assert_close(model.bag(torch.arange(1, 8)[:, None]), expected[1:])
        with pytest.raises(ValueError, match="not one for each id"):
            model.bag(*given, weights[:2])
        with pytest.raises(ValueError, match="offsets that end with 9"):
            model.bag(ids.flatten(), torch.tensor([0, 3, 6]))
        worker.stop()


def test_weights_and_last_offsets_are_about_bags() -> None:
    rows = SparseEmbedding(3, name="rows")
    with pytest.raises(ValueError, match="for sums, and its pooling is None"):
        rows(torch.tensor([1]), None, torch.ones(1))
    means = SparseEmbedding(3, name="means", pooling="mean")
    with pytest.raises(ValueError, match="for sums, and its pooling is 'mean'"):
        means(torch.tensor([[1]]), None, torch.ones(1, 1))
    with pytest.raises(ValueError, match="without pooling there are none"):
        SparseEmbedding(3, name="rows", include_last_offset=True)
