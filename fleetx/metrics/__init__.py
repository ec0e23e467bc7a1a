"""Metrics over all workers."""

from fleetx.metrics.accuracy import Accuracy, acc
from fleetx.metrics.auc import AUC, auc
from fleetx.metrics.errors import MAE, MSE, RMSE, mae, mse, rmse

__all__ = ["AUC", "MAE", "MSE", "RMSE", "Accuracy", "acc", "auc", "mae", "mse", "rmse"]
