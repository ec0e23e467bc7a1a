"""``paddle.static.io``."""

from fleetx.compat.models import load_inference_model, normalize_program
from fleetx.compat.models import save_2 as save_inference_model
from fleetx.compat.saving import (
    is_parameter,
    is_persistable,
    load,
    load_program_state,
    load_vars,
    save,
    save_vars,
    set_program_state,
)

__all__ = [
    "is_parameter",
    "is_persistable",
    "load",
    "load_inference_model",
    "load_program_state",
    "load_vars",
    "normalize_program",
    "save",
    "save_inference_model",
    "save_vars",
    "set_program_state",
]
