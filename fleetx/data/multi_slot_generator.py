"""Turning raw lines into text slots; a program for ``pipe_command``."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO

Sample = Sequence[tuple[str, Sequence[Any]]]
"""The slots of a record, in order: name and values."""


class MultiSlotDataGenerator:
    """Subclass it, write ``generate_sample``, and run ``MyGenerator().run_from_stdin()``."""

    def __init__(self) -> None:
        self._batch = 1
        self._names: tuple[str, ...] | None = None

    def set_batch(self, batch_size: int) -> None:
        """How many samples ``generate_batch`` sees at once."""
        self._batch = batch_size

    def generate_sample(self, line: str | None) -> Callable[[], Iterable[Sample | None]]:
        """Return a function that yields the samples of one line; None is left out."""
        raise NotImplementedError(
            f"{type(self).__name__} must define generate_sample(line), which returns a function "
            "that yields [(slot, [value, ...]), ...]"
        )

    def generate_batch(self, samples: list[Sample]) -> Callable[[], Iterable[Sample]]:
        """Return a function that yields what shall be written for these samples."""
        return lambda: iter(samples)

    def run_from_stdin(self) -> None:
        """Read lines, write slots."""
        self._run(iter(sys.stdin), sys.stdout)

    def run_from_memory(self) -> None:
        """Write the slots of what ``generate_sample(None)`` makes up."""
        self._run(iter([None]), sys.stdout)

    def _run(self, lines: Iterator[str | None], out: TextIO) -> None:
        held: list[Sample] = []
        for line in lines:
            for sample in self.generate_sample(line)():
                if sample is None:
                    continue
                held.append(sample)
                if len(held) == self._batch:
                    self._write(held, out)
                    held = []
        self._write(held, out)

    def _write(self, samples: list[Sample], out: TextIO) -> None:
        for sample in self.generate_batch(samples)() if samples else ():
            out.write(self.line(sample))

    def line(self, sample: Sample) -> str:
        """One record as text."""
        names = tuple(name for name, _ in sample)
        if self._names is None:
            self._names = names
        if names != self._names:
            raise ValueError(
                f"a sample has the slots {names} and one before had {self._names}; every sample "
                "needs the same slots in the same order"
            )
        words = []
        for name, values in sample:
            if len(values) == 0:
                raise ValueError(f"slot {name!r} of a sample is empty; pad it, with 0 for instance")
            words += [str(len(values)), *map(str, values)]
        return " ".join(words) + "\n"


MultiSlotStringDataGenerator = MultiSlotDataGenerator
"""For values that are text already, which are written as they are."""
