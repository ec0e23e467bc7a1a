"""Over HTTP: what is shown, to whom, and that nothing can be changed."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetx.watch.command import USUAL_PORT
from tests.watch.served import Served, serving
from tests.watch.simulated import SimulatedJob


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> SimulatedJob:
    job = SimulatedJob(tmp_path_factory.mktemp("job") / "log", ranks=4, servers=2)
    job.begin()
    job.advance()
    job.advance()
    return job


@pytest.fixture(scope="module")
def here(job: SimulatedJob) -> Iterator[Served]:
    with serving(job.folder) as served:
        yield served


@pytest.fixture(scope="module")
def everywhere(job: SimulatedJob) -> Iterator[Served]:
    with serving(job.folder, "--at", "0.0.0.0:0") as served:
        yield Served(served.link.replace(served.link.split("/")[2].split(":")[0], "127.0.0.1", 1))


def test_the_page_needs_nothing_from_elsewhere(here: Served) -> None:
    status, page, headers = here.ask(here.link)
    assert status == 200
    assert "token" not in here.link
    for loads in ("http://", "https://", "//cdn", "<link", "src=", "@import", "url("):
        assert loads not in page.replace("http://www.w3.org/2000/svg", "")
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["", "state", "events", "anything"])
def test_it_can_only_be_read(here: Served, method: str, path: str) -> None:
    status, _, _ = here.ask(here.root + path, method)
    assert status in (404, 405)


def test_another_site_cannot_ask_under_its_own_name(here: Served) -> None:
    """A name that somebody else owns may lead to this machine: the browser says which it was."""
    assert here.ask(here.link, Host="evil.example")[0] == 403
    assert here.ask(f"{here.root}state", Host="evil.example:8600")[0] == 403
    for name in ("localhost:1", "127.0.0.1", "[::1]:8600"):
        assert here.ask(here.link, Host=name)[0] == 200


@pytest.mark.parametrize("path", ["", "state", "events"])
def test_from_elsewhere_it_takes_the_token_of_the_link(everywhere: Served, path: str) -> None:
    root, token = everywhere.root, everywhere.link.partition("token=")[2]
    assert len(token) >= 20
    for query in ("", "?token=", "?token=wrong", f"?token={token[:-1]}", f"?other={token}"):
        status, body, _ = everywhere.ask(f"{root}{path}{query}")
        assert status == 403
        assert "train.py" not in body
    if path != "events":
        assert everywhere.ask(f"{root}{path}?token={token}")[0] == 200
    else:
        name, _ = everywhere.events(lambda name, data: name == "now", f"?token={token}")
        assert name == "now"


def test_the_state_tells_every_rank_and_server(here: Served) -> None:
    told = json.loads(here.ask(f"{here.root}state")[1])
    assert told["state"] == "running"
    assert [rank["rank"] for rank in told["ranks"]] == [0, 1, 2, 3]
    assert {rank["step"] for rank in told["ranks"]} == {10}
    assert told["servers"][1]["rows"] == 1000
    assert told["plan"]["mesh"]["pp"] == 2
    assert len(told["history"]["points"]) == 2


def test_events_follow_the_job_and_the_log_that_was_chosen(here: Served, job: SimulatedJob) -> None:
    (job.folder / "workerlog.3").write_text("<b>a line\n")
    wants = "?log=workerlog.3"
    assert here.events(lambda name, _: name == "console", wants)[1]["lines"] == ["<b>a line", ""]

    def moved(name: str, data: Any) -> bool:
        if name == "anew":
            job.advance(steps=1)
        return name == "now" and bool(data["totals"]["step"] > before)

    before = job.step
    here.events(moved)


def test_no_file_but_a_log_is_shown(here: Served, job: SimulatedJob) -> None:
    (job.folder / "secret.txt").write_text("hidden")
    for name in ("secret.txt", "../log/secret.txt", "%2e%2e/etc/passwd", "watch.0.jsonl"):
        wants = f"?log={name}"
        _, told = here.events(lambda name, _: name == "console", wants)
        assert told["lines"] == []


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fleetx.watch", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("fleetx watch: error: there is no folder")
    command = [sys.executable, "-m", "fleetx.watch", str(tmp_path), "--at", f"x:{USUAL_PORT}:y"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is no address to listen at" in done.stderr
