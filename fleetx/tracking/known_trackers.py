"""The trackers that have a name; each loads its package when it begins, on worker 0 alone."""

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

STEP = "step"
"""The curve over which Weights & Biases draws the others."""


class TensorBoard:
    """Writes event files, each number into its file when it is logged."""

    def __init__(self, folder: str | os.PathLike[str] | None = None, **options: Any) -> None:
        """Options are those of ``torch.utils.tensorboard.SummaryWriter``.

        Args:
            folder: where to write; None is ``runs/TIME_HOST`` in the current folder.
            options: the others.
        """
        self._folder, self._options = folder, options
        self._writer: Any = None

    def begin(self) -> None:
        """Open the files."""
        _load("tensorboard", "tensorboard")
        writer = _load("torch.utils.tensorboard", "tensorboard").SummaryWriter
        folder = None if self._folder is None else os.fspath(self._folder)
        self._writer = writer(folder, **self._options)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write the numbers."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # a process that is killed has lost nothing

    def close(self) -> None:
        """Close the files."""
        self._writer.close()


class WandB:
    """Logs to a run of Weights & Biases: the script's own if it has begun one, or a new one."""

    def __init__(self, **options: Any) -> None:
        """Options are those of ``wandb.init``: ``project``, ``name``, ``mode="offline"``, ..."""
        self._options = options
        self._run: Any = None
        self._is_ours = False

    def begin(self) -> None:
        """Begin the run."""
        wandb = _load("wandb", "wandb")
        self._is_ours = wandb.run is None
        self._run = wandb.init(**self._options) if self._is_ours else wandb.run
        # A run refuses steps that go back, and what a script logs by epochs, or after an
        # evaluation, may come behind what is logged by itself; so the step is a number like others.
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric("*", step_metric=STEP)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the numbers."""
        self._run.log({**values, STEP: step})

    def close(self) -> None:
        """End the run, unless it is the script's."""
        if self._is_ours:
            self._run.finish()


class MLflow:
    """Logs to a run of MLflow: the script's own if it has begun one, or a new one."""

    def __init__(self, **options: Any) -> None:
        """Options are those of ``mlflow.start_run``: ``run_name``, ``experiment_id``, ..."""
        self._options = options
        self._mlflow: Any = None
        self._run_id = ""
        self._is_ours = False

    def begin(self) -> None:
        """Begin the run."""
        self._mlflow = _load("mlflow", "mlflow")
        active = self._mlflow.active_run()
        self._is_ours = active is None
        run = self._mlflow.start_run(**self._options) if self._is_ours else active
        self._run_id = run.info.run_id

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the numbers."""
        self._mlflow.log_metrics(dict(values), step=step, run_id=self._run_id)

    def close(self) -> None:
        """End the run, unless it is the script's, or has been ended."""
        active = self._mlflow.active_run()
        if self._is_ours and active is not None and active.info.run_id == self._run_id:
            self._mlflow.end_run()


NAMES: dict[str, Callable[[], Any]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
"""The names that ``fleet.init(trackers=[...])`` knows."""


def _load(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise ModuleNotFoundError(
            f"fleet.init(trackers=[{package!r}]) needs the package {package}, which is not "
            f"installed on worker 0: pip install {package}, or leave that tracker out.",
            name=package,
        ) from None
