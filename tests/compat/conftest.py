"""A process in which ``import paddle`` finds fleetx, for one test."""

from collections.abc import Iterator

import pytest
import torch

from fleetx import static
from fleetx.compat import imports, modes, parameters, unique_names


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small layers are slower on two threads, above all beside another test."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def whole_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of Paddle's CPU are compared, and cards shorten those of recurrent layers."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture(autouse=True)
def paddle_is_here() -> Iterator[None]:
    """Serve the old modules during a test, which begins as a new process does."""
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
