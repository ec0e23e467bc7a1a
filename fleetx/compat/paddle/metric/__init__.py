"""``paddle.metric``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {"paddle.metric.metrics": "Metric Accuracy Precision Recall Auc accuracy"},
    modules=["metrics"],
)
