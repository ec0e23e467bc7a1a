"""``QuantizeTranspilerV2``: training for whole numbers, which does not exist here."""

from typing import Any


class QuantizeTranspilerV2:
    """Made as scripts make it, and refused where it would change the program."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._given = (args, kwargs)

    def apply(self, program: Any, startup_program: Any, is_test: bool = False) -> None:
        """Refused: programs are not trained for quantised numbers here."""
        raise NotImplementedError(
            "QuantizeTranspilerV2.apply() trains a program for numbers of 8 bits, which fleetx "
            "does not; leave it out, and quantise the trained model with torchao."
        )
