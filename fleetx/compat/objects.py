"""``paddle.save`` and ``paddle.load``: nests of tensors, in Paddle's pickles."""

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from fleetx import static
from fleetx.compat import modes
from fleetx.compat.files import pickles, tensors
from fleetx.compat.tensors import joined, wrap
from fleetx.torch_internals import tree_map


def save(
    obj: Any, path: Any, protocol: int = 4, use_binary_format: bool = False, **configs: Any
) -> None:
    """Write a state dict, or any nest of tensors, numbers and texts.

    Args:
        obj: what to write.
        path: a file, or a stream to write to.
        protocol: of pickle, 2 to 4.
        use_binary_format: write one tensor in the format of ``save_persistables``.
        configs: ``pickle_protocol``, the older name of ``protocol``.
    """
    protocol = int(configs.pop("pickle_protocol", protocol))
    if configs:
        raise TypeError(f"paddle.save() has no option {', '.join(configs)}")
    if not 1 < protocol < 5:
        raise ValueError(f"paddle.save(protocol={protocol}): 2, 3 or 4 is meant.")
    if isinstance(obj, (static.Program, torch.nn.Module)):
        raise ValueError(
            f"paddle.save() writes values, and {type(obj).__name__} is code; save its "
            "state_dict(), or the program with paddle.static.save()."
        )
    if use_binary_format:
        tensors.write(Path(path), _tensor(obj))
        return
    if hasattr(path, "write"):
        path.write(pickles.packed(_written(obj), protocol))
        return
    if not Path(path).name or str(path).endswith("/"):
        raise ValueError(f"paddle.save(path={str(path)!r}) ends in no name of a file; add one.")
    pickles.write(path, _written(obj), protocol)


def _tensor(obj: Any) -> torch.Tensor:
    return obj.detach() if isinstance(obj, torch.Tensor) else torch.as_tensor(np.asarray(obj))


def _written(obj: Any) -> Any:
    """A state dict as Paddle writes it, or a nest in which a tensor is its name and its array."""
    if isinstance(obj, dict) and obj and _is_state(obj):
        named = {k: _name(k, v) for k, v in obj.items() if isinstance(v, torch.Tensor)}
        return {**{k: _plain(v) for k, v in obj.items()}, pickles.STRUCTURED: named}
    return _nest(obj)


def _is_state(obj: dict[Any, Any]) -> bool:
    return all(isinstance(key, str) for key in obj) and any(
        isinstance(value, torch.Tensor) for value in obj.values()
    )


def _name(key: str, value: torch.Tensor) -> str:
    return str(vars(value).get("paddle_name", key))


def _plain(value: Any) -> Any:
    return _array(value) if isinstance(value, torch.Tensor) else _nest(value)


def whole(value: Any) -> Any:
    """A nest whose tensors are whole; all workers that have parts of one call it."""
    return tree_map(lambda leaf: joined(leaf) if isinstance(leaf, torch.Tensor) else leaf, value)


def _array(value: torch.Tensor) -> np.ndarray:
    value = joined(value.detach()).as_subclass(torch.Tensor).cpu()
    found: np.ndarray = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return found


def _nest(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (_name("generated_tensor_0", value), _array(value))
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    if isinstance(value, dict):
        return {key: _nest(entry) for key, entry in value.items()}
    if type(value) in {list, tuple, set}:
        return type(value)(_nest(entry) for entry in value)
    return value


def load(path: Any, **configs: Any) -> Any:
    """Read what ``save`` wrote, here or in Paddle; nothing in the file is run.

    Args:
        path: the file, or a stream.
        configs: ``return_numpy``: arrays instead of tensors; ``keep_name_table``: keep the names
            of parameters beside a state dict; ``model_filename`` and ``params_filename`` are
            refused.
    """
    numpy = bool(configs.pop("return_numpy", modes.is_static()))
    table = bool(configs.pop("keep_name_table", False))
    if given := sorted(configs):
        raise TypeError(
            f"paddle.load({given[0]}=...) reads models of Paddle's executor, which are not here; "
            "load the weights alone."
        )
    found = _read(path)
    if isinstance(found, dict) and not table:
        found.pop(pickles.STRUCTURED, None)
    return found if numpy else _tensors(found)


def _read(path: Any) -> Any:
    if hasattr(path, "read"):
        stream: BinaryIO = path
        return pickles.tidied(pickles.read_stream(stream))
    file = Path(path)
    if not file.is_file() and Path(f"{path}.pdparams").is_file():
        file = Path(f"{path}.pdparams")
    if not file.is_file():
        raise ValueError(f"paddle.load(): there is no file {str(path)!r}.")
    if tensors.is_tensor_file(file):
        found = tensors.read_all(file)
        return found[0].numpy() if len(found) == 1 else [each.numpy() for each in found]
    return pickles.read(file)


def _tensors(found: Any) -> Any:
    if isinstance(found, np.ndarray) and found.dtype != object:
        return wrap(torch.as_tensor(found))
    if isinstance(found, dict):
        return {key: _tensors(value) for key, value in found.items()}
    if type(found) in {list, tuple}:
        return type(found)(_tensors(value) for value in found)
    return found


def save_dygraph(state_dict: dict[str, Any], model_path: str) -> None:
    """Write ``<model_path>.pdparams`` of a model, ``.pdopt`` of an optimizer."""
    ending = ".pdopt" if _is_optimizer(state_dict) else ".pdparams"
    save(state_dict, f"{model_path}{ending}")


def _is_optimizer(state: dict[str, Any]) -> bool:
    marks = ("_moment", "_velocity", "_beta1_pow", "LR_Scheduler", "global_step", "_mean_square")
    return any(mark in key for key in state for mark in marks) or not state


def load_dygraph(model_path: str, **configs: Any) -> tuple[Any, Any]:
    """The states of a model and of its optimizer, which may be None."""
    prefix = str(model_path).removesuffix(".pdparams").removesuffix(".pdopt")
    params, opt = Path(f"{prefix}.pdparams"), Path(f"{prefix}.pdopt")
    if not params.is_file() and not opt.is_file():
        raise ValueError(f"load_dygraph(): there is no {params} and no {opt}.")
    return (
        load(params, **configs) if params.is_file() else None,
        load(opt, **configs) if opt.is_file() else None,
    )
