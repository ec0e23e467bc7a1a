"""Turning raw lines into text slots; a program for ``pipe_command``."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TextIO

Sample = Iterable[tuple[str, Iterable[Any]]] | Mapping[str, Iterable[Any]]
"""The slots of a record, in order: name and values."""
Samples = Iterable[Sample | None] | Callable[[], Iterable[Sample | None]]
"""What makes samples: an iterable, or a function that returns one."""
Slots = list[tuple[str, list[Any]]]


class MultiSlotDataGenerator:
    """Subclass it, write ``generate_sample``, and run ``MyGenerator().run_from_stdin()``."""

    def __init__(self) -> None:
        self._batch = 1
        self._names: tuple[str, ...] | None = None

    def set_batch(self, batch_size: int) -> None:
        """How many samples ``generate_batch`` sees at once."""
        self._batch = batch_size

    def generate_sample(self, line: str | None) -> Samples:
        """Yield the samples of one line, or return a function that does; None is left out."""
        raise NotImplementedError(
            f"{type(self).__name__} must define generate_sample(line), which returns a function "
            "that yields [(slot, [value, ...]), ...]"
        )

    def generate_batch(self, samples: list[Slots]) -> Samples:
        """Yield what shall be written for these samples, or return a function that does."""
        return samples

    def run_from_stdin(self) -> None:
        """Read lines, write slots."""
        self._run(iter(sys.stdin), sys.stdout)

    def run_from_memory(self) -> None:
        """Write the slots of what ``generate_sample(None)`` makes up."""
        self._run(iter([None]), sys.stdout)

    def _run(self, lines: Iterator[str | None], out: TextIO) -> None:
        held: list[Slots] = []
        for line in lines:
            for sample in _all(self.generate_sample(line)):
                held.append(sample)
                if len(held) == self._batch:
                    self._write(held, out)
                    held = []
        self._write(held, out)

    def _write(self, samples: list[Slots], out: TextIO) -> None:
        for sample in _all(self.generate_batch(samples)) if samples else ():
            out.write(self.line(sample))

    def line(self, sample: Sample) -> str:
        """One record as text."""
        slots = _slots(sample)
        names = tuple(name for name, _ in slots)
        if self._names is None:
            self._names = names
        if names != self._names:
            raise ValueError(
                f"a sample has the slots {names} and one before had {self._names}; every sample "
                "needs the same slots in the same order"
            )
        words = []
        for name, values in slots:
            if not values:
                raise ValueError(f"slot {name!r} of a sample is empty; pad it, with 0 for instance")
            words += [str(len(values)), *map(str, values)]
        return " ".join(words) + "\n"


def _all(made: Samples) -> Iterator[Slots]:
    for sample in made() if callable(made) else made:
        if sample is not None:
            yield _slots(sample)


def _slots(sample: Sample) -> Slots:
    """A sample that may be a zip or a generator, which give what they hold only once."""
    try:
        pairs = [(name, values) for name, values in _pairs(sample)]
    except (TypeError, ValueError):
        raise ValueError(
            f"a sample is {sample!r}, and not pairs of a slot's name and its values; yield "
            "[(slot, [value, ...]), ...]"
        ) from None
    if not pairs:
        raise ValueError(
            "a sample has no slot, which would be an empty line; yield None for lines that give "
            "no record"
        )
    for name, values in pairs:
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise ValueError(
                f"slot {name!r} of a sample is {values!r}, and not a list of values; yield "
                f"({name!r}, [{values!r}])"
            )
    return [(name, list(values)) for name, values in pairs]


def _pairs(sample: Sample) -> Iterable[tuple[str, Iterable[Any]]]:
    return sample.items() if isinstance(sample, Mapping) else sample


MultiSlotStringDataGenerator = MultiSlotDataGenerator
"""For values that are text already, which are written as they are."""
