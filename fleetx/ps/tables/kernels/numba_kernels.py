"""The inner loops of tables compiled by numba; ``numpy_kernels`` says what each of them does."""

from fleetx.ps.tables.kernels.numba_batches import dedupe, pick, pool_rows, sum_rows
from fleetx.ps.tables.kernels.numba_dense import (
    all_finite,
    dense_adagrad,
    dense_adam,
    dense_rmsprop,
    dense_sgd,
)
from fleetx.ps.tables.kernels.numba_index import (
    BEARS_DENSE,
    expand,
    find,
    insert,
    meet,
    remove,
)
from fleetx.ps.tables.kernels.numba_rows import (
    adagrad,
    adam,
    add,
    clear,
    copy_in,
    copy_out,
    differences,
    fill_uniform,
    find_differing,
    gather,
    renew,
    sgd,
)

__all__ = [
    "BEARS_DENSE",
    "adagrad",
    "adam",
    "add",
    "all_finite",
    "clear",
    "copy_in",
    "copy_out",
    "dedupe",
    "dense_adagrad",
    "dense_adam",
    "dense_rmsprop",
    "dense_sgd",
    "differences",
    "expand",
    "fill_uniform",
    "find",
    "find_differing",
    "gather",
    "insert",
    "meet",
    "pick",
    "pool_rows",
    "remove",
    "renew",
    "sgd",
    "sum_rows",
]
