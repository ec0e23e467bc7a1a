"""Numbers of a run for trackers of experiments: TensorBoard, Weights & Biases, MLflow, your own."""

from fleetx.tracking.known_trackers import MLflow, TensorBoard, WandB
from fleetx.tracking.tracker import Tracker

__all__ = ["MLflow", "TensorBoard", "Tracker", "WandB"]
