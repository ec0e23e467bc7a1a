"""Every test begins with empty default programs and leaves torch as it found it."""

from collections.abc import Iterator

import pytest

from fleetx import static


@pytest.fixture(autouse=True)
def _fresh_programs() -> Iterator[None]:
    static.reset()
    yield
    static.reset()
