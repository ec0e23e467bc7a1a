"""``paddle.distributed.fleet.metrics``: numbers of all workers together."""

from typing import Any

import numpy as np
from torch import Tensor

from fleetx import metrics, roles
from fleetx.record.variable import Variable
from fleetx.static.run.scope import global_scope


def _array(given: Any, scope: Any = None) -> Any:
    """The numbers of an array, a tensor, a variable or a name."""
    if isinstance(given, str | Variable):
        name = given if isinstance(given, str) else given.name
        return np.array((scope or global_scope()).find_var(name).get_tensor())
    if isinstance(given, Tensor):
        return given.detach().cpu().numpy()
    return np.asarray(given)


def _reduced(given: Any, scope: Any, mode: str) -> Any:
    array = _array(given, scope)
    return roles.util.all_reduce(array, mode) if roles.started() else array


def sum(input: Any, scope: Any = None, util: Any = None) -> Any:
    """The sum over all workers."""
    return _reduced(input, scope, "sum")


def max(input: Any, scope: Any = None, util: Any = None) -> Any:
    """The largest value of all workers."""
    return _reduced(input, scope, "max")


def min(input: Any, scope: Any = None, util: Any = None) -> Any:
    """The smallest value of all workers."""
    return _reduced(input, scope, "min")


def auc(stat_pos: Any, stat_neg: Any, scope: Any = None, util: Any = None) -> float:
    """The area under the curve, of buckets of positive and negative samples."""
    return float(metrics.auc(_array(stat_pos, scope).ravel(), _array(stat_neg, scope).ravel()))


def acc(correct: Any, total: Any, scope: Any = None, util: Any = None) -> float:
    """The share of correct samples."""
    return _ratio(correct, total, scope)


def mae(abserr: Any, total_ins_num: Any, scope: Any = None, util: Any = None) -> float:
    """The mean absolute error."""
    return _ratio(abserr, total_ins_num, scope)


def mse(sqrerr: Any, total_ins_num: Any, scope: Any = None, util: Any = None) -> float:
    """The mean square error."""
    return _ratio(sqrerr, total_ins_num, scope)


def rmse(sqrerr: Any, total_ins_num: Any, scope: Any = None, util: Any = None) -> float:
    """The root of the mean square error."""
    return float(np.sqrt(_ratio(sqrerr, total_ins_num, scope)))


def _ratio(amount: Any, count: Any, scope: Any) -> float:
    above = np.asarray(_reduced(np.asarray(_array(amount, scope), dtype=float), None, "sum"))
    below = np.asarray(_reduced(np.asarray(_array(count, scope), dtype=float), None, "sum"))
    return float(above.sum() / below.sum()) if below.sum() else 0.0
