"""Copies of running servers: only what changed is copied, and deaths and loads are survived."""

import argparse
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fleetx.nn import Follower, SparseEmbedding, load_inference_model
from fleetx.ps.observers.command import add_arguments, run
from fleetx.ps.observers.relay import Relay
from fleetx.ps.observers.server_reader import ServerReader, observing
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.tables import saves
from fleetx.ps.tables.dense_table import DenseSpec, part_name
from fleetx.ps.tables.entries import CountFilterEntry
from fleetx.ps.tables.initializers import Constant
from fleetx.ps.tables.row_source import TableOptions
from fleetx.ps.tables.rules import SGD
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.wire.frames import Flag
from fleetx.ps.wire.versions import NOTHING
from fleetx.testing.limits import stretched
from tests.launch.conftest import Launcher, heed_signals
from tests.ports import free_ports
from tests.programs import python
from tests.ps.team import TOKEN, Team, push, rows, table, team
from tests.ps.test_processes import pid_of

HERE = Path(__file__).parent
SPEC = SparseSpec(name="t", dim=3, rule=SGD(1.0), initializer=Constant(0.0))
SOON = 0.02
"""Seconds between two visits."""


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETX_PS_TOKEN", TOKEN.decode())


def copied(follower: Follower, ids: Any, dim: int = 3) -> Any:
    """The first number of the rows of some ids."""
    batch = follower.sort_ids(np.asarray(ids, np.int64))
    found = follower.look_up(TableOptions(name="t", dim=dim), batch, None, train=False)
    return found[batch.place][:, 0].tolist()


def settled(follower: Follower) -> None:
    follower.refresh(stretched(60))


def taken(follower: Follower) -> int:
    return sum(copy.rows_taken for copy in follower.copies)


@pytest.fixture
def here() -> Iterator[Team]:
    with team(servers=2) as made:
        yield made


def test_a_follower_has_what_was_acknowledged_and_takes_only_what_changed(here: Team) -> None:
    client = here.client()
    handle = table(client, SPEC)
    push(client, handle, range(100), np.full((100, 3), -1.0))
    with Follower(here.endpoints, every=SOON) as follower:
        settled(follower)
        assert copied(follower, range(100)) == [1.0] * 100
        assert copied(follower, [1000]) == [0.0]
        before = taken(follower)
        push(client, handle, [5, 200], np.full((2, 3), -1.0))
        settled(follower)
        assert copied(follower, [4, 5, 200]) == [1.0, 2.0, 1.0]
        assert taken(follower) - before == 2
        assert [copy.full_copies for copy in follower.copies] == [1, 1]
        assert follower.age < stretched(60)


def test_rows_that_shrink_drops_are_dropped_from_copies_too(here: Team) -> None:
    client = here.client()
    handle = table(client, SPEC)
    push(client, handle, [1, 2, 3, 4], np.full((4, 3), -1.0))
    with Follower(here.endpoints, every=SOON) as follower:
        settled(follower)
        client.call_all({"method": "shrink", "threshold": 30})
        push(client, handle, [3, 4], np.full((2, 3), -1.0))
        removed = client.call_all({"method": "shrink", "threshold": 1})
        assert sum(answer["removed"] for answer in removed) == 2
        settled(follower)
        assert copied(follower, [1, 2, 3, 4]) == [0.0, 0.0, 2.0, 2.0]
        held = [copy.rows("t") for copy in follower.copies]
        assert sum(len(each.table) for each in held if each is not None) == 2
        assert [copy.full_copies for copy in follower.copies] == [1, 1]


def test_dense_parameters_of_several_tables_are_followed(here: Team) -> None:
    client = here.client()
    for number in range(3):
        name, blocks = part_name("dense-0", number), (("weight", 4 * number, 4 * number + 4),)
        spec = DenseSpec(name=name, blocks=blocks, options={"lr": 1.0}).to_plain()
        handle = client.create("dense", [spec, spec | {"blocks": []}], 0)
        values = [np.full(4, float(number + 1), np.float32), np.empty(0, np.float32)]
        client.write(handle, values, flag=Flag.INITIAL)
    model = nn.Linear(12, 1, bias=False)
    with Follower(here.endpoints, every=SOON) as follower:
        settled(follower)
        follower.attach(model)
        assert model.weight.flatten().tolist() == [1.0] * 4 + [2.0] * 4 + [3.0] * 4


def test_followed_parameters_lie_in_memory_as_they_like() -> None:
    """The follower said that its server was followed again, and they stayed as they were."""
    model = nn.Linear(3, 2, bias=False)
    model.weight = nn.Parameter(torch.zeros(3, 2).t())
    with team() as here:
        client = here.client()
        spec = DenseSpec(name="dense-0", blocks=(("weight", 0, 6),), options={"lr": 1.0})
        handle = client.create("dense", [spec.to_plain()], 0)
        with Follower(here.endpoints, every=SOON) as follower:
            follower.attach(model)
            client.write(handle, [np.arange(6, dtype=np.float32)], flag=Flag.INITIAL)
            settled(follower)
            assert follower.copies[0].trouble == ""
    assert model.weight.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_rows_that_an_entry_admits_are_seen_when_they_begin() -> None:
    spec = SparseSpec(name="t", dim=3, initializer=Constant(7.0), entry=CountFilterEntry(2))
    with team() as here, Follower(here.endpoints, every=SOON) as follower:
        client = here.client()
        handle = table(client, spec)
        rows(client, handle, [1], train=True)
        settled(follower)
        assert copied(follower, [1]) == [0.0]
        rows(client, handle, [1], train=True)
        settled(follower)
        assert copied(follower, [1]) == [7.0]


@pytest.mark.parametrize("kept", [{"dtype": "int8"}, {"storage": "disk", "memory": 1 << 16}])
def test_rows_of_few_bytes_and_rows_on_disk_are_followed(
    kept: dict[str, Any], tmp_path: Path
) -> None:
    spec = SparseSpec(name="t", dim=3, rule=SGD(1.0), **kept)
    ids = np.arange(20_000)
    with team(folder=tmp_path) as here, Follower(here.endpoints, every=SOON) as follower:
        client = here.client()
        handle = table(client, spec)
        push(client, handle, ids, np.random.default_rng(0).standard_normal((20_000, 3)))
        settled(follower)
        assert copied(follower, ids) == rows(client, handle, ids)[:, 0].tolist()
        push(client, handle, ids[::7], np.ones((len(ids[::7]), 3)))
        settled(follower)
        assert copied(follower, ids) == rows(client, handle, ids)[:, 0].tolist()
        assert follower.copies[0].full_copies == 1


def test_a_save_that_is_loaded_is_copied_as_a_whole(here: Team, tmp_path: Path) -> None:
    client = here.client()
    handle = table(client, SPEC)
    push(client, handle, [1, 2], np.full((2, 3), -1.0))
    said = {"method": "save", "folder": str(tmp_path), "delta": False}
    saves.write_list(tmp_path, client.call_all(said))
    push(client, handle, [2, 3], np.full((2, 3), -1.0))
    with Follower(here.endpoints, every=SOON) as follower:
        settled(follower)
        assert copied(follower, [1, 2, 3]) == [1.0, 2.0, 1.0]
        client.call_all({"method": "load", "folder": str(tmp_path)})
        settled(follower)
        assert copied(follower, [1, 2, 3]) == [1.0, 1.0, 0.0]
        assert [copy.full_copies for copy in follower.copies] == [2, 2]


def test_an_observer_can_change_nothing(here: Team) -> None:
    table(here.client(), SPEC)
    for message in ({"method": "shrink", "threshold": 1}, {"method": "finish"}):
        reader = ServerReader(here.endpoints[0], observing(TOKEN))
        with pytest.raises(RuntimeError, match="an observer must not ask for"):
            reader.call(message)
        reader.close()
    assert not here.handlers[0].membership.finished()


def test_who_follows_a_relay_has_the_same_rows(here: Team) -> None:
    client = here.client()
    handle = table(client, SPEC)
    push(client, handle, range(50), np.full((50, 3), -1.0))
    with Follower(here.endpoints, every=SOON) as near:
        near.wait(stretched(60))
        with (
            Relay(near, "127.0.0.1", 0) as relay,
            Follower(relay.endpoints, every=SOON) as far,
        ):
            settled(far)
            assert copied(far, range(50)) == [1.0] * 50
            push(client, handle, [7], np.full((1, 3), -1.0))
            settled(near)
            settled(far)
            assert copied(far, [6, 7, 8]) == [1.0, 2.0, 1.0]
            assert [copy.full_copies for copy in far.copies] == [1, 1]


def changed(handler: RequestHandler, since: Any) -> tuple[Any, list[int] | None]:
    (logged,) = handler._tables
    version, ids = logged.changed_since(since)  # type: ignore[attr-defined]
    return version, None if ids is None else sorted(ids.tolist())


@pytest.mark.parametrize("saves", [False, True])
def test_versions_survive_the_server_that_gave_them(tmp_path: Path, *, saves: bool) -> None:
    def begin() -> RequestHandler:
        from fleetx.ps.server.membership import Membership

        return RequestHandler(Membership(1), folder=tmp_path)

    with team(folder=tmp_path) as here:
        client = here.client()
        handle = table(client, SPEC)
        push(client, handle, [1, 2], np.full((2, 3), -1.0))
        first, found = changed(here.handlers[0], NOTHING)
        assert found is None
        if saves:
            here.handlers[0].checkpoint(force=True)
        push(client, handle, [2, 3], np.full((2, 3), -1.0))
        client.call_all({"method": "shrink", "threshold": 30})
        second, found = changed(here.handlers[0], first)
        assert found == [2, 3]
        push(client, handle, [9], np.full((1, 3), -1.0))
    tmp_path = tmp_path / "server-0"  # as a server that is killed leaves it
    again = begin()
    third, found = changed(again, second)
    assert found == [9]
    assert changed(again, first)[1] == [2, 3, 9]
    assert changed(again, third)[1] == []
    assert changed(again, second._replace(number=10**6))[1] is None
    assert changed(again, second._replace(history=5))[1] is None


class Net(nn.Module):
    """That of ``followed``."""

    def __init__(self) -> None:
        super().__init__()
        self.words = SparseEmbedding(4, name="words")
        self.head = nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(ids)).squeeze(-1)


def outputs(launcher: Launcher, number: int) -> torch.Tensor:
    path = launcher.folder / f"outputs-{number}.npy"
    deadline = time.monotonic() + stretched(150)
    while not path.exists():
        assert time.monotonic() < deadline, launcher.log("workerlog.0")
        time.sleep(0.02)
    return torch.from_numpy(np.load(path))


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path, python())
    yield launcher
    launcher.close()


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """By the same numbers; sums may be made in another order, in another process."""
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_a_model_in_service_goes_on_with_servers_that_were_killed(launcher: Launcher) -> None:
    """Trained, killed, gone on, shrunk: what is served is what the worker computes."""
    (port,) = free_ports(1)
    numbers = ["--server_num=1", "--worker_num=1", f"--metrics_port={port}"]
    script = str(HERE / "scripts" / "followed.py")
    job = launcher.start(*numbers, script, FLEETX_PS_TOKEN=TOKEN.decode())
    expected = outputs(launcher, 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert 'fleetx_ps_table_rows{table="words"}' in answer.read().decode()
    servers = (launcher.folder / "endpoints").read_text()
    everything = torch.arange(400)
    with Follower(servers, every=0.1) as follower:
        model = load_inference_model(launcher.folder / "serve", Net(), follow=follower)
        settled(follower)
        same(model(everything), expected)
        os.kill(pid_of(job, "PSERVER", 0), signal.SIGKILL)
        same(model(everything), expected)  # it answers while nobody else does
        (launcher.folder / "go-0").touch()
        expected = outputs(launcher, 1)
        settled(follower)
        same(model(everything), expected)
        assert follower.copies[0].full_copies == 1
        (launcher.folder / "go-1").touch()
        expected = outputs(launcher, 2)
        settled(follower)
        same(model(everything), expected)
        held = [copy.rows("words") for copy in follower.copies]
        assert sum(len(each.table) for each in held if each is not None) <= 100
        assert follower.copies[0].full_copies == 1
        (launcher.folder / "go-2").touch()
        assert launcher.finish(job, 200).code == 0
        same(model(everything), expected)  # the job is over, and it still answers


def test_the_command_serves_a_copy_and_its_figures(here: Team, tmp_path: Path) -> None:
    client = here.client()
    handle = table(client, SPEC)
    push(client, handle, range(10), np.full((10, 3), -1.0))
    command = [python(), "-m", "fleetx", "ps", "follow", ",".join(here.endpoints)]
    command += ["--listen", "127.0.0.1:0", "--every", "0.05", "--metrics_port", "0"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_signals,  # noqa: PLW1509 - it takes no lock that a thread could hold
        cwd=tmp_path,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("following 127.0.0.1:")
        figures = process.stdout.readline().strip().removeprefix("figures at ")
        ready = process.stdout.readline().strip()
        assert ready.startswith("serving t at 127.0.0.1:")
        with Follower(ready.removeprefix("serving t at "), every=SOON) as far:
            settled(far)
            assert copied(far, range(10)) == [1.0] * 10
        with urllib.request.urlopen(figures) as answer:
            text = answer.read().decode()
        assert f'fleetx_ps_table_rows{{table="t@{here.endpoints[0]}"}}' in text
        assert "fleetx_ps_follower_age_seconds" in text
        process.send_signal(signal.SIGTERM)
        assert process.wait(stretched(60)) == 0
    finally:
        process.kill()
        process.wait()


def test_the_command_reports_what_servers_hold(here: Team) -> None:
    client = here.client()
    handle = table(client, SPEC)
    push(client, handle, range(10), np.full((10, 3), -1.0))
    command = [python(), "-m", "fleetx", "ps", "report", ",".join(here.endpoints)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.count("dead workers: none") == 2
    assert "pushed/s" in said
    wrong = subprocess.run(
        [*command[:-1], "127.0.0.1:1"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 1
    assert "fleetx ps report: server 127.0.0.1:1 did not answer" in wrong.stderr


@pytest.mark.parametrize("given", ["", "nonsense", [], 7])
def test_what_cannot_be_followed_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="host:port"):
        Follower(given)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--listen", "127.0.0.1:65535"], "no ports for the copies of 2 servers.*up to 65534"),
        (["--listen", "127.0.0.1:0", "--metrics_port", "70000"], "from 1 to 65535"),
        (["--listen", "127.0.0.1:0", "--metrics_port", "-1"], "from 1 to 65535"),
    ],
)
def test_ports_that_there_are_not_are_refused(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert run(parser.parse_args(["follow", "127.0.0.1:1,127.0.0.1:2", *flags])) == 1
    assert re.search(f"fleetx ps follow: .*{words}", capsys.readouterr().err)
