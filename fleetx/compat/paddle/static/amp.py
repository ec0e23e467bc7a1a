"""``paddle.static.amp``: programs in half precision."""

from collections.abc import Iterator
from contextlib import contextmanager

from fleetx.compat.notes import note
from fleetx.compat.paddle.fluid.contrib.mixed_precision.decorator import decorate
from fleetx.compat.paddle.fluid.contrib.mixed_precision.fp16_lists import (
    AutoMixedPrecisionLists,
    CustomOpLists,
)

__all__ = ["AutoMixedPrecisionLists", "CustomOpLists", "decorate", "fp16_guard"]


@contextmanager
def fp16_guard() -> Iterator[None]:
    """Noted: which operators run in half precision is chosen by kind, inside and outside."""
    note("static.amp.fp16_guard()", "operators run in half precision by their kind everywhere.")
    yield
