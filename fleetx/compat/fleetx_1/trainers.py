"""Loops that FleetX 1 wrote for its users."""

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from fleetx import roles
from fleetx.api import servers
from fleetx.compat.places import CPUPlace, cuda_places
from fleetx.compat.programs import default_main_program, default_startup_program
from fleetx.compat.running import Executor

logger = logging.getLogger("fleetx")


def _batches(loader: Any) -> Iterator[Any]:
    return iter(loader() if callable(loader) else loader)


class Trainer:
    """Trains the loss of a model on one place."""

    def __init__(self, place: Any = None) -> None:
        self.place = place
        self.exe = Executor(place)

    def _begin(self) -> None:
        self.exe.run(default_startup_program())
        if roles.started() and servers.has_servers():
            servers.init_worker()

    def fit(
        self,
        model: Any,
        dataloader: Any,
        epoch: int,
        use_dali: bool = False,
        start_step: int = 10,
    ) -> None:
        """Train for so many passes over the data; speeds are told from ``start_step`` on."""
        self._begin()
        for number in range(epoch):
            self._one(model, dataloader, number, start_step)
        self._end()

    def _one(self, model: Any, dataloader: Any, number: int, start_step: int) -> None:
        begun, step = time.perf_counter(), 0
        for step, data in enumerate(_batches(dataloader)):
            if step == start_step:
                begun = time.perf_counter()
            found = self.exe.run(default_main_program(), data, [model.loss.name])
            if step > start_step:
                speed = (step - start_step) / (time.perf_counter() - begun)
                loss = float(np.mean(found[0]))
                print(  # noqa: T201 (what scripts' logs had)
                    f"worker_index: {_worker()}, epoch id: {number}, step{step}, "
                    f"train_loss: {loss:f}, step per second: {speed:f}"
                )
        reset = getattr(dataloader, "reset", None)
        if callable(reset):
            reset()

    def _end(self) -> None:
        if roles.started() and servers.has_servers():
            servers.stop_worker()

    def val(
        self,
        model: Any,
        dataloader: Any,
        target_list: Sequence[str],
        current_epoch: int = -1,
        use_dali: bool = False,
    ) -> dict[str, float]:
        """The mean of targets of the model over the data."""
        if unknown := [name for name in target_list if name not in model.target]:
            raise ValueError(
                f"the model has no target {unknown[0]!r}; it has {', '.join(model.target)}."
            )
        program = model.main_prog.clone(for_test=True)
        fetches = [model.target[name].name for name in target_list]
        rows = [self.exe.run(program, data, fetches) for data in _batches(dataloader)]
        means = {n: float(np.mean([row[at] for row in rows])) for at, n in enumerate(target_list)}
        title = f"Test Epoch {current_epoch}" if current_epoch > 0 else "Test Result"
        print(title, ", ".join(f"{name} = {value}" for name, value in means.items()))  # noqa: T201
        return means

    def benchmark(
        self,
        model: Any,
        dataloader: Any,
        epoch: int,
        use_dali: bool = False,
        start_step: int = 20,
    ) -> float:
        """Steps per second of the last pass."""
        speed = 0.0
        for _ in range(epoch):
            begun, step = time.perf_counter(), -1
            for step, data in enumerate(_batches(dataloader)):
                if step == start_step:
                    begun = time.perf_counter()
                self.exe.run(default_main_program(), data, [model.loss.name])
            speed = max(step - start_step, 1) / (time.perf_counter() - begun)
        return speed

    def quick_benchmark(
        self, model: Any, dataloader: Any, start_step: int = 20, end_step: int = 200
    ) -> float:
        """Steps per second between two steps."""
        begun = time.perf_counter()
        for step, data in enumerate(_batches(dataloader)):
            if step == start_step:
                begun = time.perf_counter()
            self.exe.run(default_main_program(), data, [model.loss.name])
            if step > end_step:
                break
        return (end_step - start_step) / (time.perf_counter() - begun)

    def benchmark_val(
        self, model: Any, dataloader: Any, target_list: Sequence[str], use_dali: bool = False
    ) -> dict[str, float]:
        """The same as ``val``."""
        return self.val(model, dataloader, target_list)


def _worker() -> int:
    return roles.worker_index() if roles.started() else 0


class CPUTrainer(Trainer):
    """On the processor."""

    def __init__(self, calc_line: bool = True) -> None:
        super().__init__(CPUPlace())
        self.calc_line = calc_line


class CPUDatasetTrainer(CPUTrainer):
    """The same over a slot data set."""

    @override
    def fit(
        self,
        model: Any,
        dataloader: Any,
        epoch: int,
        use_dali: bool = False,
        start_step: int = 10,
    ) -> None:
        """Train for so many passes over the data set."""
        self._begin()
        for number in range(epoch):
            begun = time.perf_counter()
            count = self.exe.train_from_dataset(
                default_main_program(),
                dataloader,
                fetch_list=[model.loss],
                fetch_info=[model.loss.name],
                print_period=1000,
            )
            speed = count / (time.perf_counter() - begun)
            print(f"epoch: {number} finished, speed: {speed:f} batches/s")  # noqa: T201
        self._end()


CPUDataLoaderTrainer = CPUDatasetTrainer


class MultiGPUTrainer(Trainer):
    """On the card of this process; fleetrun starts one for each."""

    def __init__(self) -> None:
        super().__init__(cuda_places()[0])
        self.exe.run(default_startup_program())

    @override
    def _begin(self) -> None:
        """The start-up program ran when the trainer was made."""
