"""A process in which ``import paddle`` finds fleetx, for one test."""

import os
from collections.abc import Iterator

import pytest

from fleetx import static
from fleetx.compat import imports, modes, parameters, unique_names


@pytest.fixture(autouse=True)
def paddle_is_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve the old modules during a test, which begins as a new process does."""
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    static.reset()
    modes.forget()
    before = unique_names.switch()
    imports.install()
    with parameters.scope_of_its_own():
        yield
    imports.uninstall()
    unique_names.switch(before)
    modes.forget()
    static.reset()
