"""The calls around a parameter-server job: before the first batch, without one, and loading."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from typing_extensions import override

import fleetx as fleet
from fleetx import roles
from fleetx.api import servers, session, table_saves
from fleetx.nn import SGD, SparseEmbedding, load_inference_model
from fleetx.ps.worker import table_setup
from fleetx.ps.worker import worker as workers
from fleetx.ps.worker.carrier import Carrier
from fleetx.ps.worker.carrier_async import AsyncCarrier, HalfAsyncCarrier
from fleetx.ps.worker.carrier_geo import GeoCarrier
from fleetx.ps.worker.dense_group import DenseGroup
from fleetx.ps.worker.worker import Worker
from tests.ps.team import TOKEN, Team, carried, team, together, train

MODES: dict[str, dict[str, Any] | None] = {
    "sync": None,
    "async": {"k_steps": 0},
    "half": {"k_steps": 0, "half_async": True},
    "geo": {"k_steps": 2},
}
KINDS = [Carrier, AsyncCarrier, HalfAsyncCarrier, GeoCarrier]
IDS, WANTED = torch.arange(12).reshape(4, 3), torch.ones(4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = SparseEmbedding(4, name="words", pooling="sum")
        self.head = nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(ids)).squeeze(-1)


def made(seed: int = 0) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Net()


def values(model: Net) -> list[torch.Tensor]:
    """What a model computes with: its head and its rows."""
    training = model.training
    model.eval()
    rows = model.words(IDS).detach()
    model.train(training)
    return [model.head.weight.detach().clone(), model.head.bias.detach().clone(), rows]


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in pairs)


@contextmanager
def job(
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    make: Callable[[], Net] = made,
    began_with: Path | None = None,
    rule: Callable[[Net], torch.optim.Optimizer] = lambda model: torch.optim.SGD(
        model.parameters(), lr=0.2
    ),
) -> Iterator[tuple[Net, Callable[[int], None], Team]]:
    """This process as the only worker of servers that know nothing yet, or a save."""
    monkeypatch.setenv("FLEETX_PS_TOKEN", TOKEN.decode())
    strategy = fleet.DistributedStrategy()
    if (configs := MODES[mode]) is not None:
        strategy.a_sync = True
        setattr(strategy, "a_sync_configs", configs)  # noqa: B010  (a plain dict)
    with team(2) as here:
        maker = fleet.UserDefinedRoleMaker(
            current_id=0, role=fleet.Role.WORKER, worker_num=1, server_endpoints=here.endpoints
        )
        for handler in here.handlers:
            handler.preload(began_with, None)
        fleet.init(maker, strategy=strategy)
        try:
            model = fleet.distributed_model(make())
            optimizer = fleet.distributed_optimizer(rule(model))
            fleet.init_worker()

            def steps(count: int) -> None:
                for _ in range(count):
                    optimizer.minimize(((model(IDS) - WANTED) ** 2).mean())

            yield model, steps, here
        finally:
            fleet.stop_worker()
            roles.stop()


@pytest.mark.parametrize("mode", MODES)
def test_saving_and_loading_may_come_before_the_first_batch(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job(monkeypatch, mode) as (model, steps, _):
        fleet.save_persistables(str(tmp_path / "first"))
        begun = values(model)
        steps(6)
        fleet.settle_workers()
        fleet.save_persistables(str(tmp_path / "later"))
        learned = values(model)
    manifest = json.loads((tmp_path / "first" / "manifest.json").read_text())
    assert sorted(manifest["tables"]) == ["dense-0", "words"]
    assert not same(begun, learned)
    with job(monkeypatch, mode) as (model, steps, _):
        fleet.load_persistables(str(tmp_path / "later"))
        assert same(values(model), learned)
        steps(2)
        fleet.settle_workers()
        assert not same(values(model), learned), "training goes on"


class HeadFirst(Net):
    """Computes with its dense parameters before it looks rows up."""

    @override
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        head = torch.cat([self.head.weight[0], self.head.bias])
        return self.words(ids) @ head[:4] + head[4]


@pytest.mark.parametrize("mode", MODES)
def test_a_model_computes_with_a_save_before_it_learns(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what the servers began with, whatever this process would begin with."""
    with job(monkeypatch, mode, HeadFirst) as (model, steps, _), torch.no_grad():
        with torch.enable_grad():
            steps(6)
        fleet.settle_workers()
        fleet.save_persistables(str(tmp_path))
        model.eval()
        learned = model(IDS)
    with job(monkeypatch, mode, HeadFirst, tmp_path) as (model, steps, _), torch.no_grad():
        model.eval()
        torch.testing.assert_close(model(IDS), learned, rtol=1e-5, atol=1e-7)
        model.train()
        with torch.enable_grad():
            steps(2)
        fleet.settle_workers()
        assert (model.eval()(IDS) != learned).all(), "training goes on"


def test_values_that_did_not_arrive_are_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the servers' empty tables would be taken for what training begins with."""
    with job(monkeypatch, "sync") as (model, steps, _):
        offer = DenseGroup.values

        def failing(group: DenseGroup) -> Any:
            monkeypatch.setattr(DenseGroup, "values", offer)
            raise MemoryError("no memory")

        monkeypatch.setattr(DenseGroup, "values", failing)
        first = model.head.weight.detach().clone()
        with pytest.raises(MemoryError):
            steps(1)
        with torch.no_grad():
            model(IDS)
        torch.testing.assert_close(model.head.weight.detach(), first)


@pytest.mark.parametrize("mode", MODES)
def test_what_was_loaded_stays_and_what_was_learned_before_is_gone(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job(monkeypatch, mode) as (model, steps, _):
        steps(4)
        fleet.settle_workers()
        fleet.save_persistables(str(tmp_path))
        saved = values(model)
        steps(5)
        model.words.prefetch(IDS)  # with rows that are not there any more
        fleet.load_persistables(str(tmp_path))
        assert same(values(model), saved)
        # The rows with which training goes on, copies of them among others.
        rows = model.words(IDS).detach()
        torch.testing.assert_close(rows, saved[2], rtol=1e-5, atol=1e-7)
        fleet.settle_workers()
        assert same(values(model), saved)


class Wider(Net):
    """Its last layer has more numbers than that of ``Net``."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    @override
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(ids)).sum(-1)


@pytest.mark.parametrize(("saves", "loads"), [(Net, Wider), (Wider, Net)], ids=["more", "fewer"])
def test_a_save_of_larger_or_smaller_parameters_is_refused_and_changes_nothing(
    saves: type[Net], loads: type[Net], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job(monkeypatch, "sync", saves) as (model, steps, _):
        steps(2)
        fleet.save_persistables(str(tmp_path))
        saved = values(model)
    refused = r"holds parameter 'head.weight' with \d numbers, and the model has \d.*{}"
    with job(monkeypatch, "sync", loads) as (model, steps, _):
        steps(1)
        before = values(model)
        with pytest.raises(ValueError, match=refused.format("tables=")):
            fleet.load_persistables(str(tmp_path))
        assert same(values(model), before)
        fleet.load_persistables(str(tmp_path), tables=["words"])
        torch.testing.assert_close(values(model)[2], saved[2])
        steps(1)
    begins = job(monkeypatch, "sync", loads, tmp_path)
    with pytest.raises(ValueError, match=refused.format("var_names=")), begins:
        pytest.fail("it began")


class Crew:
    """Workers in threads, each with the calls of a process of its own."""

    def __init__(self, here: Team, monkeypatch: pytest.MonkeyPatch) -> None:
        self._here, self._own = here, threading.local()
        monkeypatch.setattr(table_setup, "running", lambda: self._own.worker)
        monkeypatch.setattr(workers, "running", lambda: self._own.worker)
        monkeypatch.setattr(servers, "has_servers", lambda: True)
        monkeypatch.setattr(session, "begin_programs", list)
        monkeypatch.setattr(session, "engines", lambda: [self._own])
        monkeypatch.setattr(servers, "_carriers_of", lambda own: own.carriers)

    def hire(self, index: int, model: Net, kind: type[Carrier]) -> tuple[Worker, Carrier]:
        """Become a worker whose model has had no batch."""
        worker = self._own.worker = self._here.worker(index)
        carrier = carried(model, worker, kind, join=False, lr=0.1)
        self._own.carriers = [carrier]
        return worker, carrier

    def also(self, model: Net) -> None:
        """Have another model, with a table of its own."""
        model.words = SparseEmbedding(4, name="others", pooling="sum")
        self._own.carriers.append(carried(model, self._own.worker, join=False, lr=0.1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("idle", [0, 1])
def test_a_worker_without_a_batch_meets_the_others(
    kind: type[Carrier], idle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all begin with what worker 0 has, even if it trains nothing."""
    first, begun = made(0), list[list[torch.Tensor]]()

    def work(index: int) -> list[torch.Tensor]:
        model = first if index == 0 else made(index)
        worker, carrier = crew.hire(index, model, kind)
        if index != idle:
            carrier.begin()
            begun.append(values(model))
            for _ in range(4):
                train(model, carrier, IDS, WANTED)
        servers.settle_workers()
        found = values(model)
        worker.stop()
        return found

    start = [p.detach().clone() for p in (first.head.weight, first.head.bias)]
    with team(2, 2) as here:
        crew = Crew(here, monkeypatch)
        ended = together(lambda: work(0), lambda: work(1))
    torch.testing.assert_close(begun[0][:2], start, rtol=0, atol=0)
    assert same(*ended)
    assert not torch.equal(ended[0][0], start[0])


@pytest.mark.parametrize("kind", KINDS)
def test_others_begin_with_values_of_their_own_when_the_first_worker_leaves_without_a_batch(
    kind: type[Carrier], monkeypatch: pytest.MonkeyPatch
) -> None:
    with team(2, 2) as here:
        crew, model = Crew(here, monkeypatch), made(1)
        crew.hire(0, made(0), kind)[0].stop()
        worker, carrier = crew.hire(1, model, kind)
        start = model.head.weight.detach().clone()
        carrier.begin()
        assert torch.equal(model.head.weight, start)
        for _ in range(4):
            train(model, carrier, IDS, WANTED)
        carrier.flush()
        carrier.catch_up()
        learned = values(model)
        assert not torch.equal(learned[0], start)
        late, other = here.worker(0), made(5)  # which must not begin anew
        opened = carried(other, late, kind, lr=0.1)
        opened.refresh(late)
        assert same(values(other)[:2], learned[:2])
        late.stop()
        worker.stop()


def test_a_load_waits_for_what_others_still_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading = threading.Event()

    def work(index: int) -> list[torch.Tensor]:
        model = made(index)
        worker, carrier = crew.hire(index, model, AsyncCarrier)
        call_all = worker.client.call_all

        def watched(message: Any) -> Any:
            if isinstance(message, dict) and message["method"] == "load":
                call_all(message)
                loading.set()
            return call_all(message)

        worker.client.call_all = watched  # type: ignore[assignment, method-assign]
        train(model, carrier, IDS, WANTED)
        servers.settle_workers()
        if index == 0:
            table_saves.save(worker, tmp_path, delta=False)
            saved.extend(values(model))
        servers.settle_workers()
        if index == 1:
            assert not loading.wait(1), "nobody loads before all are there"
            train(model, carrier, IDS, WANTED)
        table_saves.load_persistables(str(tmp_path))
        found = values(model)
        worker.stop()
        return found

    saved: list[torch.Tensor] = []
    with team(2, 2) as here:
        crew = Crew(here, monkeypatch)
        for found in together(lambda: work(0), lambda: work(1)):
            assert same(found, saved)


def first_rows() -> torch.Tensor:
    start = SparseEmbedding(4, name="words").options.initializer
    return torch.from_numpy(start.rows(torch.arange(12).numpy(), 4, 0))


def plain(models: list[Net]) -> list[torch.Tensor]:
    """What models over one table learn in turns, without servers."""
    table = nn.EmbeddingBag.from_pretrained(first_rows(), freeze=False, mode="sum")
    for _ in range(3):
        for model in models:
            rule = torch.optim.SGD([*table.parameters(), *model.head.parameters()], lr=0.1)
            rule.zero_grad()
            ((model.head(table(IDS)).squeeze(-1) - WANTED) ** 2).mean().backward()
            rule.step()
    return [models[-1].head.weight.detach(), models[-1].head.bias.detach(), table(IDS).detach()]


def test_synchronous_models_share_a_table_and_its_rounds() -> None:
    models = [made(0), made(1)]
    expected = plain([made(0), made(1)])
    with team(2) as here:
        worker = here.worker()
        held = [carried(model, worker, lr=0.1) for model in models]
        for _ in range(3):
            for model, carrier in zip(models, held, strict=True):
                train(model, carrier, IDS, WANTED)
        assert same(values(models[1]), expected)
        worker.stop()


def test_synchronous_workers_that_come_back_to_living_servers_go_on() -> None:
    expected = plain([made(0)])
    with team(2) as here:
        for steps in (2, 1):
            model, worker = made(0), here.worker()
            carrier = carried(model, worker, lr=0.1)
            for _ in range(steps):
                train(model, carrier, IDS, WANTED)
            found = values(model)
            worker.stop(finished=False)
    assert same(found, expected)


def test_a_model_for_serving_is_no_beginning_of_a_delta(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job(monkeypatch, "sync") as (_, steps, here):
        said: list[dict[str, Any]] = []
        call: Any = here.handlers[1].call

        def watched(claim: Any, message: dict[str, Any], *more: Any) -> Any:
            said.append(message)
            return call(claim, message, *more)

        here.handlers[1].call = watched  # type: ignore[assignment, method-assign]
        steps(1)
        fleet.save_persistables(str(tmp_path / "full"))
        fleet.save_inference_model(str(tmp_path / "serve"))
        fleet.save_persistables(str(tmp_path / "delta"), mode="delta")
    saves = [message for message in said if message["method"] == "save"]
    assert [(each["mark"], each["delta"]) for each in saves] == [
        (True, False),
        (False, False),
        (True, True),
    ]


def test_a_model_for_inference_of_two_saves_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker dies between the tables and the dense parameters of a save over another one."""
    serve = tmp_path / "serve"
    with job(monkeypatch, "sync") as (model, steps, _):
        steps(1)
        fleet.save_inference_model(str(serve))
        load_inference_model(serve, Net())
        steps(1)
        with monkeypatch.context() as patch:
            patch.setattr(table_saves, "save_dense", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                fleet.save_inference_model(str(serve))
        with pytest.raises(ValueError, match="are of two saves: one of them was not completed"):
            load_inference_model(serve, Net())
        fleet.save_inference_model(str(serve))
        expected = model(IDS).detach()
    torch.testing.assert_close(load_inference_model(serve, Net())(IDS), expected)


def test_a_delta_that_failed_on_one_server_is_written_anew_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the other server had written of it is in no save that could be loaded."""
    folders = [str(tmp_path / name) for name in ("full", "delta")]
    with job(monkeypatch, "sync") as (model, steps, here):
        steps(1)
        fleet.save_persistables(folders[0])
        steps(1)
        call: Any = here.handlers[1].call

        def full_disk(claim: Any, message: dict[str, Any], *more: Any) -> Any:
            if message["method"] == "save":
                raise OSError(28, "No space left on device")
            return call(claim, message, *more)

        with monkeypatch.context() as patch:
            patch.setattr(here.handlers[1], "call", full_disk)
            with pytest.raises(RuntimeError, match="No space left"):
                fleet.save_persistables(folders[1], mode="delta")
        fleet.save_persistables(folders[1], mode="delta")
        learned = values(model)
    with job(monkeypatch, "sync", lambda: made(1)) as (model, _, _):
        for folder in folders:
            fleet.load_persistables(folder)
        assert same(values(model), learned)


@pytest.mark.parametrize("mode", MODES)
def test_rows_of_a_geo_job_say_that_they_come_without_state(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def rule(model: Net) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(model.parameters(), lr=0.1)

    with job(monkeypatch, "geo", rule=rule) as (_, steps, _):
        steps(2)
        fleet.save_persistables(str(tmp_path / "model"))
    with job(monkeypatch, mode, rule=rule) as (_, steps, _):
        fleet.load_persistables(str(tmp_path / "model"))
        assert "come from a geo job" not in caplog.text
        steps(2)
        fleet.settle_workers()
    told = caplog.text.count("words come from a geo job, whose workers keep the state of Adagrad")
    assert told == (0 if mode == "geo" else 2), "each server says it once"


@pytest.mark.parametrize("wrong", [7, "model", ["ids"]])
def test_what_is_no_model_is_not_saved(
    wrong: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job(monkeypatch, "sync"), pytest.raises(TypeError, match=r"is no model .*executor, dirn"):
        fleet.save_inference_model(str(tmp_path / "serve"), wrong)
    assert not (tmp_path / "serve").exists()


@pytest.mark.parametrize("mode", ["sync", "geo"])
def test_tables_in_a_group_of_their_own_may_do_without_momentum(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job(monkeypatch, mode):
        model = fleet.distributed_model(made())
        with pytest.raises(ValueError, match=r"momentum=0\.9, which would be left out for rows"):
            fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        expected = made()
        model = fleet.distributed_model(made())
        groups: list[dict[str, Any]] = [
            {"params": model.head.parameters()},
            {"params": model.words.parameters(), "momentum": 0.0},
        ]
        optimizer = fleet.distributed_optimizer(torch.optim.SGD(groups, lr=0.1, momentum=0.9))
        table = nn.EmbeddingBag.from_pretrained(first_rows(), freeze=False, mode="sum")
        rules = [
            torch.optim.SGD(expected.head.parameters(), lr=0.1, momentum=0.9),
            torch.optim.SGD(table.parameters(), lr=0.1),
        ]
        for _ in range(4):
            optimizer.minimize(((model(IDS) - WANTED) ** 2).mean())
            ((expected.head(table(IDS)).squeeze(-1) - WANTED) ** 2).mean().backward()
            for rule in rules:
                rule.step()
                rule.zero_grad()
        fleet.settle_workers()
        head = [expected.head.weight.detach(), expected.head.bias.detach()]
        assert same(values(model), [*head, table(IDS).detach()])


def test_a_worker_rests_before_it_meets_others_over_a_model_that_nobody_has_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its share is short, and updates of the other model must not wait for it meanwhile."""

    def work(index: int) -> list[torch.Tensor]:
        model, other = made(index), made(7 + index)
        worker, carrier = crew.hire(index, model, Carrier)
        crew.also(other)
        for _ in range(5 if index else 2):
            train(model, carrier, IDS, WANTED)
        servers.settle_workers()
        found = [*values(model), *values(other)]
        worker.stop()
        return found

    with team(2, 2) as here:
        crew = Crew(here, monkeypatch)
        ended = together(lambda: work(0), lambda: work(1))
    assert same(*ended)


def frozen_table() -> Net:
    model = made()
    model.words.requires_grad_(False)
    return model


def of_what_trains(model: Net) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.2)


def of_head(model: Net) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.head.parameters(), lr=0.2)


def decaying(model: Net) -> torch.optim.Optimizer:
    dense: dict[str, Any] = {"params": [*model.head.parameters()], "weight_decay": 0.1}
    rows: dict[str, Any] = {"params": [*model.words.parameters()]}
    return torch.optim.SGD([dense, rows], lr=0.2)


@pytest.mark.parametrize("mode", MODES)
def test_a_frozen_table_stays_as_it_is(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with job(monkeypatch, mode, frozen_table) as (model, steps, _):
        before = values(model)
        steps(4)
        fleet.settle_workers()
        after = values(model)
        assert torch.equal(after[2], before[2])
        assert not torch.equal(after[0], before[0])
        model.words.requires_grad_(True)  # the optimizer has it
        steps(4)
        fleet.settle_workers()
        assert not torch.equal(values(model)[2], before[2])


@pytest.mark.parametrize("mode", MODES)
def test_a_frozen_table_that_the_optimizer_does_not_have(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job(monkeypatch, mode, frozen_table, rule=of_what_trains) as (model, steps, _):
        before = values(model)
        steps(4)
        fleet.settle_workers()
        after = values(model)
        assert torch.equal(after[2], before[2])
        assert not torch.equal(after[0], before[0])
        model.words.requires_grad_(True)
        with pytest.raises(RuntimeError, match="'words' was frozen when the optimizer was made"):
            steps(1)


def test_a_table_that_is_left_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(ValueError, match="does not have the parameters of table 'words'"),
        job(monkeypatch, "sync", rule=of_head),
    ):
        pass


@pytest.mark.parametrize("mode", MODES)
def test_a_table_with_a_rule_of_its_own_may_be_left_out(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ruled() -> Net:
        model = made()
        model.words = SparseEmbedding(4, name="words", pooling="sum", rule=SGD(0.2))
        return model

    with job(monkeypatch, mode, ruled, rule=of_head) as (model, steps, _):
        before = values(model)
        steps(4)
        fleet.settle_workers()
        assert not torch.equal(values(model)[2], before[2])


@pytest.mark.parametrize("mode", MODES)
def test_rows_in_evaluation_mode_are_not_left_untrained_silently(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job(monkeypatch, mode) as (model, steps, _):
        steps(1)
        model.eval()
        model(IDS)  # evaluated with gradients, as many do
        model.train()
        steps(1)
        model.eval()
        with pytest.raises(RuntimeError, match="table 'words' is in evaluation mode"):
            steps(1)
        model.train()
        steps(1)


def frozen_head() -> Net:
    model = made()
    model.head.weight.requires_grad_(False)
    return model


@pytest.mark.parametrize("mode", MODES)
def test_a_frozen_parameter_stays_as_it_is(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with job(monkeypatch, mode, frozen_head, rule=decaying) as (model, steps, _):
        before = values(model)
        steps(4)
        fleet.settle_workers()
        after = values(model)
        assert torch.equal(after[0], before[0])
        assert not torch.equal(after[1], before[1])


@pytest.mark.parametrize("mode", ["sync", "async", "half"])  # geo moves its copy as torch does
def test_a_parameter_that_is_frozen_later_stays_as_it_is(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def adam(model: Net) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=0.1)

    with job(monkeypatch, mode, rule=adam) as (model, steps, _):
        steps(2)
        fleet.settle_workers()
        before = values(model)
        model.head.weight.requires_grad_(False)
        steps(2)
        fleet.settle_workers()
        assert torch.equal(values(model)[0], before[0])
        model.head.weight.requires_grad_(True)
        steps(1)
        fleet.settle_workers()
        assert not torch.equal(values(model)[0], before[0])
