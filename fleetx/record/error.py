"""The error of what a program cannot hold."""


class ProgramError(ValueError):
    """Something cannot be recorded, lowered or run; the message says where and what to write."""

    line: str = ""
    """Where, if it was said apart."""
    what: str = ""
    """Why it cannot work, without what to write in a program instead."""
    dimension: tuple[str, int] | None = None
    """The input and its dimension whose size would have to be known."""


def refusal(
    line: str, what: str, remedy: str, *, dimension: tuple[str, int] | None = None
) -> ProgramError:
    """The error about a line; whoever records no program can say the remedy in other words."""
    error = ProgramError(f"{line}: {what}; {remedy}")
    error.line, error.what, error.dimension = line, what, dimension
    return error
