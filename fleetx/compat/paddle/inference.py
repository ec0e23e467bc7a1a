"""``paddle.inference``: predictors of Paddle 2 over saved models."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fleetx.compat.models import load_inference_model
from fleetx.compat.paddle.fluid.predictors import AnalysisConfig
from fleetx.compat.running import Executor

__all__ = ["Config", "Predictor", "PredictorPool", "Tensor", "create_predictor", "get_version"]

_BEHIND = (".pdmodel", ".json", "/__model__")


class Config(AnalysisConfig):
    """Where a model is, and where it shall run."""

    def set_prog_file(self, path: str) -> None:
        """Another model."""
        self.model_dir = str(path)

    def prog_file(self) -> str:
        """Where the model is."""
        return self.model_dir

    def use_gpu(self) -> bool:
        """Whether it shall run on a card."""
        return hasattr(self.place, "index")


class Tensor:
    """One input or output of a predictor, by name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._value: Any = None

    def name(self) -> str:
        """Its name."""
        return self._name

    def reshape(self, shape: Sequence[int]) -> None:
        """Say which sizes come; those of the array are taken."""

    def copy_from_cpu(self, data: Any) -> None:
        """Take an array."""
        self._value = np.asarray(data)

    share_external_data = copy_from_cpu

    def copy_to_cpu(self) -> Any:
        """Give the array."""
        if self._value is None:
            raise RuntimeError(f"{self._name!r} has no value; call predictor.run() first.")
        return self._value

    def shape(self) -> list[int]:
        """The sizes of the array."""
        return [] if self._value is None else list(self._value.shape)


class Predictor:
    """Runs a saved model on named arrays."""

    def __init__(self, config: Config) -> None:
        self._executor = Executor(config.place)
        path = config.model_dir
        for ending in _BEHIND:
            path = path.removesuffix(ending)
        self._program, feeds, self._fetches = load_inference_model(path, self._executor)
        self._inputs = {name: Tensor(name) for name in feeds}
        self._outputs = {fetch.name: Tensor(fetch.name) for fetch in self._fetches}

    def get_input_names(self) -> list[str]:
        """The names of the inputs."""
        return list(self._inputs)

    def get_output_names(self) -> list[str]:
        """The names of the outputs."""
        return list(self._outputs)

    def get_input_handle(self, name: str) -> Tensor:
        """An input by name."""
        return self._inputs[name]

    def get_output_handle(self, name: str) -> Tensor:
        """An output by name."""
        return self._outputs[name]

    def run(self, inputs: Sequence[Any] | None = None) -> Any:
        """Compute the outputs; they are returned where the inputs are given here."""
        for held, value in zip(self._inputs.values(), inputs or (), strict=False):
            held.copy_from_cpu(value)
        feed = {name: held.copy_to_cpu() for name, held in self._inputs.items()}
        found = self._executor.run(self._program, feed, self._fetches)
        for held, value in zip(self._outputs.values(), found, strict=True):
            held.copy_from_cpu(value)
        return found if inputs is not None else True

    def clear_intermediate_tensor(self) -> None:
        """Nothing is kept between runs."""

    try_shrink_memory = clear_intermediate_tensor


class PredictorPool:
    """Several predictors of one model."""

    def __init__(self, config: Config, size: int = 1) -> None:
        self._made = [Predictor(config) for _ in range(size)]

    def retrive(self, index: int) -> Predictor:
        """One of them; the spelling is Paddle's."""
        return self._made[index]


def create_predictor(config: Config) -> Predictor:
    """A predictor of a model that ``save_inference_model`` wrote."""
    return Predictor(config)


def get_version() -> str:
    """What Paddle says of itself."""
    return "version: 2.4.2"
