"""Predictors of Paddle 1 over saved models."""

from enum import Enum
from typing import Any

import numpy as np

from fleetx.compat.models import load_inference_model
from fleetx.compat.notes import note
from fleetx.compat.places import CPUPlace, CUDAPlace
from fleetx.compat.running import Executor


class PaddleDType(Enum):
    """The format of a tensor."""

    FLOAT32 = "float32"
    INT64 = "int64"
    INT32 = "int32"
    FLOAT16 = "float16"
    UINT8 = "uint8"
    INT8 = "int8"


class PaddleBuf(list[Any]):
    """The numbers of a tensor, in a row."""

    def float_data(self) -> list[float]:
        """As floating numbers."""
        return [float(value) for value in self]

    def int64_data(self) -> list[int]:
        """As whole numbers."""
        return [int(value) for value in self]

    int32_data = int64_data


class PaddleTensor:
    """What goes into a predictor and comes out of it."""

    def __init__(self, data: Any = None, name: str = "", lod: Any = None) -> None:
        array = np.zeros(0, "float32") if data is None else np.asarray(data)
        self.name, self.lod = name, lod or []
        self.shape, self.dtype = list(array.shape), PaddleDType(array.dtype.name)
        self.data = PaddleBuf(array.reshape(-1).tolist())

    def as_ndarray(self) -> np.ndarray:
        """The numbers in their shape."""
        return np.asarray(list(self.data), self.dtype.value).reshape(self.shape)


class AnalysisConfig:
    """Where a model is, and where it shall run."""

    def __init__(self, model_dir: str = "", params_file: str | None = None) -> None:
        self.model_dir, self.params_file = str(model_dir), params_file
        self.place: Any = CPUPlace()

    def enable_use_gpu(self, memory_pool_init_size_mb: int = 100, device_id: int = 0) -> None:
        """Run on a card."""
        self.place = CUDAPlace(device_id)

    def disable_gpu(self) -> None:
        """Run on the processor."""
        self.place = CPUPlace()

    def set_model(self, model_dir: str, params_file: str | None = None) -> None:
        """Another model."""
        self.model_dir, self.params_file = model_dir, params_file

    def __getattr__(self, name: str) -> Any:
        if not name.startswith(("switch_", "enable_", "disable_", "set_")):
            raise AttributeError(name)

        def tuned(*args: Any, **kwargs: Any) -> None:
            note(f"AnalysisConfig.{name}", "it tuned Paddle's predictor and changes no result.")

        return tuned


class PaddlePredictor:
    """Runs a model on lists of tensors."""

    def __init__(self, config: AnalysisConfig) -> None:
        self._executor = Executor(config.place)
        path = config.model_dir.removesuffix(".pdmodel").removesuffix("/__model__")
        found = load_inference_model(path, self._executor)
        self._program, self._feeds, self._fetches = found

    def get_input_names(self) -> list[str]:
        """The names of the inputs."""
        return list(self._feeds)

    def get_output_names(self) -> list[str]:
        """The names of the outputs."""
        return [fetch.name for fetch in self._fetches]

    def run(self, inputs: list[PaddleTensor]) -> list[PaddleTensor]:
        """The outputs for these inputs, by name or in their order."""
        named = all(tensor.name in self._feeds for tensor in inputs)
        keys = [tensor.name for tensor in inputs] if named else self._feeds
        feed = {key: t.as_ndarray() for key, t in zip(keys, inputs, strict=True)}
        found = self._executor.run(self._program, feed, self._fetches)
        pairs = zip(self.get_output_names(), found, strict=True)
        return [PaddleTensor(np.asarray(value), name) for name, value in pairs]


def create_paddle_predictor(config: AnalysisConfig) -> PaddlePredictor:
    """A predictor of a model that ``save_inference_model`` wrote."""
    return PaddlePredictor(config)
