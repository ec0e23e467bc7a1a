"""What holds for all tests: which cards they see, what they draw, how long they may hang."""

import gc
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from fleetx.testing.limits import stretched

HANGS = 300
"""Seconds after which a test that nobody disturbs hangs."""

LONGEST = (
    "tests/test_composition.py",
    "launch/test_processes.py",
    "examples/test_servers.py",
    "layouts/test_layouts.py",
    "examples/test_resnet.py",
)
"""Files that take a minute or more of a processor."""

# The gate gives the same answer every time; new examples are drawn by `make test-all`. A machine
# that is busy with something else is no reason to fail.
settings.register_profile("gate", derandomize=True, deadline=None, database=None)
settings.register_profile("drawn", deadline=None, print_blob=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--gpu", action="store_true", help="let tests see GPUs, for those that are about them"
    )
    parser.addoption(
        "--all",
        action="store_true",
        help="run the rarest compositions too, and draw new examples for property tests",
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("drawn" if config.getoption("--all") else "gate")
    # Most tests compare numbers of the CPU; a worker that took a card would compute others.
    if not config.getoption("--gpu"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    rare = [item for item in items if item.get_closest_marker("rare")]
    config.hook.pytest_deselected(items=rare)
    items[:] = [item for item in items if not item.get_closest_marker("rare")]
    # Two processes take one file after the other: the longest come first, so that none is last.
    order = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get("/".join(item.path.parts[-2:]), len(order)))


def pytest_collection_finish() -> None:
    """Keep what is loaded by now out of every later search for garbage: it is most of the heap."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_job_is_left() -> Iterator[None]:
    """What a test began in this process ends with it, whichever test comes next."""
    yield
    roles = sys.modules.get("fleetx.roles.session")
    if roles is not None and roles.started():
        roles.stop()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(stretched(HANGS)))
    return (yield)
