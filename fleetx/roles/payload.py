"""Values as bytes and back, without pickle: numbers, text, lists and dicts of them, arrays."""

import json
from typing import Any

import numpy as np
import torch


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """A numeric array of a scalar, a list, an array or a tensor on any device."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        # numpy has no bfloat16; float32 holds every one of its values.
        value = (value.float() if value.dtype is torch.bfloat16 else value).numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise TypeError(
            f"the input {value!r} is not numeric (numpy makes {array.dtype} of it); "
            "pass numbers, lists of equal length, arrays or tensors"
        )
    return array


def encode(value: Any) -> bytes:
    """One line of JSON that says what follows, then the content."""
    if isinstance(value, np.ndarray | torch.Tensor):
        array = as_array(value)
        return _line({"dtype": array.dtype.str, "shape": array.shape}) + array.tobytes()
    if isinstance(value, np.generic):
        value = value.item()
    _check(value)
    return _line({}) + json.dumps(value).encode()


def decode(data: bytes) -> Any:
    """The value that `encode` wrote; tuples come back as lists, tensors as arrays."""
    line, _, content = data.partition(b"\n")
    head = json.loads(line)
    if "dtype" not in head:
        return json.loads(content)
    return np.frombuffer(bytearray(content), dtype=np.dtype(head["dtype"])).reshape(head["shape"])


def _line(head: dict[str, Any]) -> bytes:
    return json.dumps(head).encode() + b"\n"


def _check(value: Any) -> None:
    """Refuse what JSON would change or cannot write."""
    if value is None or isinstance(value, bool | int | float | str):
        return
    if isinstance(value, list | tuple):
        for item in value:
            _check(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(
                    f"dict key {key!r} is not a string and would come back as one; "
                    "use string keys, or gather a list of pairs"
                )
            _check(item)
    else:
        raise TypeError(
            f"{type(value).__name__} cannot be gathered; pass numbers, strings, lists and dicts of "
            "them, or one array or tensor"
        )
