"""Every test begins without programs of earlier ones."""

from collections.abc import Iterator

import pytest

from fleetx import static


@pytest.fixture(autouse=True)
def _fresh_programs() -> Iterator[None]:
    static.reset()
    yield
    static.reset()
