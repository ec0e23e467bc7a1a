"""What a program is trained for."""

from dataclasses import dataclass


@dataclass
class Objective:
    """That every run of a program ends in an update.

    How it is done is the business of ``fleetx.static.run``, which keeps its own kind of objective
    with the program.
    """

    loss: str
    """The name of the variable that is made small."""
    trained: tuple[str, ...]
    """Names of the parameters that move."""
