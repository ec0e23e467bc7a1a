"""What holds for all tests: which cards they see, and what is searched for garbage."""

import gc
import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--gpu", action="store_true", help="let tests see GPUs, for those that are about them"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Most tests compare numbers of the CPU; a worker that took a card would compute others.
    if not config.getoption("--gpu"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_finish() -> None:
    """Keep what is loaded by now out of every later search for garbage: it is most of the heap."""
    gc.collect()
    gc.freeze()
