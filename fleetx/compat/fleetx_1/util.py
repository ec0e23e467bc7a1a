"""``fleetx.util``: programs in folders."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fleetx.compat.files import tensors
from fleetx.io.values import values
from fleetx.roles.worker_util import util as _util


def _name(variable: Any) -> str:
    return variable if isinstance(variable, str) else str(variable.name)


def save_program(  # noqa: PLR0917 (the order of FleetX)
    main_prog: Any = None,
    startup_prog: Any = None,
    program_path: str = ".",
    input_list: Sequence[Any] = (),
    hidden_vars: Sequence[Any] = (),
    loss: Any = None,
    generator_info: Any = None,
    target: Any = None,
    checkpoints: Sequence[Any] | None = None,
    learning_rate: Any = None,
) -> None:
    """Write what a program is made of: its operators as text, its values, and a description.

    FleetX 1 read such folders as models of its own; here models are code, and the folder is for
    people and for ``load_vars``.
    """
    folder = Path(program_path)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "main_program").write_text(str(main_prog), encoding="utf-8")
    described = {
        "inputs": [_name(entry) for entry in input_list],
        "hidden": [_name(entry) for entry in hidden_vars],
        "loss": None if loss is None else _name(loss),
        "target": [_name(entry) for entry in (target or [])],
        "checkpoints": [_name(entry) for entry in (checkpoints or [])],
        "learning_rate": None if learning_rate is None else str(learning_rate),
    }
    text = json.dumps(described, indent=2)
    (folder / "model_info.json").write_text(text, encoding="utf-8")
    for name, value in values(main_prog).items():
        tensors.write(folder / name, value)


def __getattr__(name: str) -> Any:
    # ``fleet.util`` of today has the same name: get_file_shard, all_reduce, barrier.
    return getattr(_util, name)
