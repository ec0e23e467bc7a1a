"""Whether tests see the cards of this machine: only with --gpu."""

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
