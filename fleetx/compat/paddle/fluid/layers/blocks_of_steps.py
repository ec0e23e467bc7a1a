"""``StaticRNN`` and ``DynamicRNN`` of ``paddle.fluid.layers``: blocks that are run step by step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fleetx.compat.dtypes import dtype_of
from fleetx.compat.lods import one_behind_the_other, side_by_side
from fleetx.compat.recorded import settle
from fleetx.compat.recurrences import Recurrence, filled


class StaticRNN:
    """Steps along the first dimension of inputs, [steps, batch, …]."""

    def __init__(self, name: str | None = None) -> None:
        settle()
        self._steps = Recurrence()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Write a step inside."""
        with self._steps.block():
            yield

    def step_input(self, x: Any) -> Any:
        """One step of an input."""
        return self._steps.step_input(x)

    def memory(  # noqa: PLR0917 (the order of Paddle)
        self,
        init: Any = None,
        shape: Any = None,
        batch_ref: Any = None,
        init_value: float = 0.0,
        init_batch_dim_idx: int = 0,
        ref_batch_dim_idx: int = 1,
    ) -> Any:
        """What the step before left, ``init`` or a number in the first."""
        if init is not None:
            return self._steps.memory(init)
        if shape is None or batch_ref is None:
            raise ValueError("StaticRNN.memory() needs init, or shape and batch_ref; give those.")
        whole = self._steps.input_of(batch_ref)
        with self._steps.outside():
            size = whole.shape[ref_batch_dim_idx]
            kind = whole.dtype if torch.is_floating_point(whole) else torch.float32
            first = filled(whole, shape, init_value, kind, size, init_batch_dim_idx)
        return self._steps.memory(first)

    def update_memory(self, mem: Any, var: Any) -> None:
        """Leave a value for the next step."""
        self._steps.update(mem, var)

    def step_output(self, o: Any) -> None:
        """Keep a value of every step."""
        self._steps.outputs.append(o)

    def output(self, *outputs: Any) -> None:
        """Keep values of every step."""
        for o in outputs:
            self.step_output(o)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What was kept, [steps, batch, …]."""
        found = self._steps.found
        return found[0] if len(found) == 1 else found


class DynamicRNN:
    """Steps along records of different lengths, all records at once."""

    def __init__(self, name: str | None = None) -> None:
        settle()
        self._steps = Recurrence()
        self._like: Any = None
        self._begins: Any = None

    @contextmanager
    def block(self) -> Iterator[None]:
        """Write a step inside."""
        with self._steps.block():
            yield

    def step_input(self, x: Any, level: int = 0) -> Any:
        """One row of each record."""
        with self._steps.outside():
            padded, lengths, begins = side_by_side(x, "DynamicRNN.step_input")
        if self._like is None:
            self._like, self._begins = x, begins
        return self._steps.step_input(padded, lengths)

    def static_input(self, x: Any) -> Any:
        """The same in every step; records stay in their order here."""
        return x

    def memory(
        self,
        init: Any = None,
        shape: Any = None,
        value: float = 0.0,
        need_reorder: bool = False,
        dtype: Any = "float32",
    ) -> Any:
        """What the step before left, ``init`` or a number in the first."""
        if init is not None:
            return self._steps.memory(init)
        if shape is None:
            raise ValueError("DynamicRNN.memory() needs init or shape; give one.")
        with self._steps.outside():
            sizes = [-1, *(int(size) for size in shape)]
            batch = self._steps.batch
            first = filled(self._like, sizes, value, dtype_of(dtype), batch, 0)
        return self._steps.memory(first)

    def update_memory(self, ex_mem: Any, new_mem: Any) -> None:
        """Leave a value for the next step."""
        self._steps.update(ex_mem, new_mem)

    def output(self, *outputs: Any) -> None:
        """Keep values of every step."""
        self._steps.outputs.extend(outputs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What was kept, as rows of the same records."""
        found = [one_behind_the_other(o, self._like, self._begins) for o in self._steps.found]
        return found[0] if len(found) == 1 else found
