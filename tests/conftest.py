"""What holds for all tests: which cards they see, what they draw, how long they may hang."""

import gc
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings

from fleetx.testing.limits import stretched
from tests.rotation import long_turn

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

ALTERNATING = (
    "tests/test_composition.py",
    "applications/test_models.py",
    "engine/test_same_script.py",
    "evaluate/test_verify.py",
    "examples/test_on_a_card.py",
    "io/test_checkpoints.py",
    "io/test_moved.py",
    "io/test_other_layouts.py",
    "layouts/test_layouts.py",
    "layouts/test_meta_device.py",
    "layouts/test_opened.py",
    "layerwise/test_both_optimizers.py",
    "pipeline/test_balance.py",
    "ps/test_modes.py",
    "sharding/test_state_offload.py",
    "static/test_checkpoint.py",
    "static/test_distributed.py",
    "static/test_evaluation.py",
    "static/test_fleet_scripts.py",
    "static/test_libraries.py",
    "static/test_spread.py",
    "strategies/test_amp.py",
    "strategies/test_captured_cut_layers.py",
    "strategies/test_cuda_graph.py",
    "strategies/test_data_parallel.py",
    "strategies/test_dgc.py",
    "strategies/test_pipeline_failures.py",
    "strategies/test_sharding.py",
    "strategies/test_tensor_parallel.py",
)
"""Files of whose parametrised tests the gate runs every second case, the others at other times."""

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
    parser.addoption(
        "--clusters", action="store_true", help="start real clusters here (tests/clusters)"
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("drawn" if config.getoption("--all") else "gate")
    # Most tests compare numbers of the CPU; a worker that took a card would compute others.
    if not config.getoption("--gpu"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # What is measured while other tests run is nothing to remember.
    os.environ["FLEETX_CACHE"] = tempfile.mkdtemp(prefix="fleetx-cache-")


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["FLEETX_CACHE"], ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # On a machine that is borrowed for its GPU, nothing waits for another day.
    if config.getoption("--all") or config.getoption("--gpu"):
        return
    rest = [item for item in items if not item.get_closest_marker("rare")]
    # Tests that were named on the command line are wanted.
    if not any("::" in word for word in config.args):
        rest = half_of_those(ALTERNATING, rest)
    kept = set(rest)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    # Two processes take one file after the other: the longest come first, so that none is last.
    order = {name: number for number, name in enumerate(LONGEST)}
    items[:] = sorted(rest, key=lambda item: order.get(_ending(item), len(order)))


def _ending(item: pytest.Item) -> str:
    return "/".join(item.path.parts[-2:])


def half_of_those(files: tuple[str, ...], items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests without every second case of those in the files."""
    kept, counted = [], Counter[str]()
    for item in items:
        test = item.nodeid.partition("[")[0]
        counted[test] += 1
        if (
            _ending(item) not in files
            or "[" not in item.nodeid
            or (counted[test] + long_turn()) % 2
        ):
            kept.append(item)
    return kept


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
