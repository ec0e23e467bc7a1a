"""A trained module as an inference model, in one call."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from fleetx import static
from fleetx.io.files import written
from fleetx.io.inference import save_inference_model

RUNTIME = "fleetx.evaluate.mlserver_runtime.InferenceModel"


def save_for_inference(
    model: nn.Module,
    dirname: str | Path,
    shape: Sequence[int] = (3, 224, 224),
    *,
    input_name: str = "image",
    output_name: str = "scores",
    format: str = "torch",
) -> None:
    """Save ``model.pt2``, which plain torch loads, for batches of any size.

    ``mlserver start dirname`` serves it: its settings lie beside it.

    Args:
        model: the plain module with its weights, on the CPU; it is left as it is.
        dirname: the folder; one worker writes.
        shape: of one input, without the batch.
        input_name: how the signature calls the input.
        output_name: how it calls the output.
        format: "torch", or "onnx" for ``model.onnx`` as well.
    """
    program = static.Program()
    with static.program_guard(program, static.Program()):
        images = static.data(input_name, [None, *shape])
        scores: Any = model(images)
        scores.name = output_name
    save_inference_model(static.Executor(), dirname, [input_name], [scores], program, format=format)
    _settings(Path(dirname))


def _settings(folder: Path) -> None:
    """For MLServer: what it serves, and how; one process, seen from this machine alone."""
    model = {"name": folder.name, "implementation": RUNTIME, "parameters": {"uri": "."}}
    server = {"host": "127.0.0.1", "parallel_workers": 0}
    for name, values in (("model-settings.json", model), ("settings.json", server)):
        with written(folder / name) as beside:
            beside.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
