"""``paddle.jit.api``: save a layer as a program, and load it."""

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from fleetx import static
from fleetx.compat import models, modes
from fleetx.compat.dtypes import dtype_of
from fleetx.compat.notes import note
from fleetx.compat.paddle.device import current_device
from fleetx.compat.paddle.nn.layer.layers import Layer
from fleetx.compat.paddle.static.input import InputSpec
from fleetx.compat.tensors import wrap


def to_static(
    function: Any = None,
    input_spec: Any = None,
    build_strategy: Any = None,
    backend: Any = None,
    **kwargs: Any,
) -> Any:
    """A layer or function with the inputs that it is saved with; it computes as before."""
    for name in kwargs:
        note(f"to_static({name}=…)", "functions stay as they are until they are saved.")

    def decorated(inner: Any) -> Any:
        if isinstance(inner, torch.nn.Module):
            vars(inner)["_input_spec"] = input_spec
        else:
            inner._input_spec = input_spec
        return inner

    return decorated if function is None else decorated(function)


def not_to_static(func: Any = None) -> Any:
    """The function as it is."""
    return func if func is not None else lambda inner: inner


class ProgramTranslator:
    """Whether functions become programs; they compute the same either way."""

    def enable(self, enable_to_static: bool) -> None:
        """Nothing to do."""

    @classmethod
    def get_instance(cls) -> "ProgramTranslator":
        """The one of this process."""
        return cls()


def _specs(layer: Any, given: Any) -> list[Any]:
    kept = vars(layer).get("_input_spec") or getattr(layer.forward, "_input_spec", None)
    found = given if given is not None else kept
    if found is None:
        raise ValueError(
            "paddle.jit.save() needs the inputs of a layer; give "
            "input_spec=[paddle.static.InputSpec([None, 8], 'float32')], or call to_static() with "
            "it before."
        )
    names = [n for n in inspect.signature(layer.forward).parameters if n != "self"]
    return [_named(spec, names, at) for at, spec in enumerate(found)]


def _named(spec: Any, names: Sequence[str], at: int) -> InputSpec:
    made = spec if isinstance(spec, InputSpec) else InputSpec.from_tensor(spec)
    own = names[at] if at < len(names) else f"input_{at}"
    return InputSpec(made.shape, made.dtype, made.name or own)


def save(layer: Any, path: str, input_spec: Any = None, **configs: Any) -> None:
    """Write a layer as a program with its weights, in evaluation mode."""
    for name in configs:
        note(f"paddle.jit.save({name}=…)", "it is about Paddle's own format of models.")
    program, feeds, fetches = recorded(layer, _specs(layer, input_spec))
    models.save_2(path, feeds, fetches, static.Executor(current_device()), program=program)


def recorded(layer: Any, specs: Sequence[InputSpec]) -> tuple[static.Program, list[Any], list[Any]]:
    """A layer as a program in evaluation mode, with its inputs and outputs."""
    was = layer.training
    layer.eval()
    try:
        with modes.dygraph_guard(), static.program_guard(static.Program(), static.Program()):
            feeds = [
                static.data(
                    str(spec.name), [None if s < 0 else s for s in spec.shape], dtype_of(spec.dtype)
                )
                for spec in specs
            ]
            made = layer(*feeds)
            fetches = list(made) if isinstance(made, (list, tuple)) else [made]
            return static.default_main_program(), feeds, fetches
    finally:
        layer.train(was)


class TranslatedLayer(Layer):
    """A program that is called as the layer that it was."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._executor = static.Executor(current_device())
        loaded = models.load_inference_model(path, self._executor)
        self._program, self._feeds, self._fetches = loaded

    def program(self, method_name: str = "forward") -> Any:
        """The program."""
        return self._program

    @override
    def forward(self, *inputs: Any) -> Any:
        given = {
            name: value.detach().cpu().as_subclass(torch.Tensor).numpy()
            if isinstance(value, torch.Tensor)
            else np.asarray(value)
            for name, value in zip(self._feeds, inputs, strict=True)
        }
        found = self._executor.run(self._program, feed=given, fetch_list=self._fetches)
        made = [wrap(torch.as_tensor(np.array(part))) for part in found]
        return made[0] if len(made) == 1 else made


def load(path: str, **configs: Any) -> TranslatedLayer:
    """A layer that ``paddle.jit.save`` wrote."""
    for name in configs:
        note(f"paddle.jit.load({name}=…)", "it is about Paddle's own format of models.")
    return TranslatedLayer(path)
