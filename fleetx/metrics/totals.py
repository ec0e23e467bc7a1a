"""Sums over all workers, and the ratio of two of them."""

from reprlib import repr as shortened
from typing import Any

import numpy as np

from fleetx.expected import WHOLE, expect
from fleetx.roles import identity, started
from fleetx.roles.worker_util import util


def total(numbers: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The sums of all workers; all of them must ask, also one that counted nothing."""
    mine = np.asarray(numbers, np.float64)
    if started() and identity().worker_num > 1:
        return np.asarray(util.all_reduce(mine), np.float64)
    return mine


def ratio(amount: float, count: float) -> float:
    """Amount per count; not a number where nothing was counted."""
    return float(amount) / float(count) if count else float("nan")


def expect_whole(call: str, name: str, value: object) -> None:
    """Refuse what is no whole number."""
    expect(call, name, value, WHOLE)


def number(value: Any, name: str) -> float:
    """A number, also where it comes as an array; the counts in an array are added up."""
    return float(counts(value, name, np.float64).sum())


def counts(value: Any, name: str, dtype: Any) -> np.ndarray[Any, Any]:
    """The array of what a worker counted."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.empty(0, object)
    if not array.size or array.dtype.kind not in "biuf":
        raise TypeError(f"{name}={shortened(value)} counts nothing; pass a number, or an array")
    return array.astype(dtype)
