"""``paddle.distributed.fleet.metrics``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {"paddle.distributed.fleet.metrics.metric": "acc auc mae max min mse rmse sum"},
    modules=["metric"],
)
