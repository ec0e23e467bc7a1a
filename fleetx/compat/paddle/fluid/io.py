"""``paddle.fluid.io``."""

from fleetx.compat.batches import batch
from fleetx.compat.loaders import PyReader
from fleetx.compat.models import load_inference_model, save_inference_model
from fleetx.compat.paddle.io.reader import DataLoader
from fleetx.compat.paddle.reader.decorator import (
    ComposeNotAligned,
    buffered,
    cache,
    chain,
    compose,
    firstn,
    map_readers,
    multiprocess_reader,
    shuffle,
    xmap_readers,
)
from fleetx.compat.saving import (
    get_parameter_value,
    get_parameter_value_by_name,
    is_belong_to_optimizer,
    is_parameter,
    is_persistable,
    load,
    load_params,
    load_persistables,
    load_program_state,
    load_vars,
    save,
    save_params,
    save_persistables,
    save_vars,
    set_program_state,
)

__all__ = [
    "ComposeNotAligned",
    "DataLoader",
    "PyReader",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "firstn",
    "get_parameter_value",
    "get_parameter_value_by_name",
    "is_belong_to_optimizer",
    "is_parameter",
    "is_persistable",
    "load",
    "load_inference_model",
    "load_params",
    "load_persistables",
    "load_program_state",
    "load_vars",
    "map_readers",
    "multiprocess_reader",
    "save",
    "save_inference_model",
    "save_params",
    "save_persistables",
    "save_vars",
    "set_program_state",
    "shuffle",
    "xmap_readers",
]
