"""Pickles that Paddle wrote, by a reader that builds arrays and containers and nothing else."""

import codecs
import io
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from typing_extensions import override

SLICES = "UnpackBigParamInfor@@"
"""Where Paddle notes how it cut arrays that were too large for one piece."""
STRUCTURED = "StructuredToParameterName@@"
"""Where it notes which parameter a name of a layer's state means."""


class RefusedPickle(pickle.UnpicklingError):
    """A pickle asks for more than arrays and containers."""


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """How Python 2 wrote bytes."""
    if encoding not in {"latin1", "latin-1"}:
        raise RefusedPickle(f"a pickle asks for the encoding {encoding!r}.")
    return codecs.encode(text, "latin1")


_reconstruct = np.ndarray(0).__reduce__()[0]
_scalar = np.float32(0).__reduce__()[0]
_from_buffer = np.zeros(1).__reduce_ex__(5)[0]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): OrderedDict,
    **{
        (f"numpy.{core}.{module}", name): made
        for core in ("core", "_core")
        for module, name, made in (
            ("multiarray", "_reconstruct", _reconstruct),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _from_buffer),
        )
    },
    **{
        (builtins, kind.__name__): kind
        for builtins in ("builtins", "__builtin__")
        for kind in (tuple, list, dict, set, frozenset, int, float, bool, str, complex)
    },
}


class _Reader(pickle.Unpickler):
    @override
    def find_class(self, module: str, name: str) -> Any:
        found = _ALLOWED.get((module, name))
        if found is None:
            raise RefusedPickle(
                f"the file asks for {module}.{name}, and files of weights need nothing but arrays; "
                "it is not read. If you trust whoever wrote it, read it with pickle yourself and "
                "save the arrays with numpy.savez."
            )
        return found

    @override
    def persistent_load(self, pid: Any) -> Any:
        raise RefusedPickle("the file refers to something outside of it; it is not read.")


def read_stream(stream: BinaryIO, *, encoding: str = "latin1") -> Any:
    """What a pickle holds, of arrays, numbers, texts and containers."""
    return _Reader(stream, encoding=encoding).load()


def read(path: str | Path) -> Any:
    """What a file holds; arrays that were cut are whole again, names and arrays are one."""
    with Path(path).open("rb") as stream:
        return tidied(read_stream(stream))


def _joined(found: Any) -> Any:
    """Put together what Paddle cut."""
    if not isinstance(found, dict) or SLICES not in found:
        return found
    cuts = found.pop(SLICES)
    for name, cut in cuts.items():
        parts = [found.pop(part) for part in cut["slices"]]
        found[name] = np.concatenate(parts).reshape(cut["OriginShape"])
    return found


def tidied(found: Any) -> Any:
    """Arrays that were cut are whole again, and those that have a name stand for themselves."""
    return _tidied(_joined(found))


def _tidied(found: Any) -> Any:
    """A tensor is written as its name and its array; the array is meant."""
    if isinstance(found, tuple) and len(found) == 2:
        name, value = found
        if isinstance(name, str) and isinstance(value, np.ndarray):
            return value
    if isinstance(found, dict):
        return type(found)((key, _tidied(value)) for key, value in found.items())
    if type(found) in {list, tuple, set}:
        return type(found)(_tidied(value) for value in found)
    return found


_InPython: Any = vars(pickle)["_Pickler"]
"""The one that is written in Python, and can be changed."""


class _Writer(_InPython):  # type: ignore[misc]
    """Writes arrays so that Paddle's numpy, which is older, reads them."""

    def save_global(self, obj: Any, name: str | None = None) -> None:
        if obj not in (_reconstruct, _scalar):
            super().save_global(obj, name)
            return
        own = "_reconstruct" if obj is _reconstruct else "scalar"
        if self.proto >= 4:
            self.save("numpy.core.multiarray")
            self.save(own)
            self.write(pickle.STACK_GLOBAL)
        else:
            self.write(pickle.GLOBAL + f"numpy.core.multiarray\n{own}\n".encode())
        self.memoize(obj)


def packed(value: Any, protocol: int = 4) -> bytes:
    """A pickle of arrays and containers that Paddle reads."""
    stream = io.BytesIO()
    _Writer(stream, protocol).dump(_plain(value))
    return stream.getvalue()


def _plain(value: Any) -> Any:
    """Arrays of numpy's own kind: others would need their class where they are read."""
    if isinstance(value, np.ndarray):
        return np.asarray(value).view(np.ndarray)
    if isinstance(value, dict):
        return type(value)((key, _plain(entry)) for key, entry in value.items())
    if type(value) in {list, tuple, set}:
        return type(value)(_plain(entry) for entry in value)
    return value


def write(path: str | Path, value: Any, protocol: int = 4) -> None:
    """A file that Paddle reads; readers never see half of it."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    part = Path(f"{path}.part")
    part.write_bytes(packed(value, protocol))
    part.replace(path)
