"""``paddle.LazyGuard``: layers without numbers, which get them when they are asked to."""

from contextlib import AbstractContextManager
from typing import Any

from typing_extensions import override

from fleetx.compat.notes import note


class LazyGuard(AbstractContextManager[None]):
    """Layers made inside have their numbers at once; that saves no memory, and changes none."""

    @override
    def __enter__(self) -> None:
        note("LazyGuard", "layers are filled when they are made.")

    @override
    def __exit__(self, *error: Any) -> None:
        return None
