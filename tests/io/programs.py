"""Programs that are ready to run."""

from fleetx import static


def started() -> static.Executor:
    """An executor that has given the layers their first values."""
    exe = static.Executor()
    exe.run(static.default_startup_program())
    return exe
