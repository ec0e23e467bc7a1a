"""Metrics over all workers.

Why not torchmetrics: these count fillers out of uneven last batches, the area under the curve is
exact without a copy of every score, and old scripts call them by Paddle's names.
`fleet.gather_for_metrics` serves the metrics of other libraries.
"""

from fleetx.metrics.accuracy import Accuracy, acc
from fleetx.metrics.auc import AUC, auc
from fleetx.metrics.errors import MAE, MSE, RMSE, mae, mse, rmse

__all__ = ["AUC", "MAE", "MSE", "RMSE", "Accuracy", "acc", "auc", "mae", "mse", "rmse"]
