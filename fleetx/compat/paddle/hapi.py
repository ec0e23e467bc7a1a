"""``paddle.Model``: training in one call."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917, T201

from typing import Any

import numpy as np
import torch

from fleetx.compat import objects
from fleetx.compat.paddle.callbacks import Callbacks
from fleetx.compat.paddle.io.reader import DataLoader
from fleetx.compat.paddle.nn.layer.layers import Layer
from fleetx.compat.paddle.tensor.creation import to_tensor


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


class Model:
    """A layer with an optimizer, a loss and metrics."""

    def __init__(self, network: Layer, inputs: Any = None, labels: Any = None) -> None:
        self.network = network
        self._labels = max(1, len(_list(labels)))
        self._optimizer: Any = None
        self._loss: Any = None
        self._metrics: list[Any] = []
        self.stop_training = False
        """Callbacks set it to end training behind an epoch."""

    def prepare(
        self, optimizer: Any = None, loss: Any = None, metrics: Any = None, amp_configs: Any = None
    ) -> None:
        """What to train with."""
        if amp_configs is not None:
            raise ValueError(
                "Model.prepare(amp_configs=…) is not here; use paddle.amp.auto_cast in a loop of "
                "your own, or strategy.amp with fleet."
            )
        self._optimizer, self._loss, self._metrics = optimizer, loss, _list(metrics)

    def parameters(self) -> list[Any]:
        """All parameters."""
        return self.network.parameters()

    def _step(self, inputs: Any, labels: Any) -> tuple[Any, Any]:
        given = [to_tensor(x) if not isinstance(x, torch.Tensor) else x for x in _list(inputs)]
        wanted = [to_tensor(x) if not isinstance(x, torch.Tensor) else x for x in _list(labels)]
        made = self.network(*given)
        loss = self._loss(*_list(made), *wanted) if self._loss is not None and wanted else None
        for metric in self._metrics if wanted else []:
            metric.update(*_list(metric.compute(*_list(made), *wanted)))
        return made, loss

    def train_batch(self, inputs: Any, labels: Any = None, update: bool = True) -> list[Any]:
        """One step; returns the loss."""
        self.network.train()
        _, loss = self._step(inputs, labels)
        loss.backward()
        if update:
            self._optimizer.step()
            self._optimizer.clear_grad()
        return [loss.numpy()]

    def eval_batch(self, inputs: Any, labels: Any = None) -> list[Any]:
        """The loss of a batch."""
        self.network.eval()
        with torch.no_grad():
            _, loss = self._step(inputs, labels)
        return [] if loss is None else [loss.numpy()]

    def predict_batch(self, inputs: Any) -> list[Any]:
        """Outputs of a batch."""
        self.network.eval()
        with torch.no_grad():
            return [part.numpy() for part in _list(self._step(inputs, None)[0])]

    def _loader(
        self, data: Any, batch_size: int, shuffle: bool, workers: int, drop_last: bool = False
    ) -> Any:
        if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
            return DataLoader(
                data,
                batch_size=batch_size,
                shuffle=shuffle,
                drop_last=drop_last,
                num_workers=workers,
            )
        return data

    def _split(self, batch: Any) -> tuple[list[Any], list[Any]]:
        parts = _list(batch)
        return parts[: -self._labels], parts[-self._labels :]

    def fit(
        self,
        train_data: Any = None,
        eval_data: Any = None,
        batch_size: int = 1,
        epochs: int = 1,
        eval_freq: int = 1,
        log_freq: int = 10,
        save_dir: str | None = None,
        save_freq: int = 1,
        verbose: int = 2,
        drop_last: bool = False,
        shuffle: bool = True,
        num_workers: int = 0,
        callbacks: Any = None,
    ) -> None:
        """Train over a data set, or a loader, so many times."""
        loader = self._loader(train_data, batch_size, shuffle, num_workers, drop_last)
        params = self._params(loader, batch_size, epochs, verbose)
        told = Callbacks(
            self, callbacks, params, log_freq=log_freq, save_dir=save_dir, save_freq=save_freq
        )
        self.stop_training = False
        told.call("on_train_begin", {})
        logs: dict[str, Any] = {}
        for epoch in range(epochs):
            logs = self._epoch(epoch, loader, told)
            if eval_data is not None and (epoch + 1) % eval_freq == 0:
                tests = self._loader(eval_data, batch_size, False, num_workers)
                self._tested(tests, told)
            if self.stop_training:
                break
        told.call("on_train_end", logs)

    def _params(self, loader: Any, batch_size: int, epochs: int, verbose: int) -> dict[str, Any]:
        steps = len(loader) if hasattr(loader, "__len__") else None
        names = ["loss", *(name for metric in self._metrics for name in _list(metric.name()))]
        settings = {"batch_size": batch_size, "epochs": epochs, "steps": steps}
        return {**settings, "verbose": verbose, "metrics": names}

    def _epoch(self, epoch: int, loader: Any, told: Callbacks) -> dict[str, Any]:
        for metric in self._metrics:
            metric.reset()
        logs: dict[str, Any] = {}
        told.call("on_epoch_begin", epoch, logs)
        for step, batch in enumerate(loader):
            told.call("on_train_batch_begin", step, logs)
            inputs, labels = self._split(batch)
            losses = self.train_batch(inputs, labels)
            logs = {**self._logs(losses), "step": step, "batch_size": len(inputs[0])}
            told.call("on_train_batch_end", step, logs)
        told.call("on_epoch_end", epoch, logs)
        return logs

    def _logs(self, losses: list[Any]) -> dict[str, Any]:
        """The loss, and the metrics so far."""
        found: dict[str, Any] = {"loss": [float(np.mean(losses))]} if losses else {}
        for metric in self._metrics:
            names, values = _list(metric.name()), _list(metric.accumulate())
            found.update(zip(names, values, strict=True))
        return found

    def evaluate(
        self,
        eval_data: Any,
        batch_size: int = 1,
        log_freq: int = 10,
        verbose: int = 2,
        num_workers: int = 0,
        callbacks: Any = None,
    ) -> dict[str, Any]:
        """Loss and metrics of a data set."""
        loader = self._loader(eval_data, batch_size, False, num_workers)
        params = self._params(loader, batch_size, 1, verbose)
        return self._tested(loader, Callbacks(self, callbacks, params, log_freq=log_freq))

    def _tested(self, loader: Any, told: Callbacks) -> dict[str, Any]:
        for metric in self._metrics:
            metric.reset()
        told.call("on_eval_begin", {})
        losses: list[float] = []
        for step, batch in enumerate(loader):
            told.call("on_eval_batch_begin", step, {})
            found = self.eval_batch(*self._split(batch))
            losses += [float(found[0])] if found else []
            told.call("on_eval_batch_end", step, self._logs(losses[-1:]))
        result = self._logs(losses)
        told.call("on_eval_end", result)
        return result

    def predict(
        self,
        test_data: Any,
        batch_size: int = 1,
        num_workers: int = 0,
        stack_outputs: bool = False,
        verbose: int = 1,
        callbacks: Any = None,
    ) -> list[Any]:
        """Outputs of a data set."""
        loader = self._loader(test_data, batch_size, False, num_workers)
        params = self._params(loader, batch_size, 1, 0)
        told = Callbacks(self, callbacks, params)
        told.call("on_predict_begin", {})
        made = []
        for step, batch in enumerate(loader):
            told.call("on_predict_batch_begin", step, {})
            made.append(self.predict_batch(_list(batch)[:1]))
            told.call("on_predict_batch_end", step, {"step": step})
        told.call("on_predict_end", {})
        columns = [list(column) for column in zip(*made, strict=True)]
        return [np.concatenate(column) for column in columns] if stack_outputs else columns

    def summary(self, input_size: Any = None, dtype: Any = None) -> Any:
        """How many parameters the network has."""
        return summary(self.network, input_size, dtype)

    def save(self, path: str, training: bool = True) -> None:
        """Write parameters, and the optimizer's state."""
        objects.save(self.network.state_dict(), f"{path}.pdparams")
        if training and self._optimizer is not None:
            objects.save(self._optimizer.state_dict(), f"{path}.pdopt")

    def load(self, path: str, skip_mismatch: bool = False, reset_optimizer: bool = False) -> None:
        """Read parameters back."""
        self.network.set_state_dict(objects.load(f"{path}.pdparams"))


def summary(net: Any, input_size: Any = None, dtypes: Any = None, input: Any = None) -> Any:
    """How many parameters a layer has."""
    count = sum(int(p.numel()) for p in net.parameters())
    moved = sum(int(p.numel()) for p in net.parameters() if not p.stop_gradient)
    print(f"{net}\nTotal params: {count:,}\nTrainable params: {moved:,}")
    return {"total_params": count, "trainable_params": moved}
