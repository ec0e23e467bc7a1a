"""Sums over all workers, and the ratio of two of them."""

from typing import Any

import numpy as np

from fleetx.roles import identity, started
from fleetx.roles.collectives import util


def total(numbers: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The sums of all workers; all of them must ask, also one that counted nothing."""
    mine = np.asarray(numbers, np.float64)
    if started() and identity().worker_num > 1:
        return np.asarray(util.all_reduce(mine), np.float64)
    return mine


def ratio(amount: float, count: float) -> float:
    """Amount per count; not a number where nothing was counted."""
    return float(amount) / float(count) if count else float("nan")


def number(value: Any) -> float:
    """A number, also where it comes as an array; the counts in an array are added up."""
    return float(np.asarray(value, np.float64).sum())
