"""``DataFeeder``: lists of samples as a feed."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from fleetx import static
from fleetx.compat import lods
from fleetx.compat.lod_tensors import create_lod_tensor
from fleetx.record.shapes import FREE
from fleetx.record.variable import as_variable
from fleetx.static.record.program import program_of


class DataFeeder:
    """Makes of a list of samples an array for each input."""

    def __init__(self, feed_list: Sequence[Any], place: Any = None, program: Any = None) -> None:
        """Say what samples have.

        Args:
            feed_list: the inputs by object or by name, in the order of the fields of a sample.
            place: has no effect: the executor brings feeds to its device.
            program: the one of the names; the default main program if None.
        """
        main = static.default_main_program() if program is None else program
        found = [main.var(entry) if isinstance(entry, str) else entry for entry in feed_list]
        self._variables = [as_variable(entry, "feed_list") for entry in found]
        self.feed_names = [variable.name for variable in self._variables]
        self.place = place

    def feed(self, iterable: Iterable[Sequence[Any]]) -> dict[str, Any]:
        """Name -> array; rows of different lengths become a ``LoDTensor``."""
        columns = list(zip(*iterable, strict=True))
        if len(columns) != len(self._variables):
            raise ValueError(
                f"a sample has {len(columns)} fields, and feed_list has {len(self._variables)}: "
                f"{', '.join(self.feed_names)}."
            )
        pairs = zip(self._variables, columns, strict=True)
        return {variable.name: _column(variable, column) for variable, column in pairs}

    def feed_parallel(
        self, iterable: Iterable[Any], num_places: int | None = None
    ) -> list[dict[str, Any]]:
        """One feed for the one card of this process."""
        batches = list(iterable)
        if len(batches) != 1 or (num_places or 1) != 1:
            raise ValueError(
                f"feed_parallel() was given {len(batches)} batches for {num_places} places, and a "
                "process has one; start one process for each card with fleetrun."
            )
        return [self.feed(batches[0])]

    def decorate_reader(
        self,
        reader: Any,
        multi_devices: bool,
        num_places: int | None = None,
        drop_last: bool = True,
    ) -> Any:
        """A reader of feeds from a reader of lists of samples."""
        if multi_devices:
            return lambda: ([self.feed(batch)] for batch in reader())
        return lambda: (self.feed(batch) for batch in reader())


def _column(variable: static.Variable, column: Sequence[Any]) -> Any:
    dtype = torch.empty(0, dtype=variable.fake.dtype).numpy().dtype
    sizes = [-1 if size in FREE else int(size) for size in variable.node.meta["shape"][1:]]
    if lods.companion(variable.name) in program_of(variable).inputs():
        rows = [np.asarray(value, dtype).reshape(-1, *sizes) for value in column]
        lengths = [len(row) for row in rows]
        return create_lod_tensor(np.concatenate(rows), [lengths])
    found = np.stack([np.asarray(value, dtype) for value in column])
    return found if -1 in sizes else found.reshape(len(column), *sizes)
