"""Metrics over all workers."""

from fleetx.metrics.auc import AUC, auc

__all__ = ["AUC", "auc"]
