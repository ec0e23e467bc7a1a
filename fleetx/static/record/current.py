"""The programs that a script records into: the default ones, or those of ``program_guard``."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fleetx.expected import a, expect
from fleetx.record import interception
from fleetx.record.error import ProgramError
from fleetx.record.state import Names
from fleetx.static.record.program import Program


@dataclass
class Pair:
    """A program and the one that holds the first values of its layers."""

    main: Program = field(default_factory=Program)
    startup: Program = field(default_factory=Program)


# A script may record without any guard, so there is always one pair at the bottom.
_pairs: list[Pair] = [Pair()]


def default_main_program() -> Program:
    """The program that is recorded into now."""
    return _pairs[-1].main


def default_startup_program() -> Program:
    """The program that initialises what is recorded now."""
    return _pairs[-1].startup


_PROGRAM = a(Program, "static.Program()")


@contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """Record into these programs; None leaves the start-up program that is in force."""
    expect("static.program_guard", "main_program", main_program, _PROGRAM)
    expect("static.program_guard", "startup_program", startup_program, _PROGRAM | None)
    _pairs.append(Pair(main_program, startup_program or default_startup_program()))
    try:
        with interception.recording(default_main_program, default_startup_program):
            yield
    finally:
        _pairs.pop()


def record_by_default() -> None:
    """Begin to record into the default programs, without a guard."""
    if len(_pairs) == 1:
        interception.start(default_main_program, default_startup_program)


def reset() -> None:
    """Forget the default programs and begin with empty ones."""
    if len(_pairs) > 1:
        raise ProgramError("static.reset() was called under a program_guard(); leave that first.")
    _pairs[:] = [Pair()]
    interception.stop()


@contextmanager
def device_guard(device: str | None = None) -> Iterator[None]:
    """Note for every operator on which device it belongs, such as "gpu:1"; pipelines cut by it."""
    kind, _, index = (device or "cpu").partition(":")
    if kind not in {"cpu", "gpu", "cuda"} or (index and not index.isdigit()):
        raise ValueError(
            f"static.device_guard({device!r}) names no device; write 'cpu', 'gpu:0', 'gpu:1', … or "
            "nothing."
        )
    program = default_main_program()
    before, program.device = program.device, device
    try:
        yield
    finally:
        program.device = before


class UniqueName:
    """``unique_name.guard()``: layers are numbered from 0 again, so that names repeat.

    A layer whose name the start-up program knows shares its parameters; that is how a script
    builds a second program for evaluation.
    """

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Number layers anew inside."""
        startup = default_startup_program()
        before, startup.layer_names = startup.layer_names, Names(repeat=True)
        try:
            yield
        finally:
            startup.layer_names = before


unique_name = UniqueName()
