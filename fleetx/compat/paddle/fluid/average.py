"""``paddle.fluid.average``."""

from typing import Any

import numpy as np


class WeightedAverage:
    """The mean of values with weights, such as losses of batches of different sizes."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.numerator: Any = None
        self.denominator: Any = None

    def add(self, value: Any, weight: Any) -> None:
        """Count a value; an array counts number by number."""
        given = np.asarray(value) * weight
        self.numerator = given if self.numerator is None else self.numerator + given
        self.denominator = weight if self.denominator is None else self.denominator + weight

    def eval(self) -> Any:
        """The mean so far."""
        if self.numerator is None or not np.all(self.denominator):
            raise ValueError("There is no data to be averaged in WeightedAverage; add() some.")
        return self.numerator / self.denominator
