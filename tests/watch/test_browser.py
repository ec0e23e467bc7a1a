"""In a real browser: what a person sees while a job runs, and while ranks die."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetx.testing.limits import stretched
from tests.launch.conftest import Launcher, launcher  # noqa: F401
from tests.watch.served import serving
from tests.watch.simulated import SimulatedJob

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs a browser: apt-get install chromium"
)
playwright = pytest.importorskip("playwright.sync_api", reason="needs pip install playwright")

TRAIN = """
import os, signal, time, torch, fleetx as fleet
attempt = int(os.environ["PADDLE_RESTART"])
fleet.init(is_collective=True)
model = fleet.distributed_model(torch.nn.Linear(8, 2))
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for number in range(100000):
    x = torch.randn(16, 8)
    optimizer.minimize(torch.nn.functional.mse_loss(model(x), x[:, :2]))
    time.sleep(0.005)
    if os.path.exists("die") and attempt == 0 and fleet.worker_index() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if os.path.exists("stop"):
        break
    if number == 20 and fleet.worker_index() == 0:
        print("twenty batches", flush=True)
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1360, "height": 1100})
    page = context.new_page()
    page.set_default_timeout(1000 * stretched(20))
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    yield page
    hosts = {url.split("/")[2].split(":")[0] for url in asked}
    context.close()
    assert hosts == {"127.0.0.1"}, "the page asks nobody else"
    assert [fault for fault in faults if "ERR_" not in fault] == []


def text_is(page: Any, selector: str, text: str) -> None:
    page.wait_for_function(
        "([selector, text]) => document.querySelector(selector)?.textContent.includes(text)",
        arg=[selector, text],
    )


@pytest.mark.rare
def test_a_job_of_sixty_four_ranks_of_which_some_die(page: Any, tmp_path: Path) -> None:
    job = SimulatedJob(tmp_path / "log")
    with serving(job.folder) as served:
        page.goto(served.link)
        text_is(page, "#state", "waiting for a job")
        job.begin()
        job.advance()
        job.advance()
        text_is(page, "#state", "running")
        page.wait_for_function("() => document.querySelectorAll('#ranks tbody tr').length === 64")
        assert page.locator("#plan svg rect").count() == 64
        assert page.locator("#plan svg text", has_text="stage 1").count() == 1
        text_is(page, "#tiles", "64 of 64")
        page.wait_for_selector("#loss svg .line")
        job.kill(5)
        job.kill(40)
        job.advance(r17={"figures": {"loss": float("nan"), "exchanging": 0.1}})
        text_is(page, "#state", "not all there")
        text_is(page, "#tiles", "62 of 64")
        dead = page.locator("#ranks tr[data-flag=dead]")
        page.wait_for_function(
            "() => document.querySelectorAll('#ranks tr[data-flag=dead]').length === 2"
        )
        assert dead.first.get_attribute("data-rank") == "5"
        text_is(page, "#ranks tr[data-rank='17']", "not finite")
        page.wait_for_function("() => document.querySelectorAll('#plan rect.bad').length === 3")
        job.begin(attempt=1)
        job.advance()
        job.advance()
        text_is(page, "#below", "attempt 2")
        text_is(page, "#tiles", "64 of 64")
        with job.telling:
            job.telling.ended_with(0)
        text_is(page, "#state", "ended well")
    text_is(page, "#live", "the page has ended with the job")


@pytest.mark.rare
def test_servers_are_shown_with_rows_and_rates(page: Any, tmp_path: Path) -> None:
    job = SimulatedJob(tmp_path / "log", ranks=2, servers=2)
    job.begin()
    job.advance()
    job.advance()
    with serving(job.folder) as served:
        page.goto(served.link)
        page.wait_for_function("() => document.querySelectorAll('#servers tbody tr').length === 2")
        text_is(page, "#servers tbody tr", "emb 1000")
        text_is(page, "#plan", "workers meet at the servers")


@pytest.mark.rare
def test_two_real_ranks_one_of_which_is_killed(
    page: Any,
    launcher: Launcher,  # noqa: F811
) -> None:
    process = launcher.start(
        *("--nproc_per_node", "2", "--max_restart", "1", "--watch_at", "127.0.0.1:0"),
        launcher.script(TRAIN),
    )
    assert process.stdout is not None
    link = next(line.split()[-1] for line in process.stdout if "http://" in line)
    page.goto(link)
    page.wait_for_function("() => document.querySelectorAll('#ranks tbody tr').length === 2")
    text_is(page, "#state", "running")
    text_is(page, "#console", "twenty batches")
    page.wait_for_selector("#loss svg .line")
    page.wait_for_selector("#samples svg .line")
    text_is(page, "#plan", "2 copies")
    (launcher.folder / "die").touch()
    text_is(page, "#below", "attempt 2")
    text_is(page, "#said", "rank 1 failed first")
    text_is(page, "#state", "running")
    page.select_option("#logs", "workerlog.1")
    text_is(page, "#tiles", "2 of 2")
    (launcher.folder / "stop").touch()
    text_is(page, "#live", "the page has ended with the job")
    text_is(page, "#state", "ended well")
    assert launcher.finish(process).code == 0
