"""Saving and loading: values of programs as safetensors, models as torch.export archives."""

from fleetx.io.checkpoints import (
    checkpoint_weights,
    finish_checkpoints,
    load_checkpoint,
    save_checkpoint,
    set_checkpoints_aside,
)
from fleetx.io.inference import check_format, load_inference_model, save_inference_model
from fleetx.io.persistables import (
    load_params,
    load_persistables,
    load_vars,
    save_params,
    save_persistables,
    save_vars,
)
from fleetx.io.program_state import load, load_program_state, save, set_program_state

__all__ = [
    "check_format",
    "checkpoint_weights",
    "finish_checkpoints",
    "load",
    "load_checkpoint",
    "load_inference_model",
    "load_params",
    "load_persistables",
    "load_program_state",
    "load_vars",
    "save",
    "save_checkpoint",
    "save_inference_model",
    "save_params",
    "save_persistables",
    "save_vars",
    "set_checkpoints_aside",
    "set_program_state",
]
