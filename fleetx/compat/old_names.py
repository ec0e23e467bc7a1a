"""Names that Python 3.6, numpy 1 and Pillow 6 had, and that old scripts use without a thought.

They are put where they were for the runs of old scripts alone, and only those that are missing:
code that does not know them is not touched.
"""

import collections
import collections.abc
import fractions
import importlib
import inspect
import math
import sys
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

_ABSTRACT = (
    "Callable Container Hashable ItemsView Iterable Iterator KeysView Mapping MappingView "
    "MutableMapping MutableSequence MutableSet Sequence Set Sized ValuesView"
)

_PYTHON: list[tuple[ModuleType, Mapping[str, Any]]] = [
    (time, {"clock": time.perf_counter}),
    (fractions, {"gcd": math.gcd}),
    (inspect, {"getargspec": lambda function: inspect.getfullargspec(function)[:4]}),
    (collections, {name: getattr(collections.abc, name) for name in _ABSTRACT.split()}),
]

_NUMPY: Mapping[str, Any] = {
    "float": float,
    "int": int,
    "object": object,
    "str": str,
    "long": np.int64,
    "unicode": str,
    "float_": np.float64,
    "complex_": np.complex128,
    "product": np.prod,
    "cumproduct": np.cumprod,
    "alltrue": np.all,
    "sometrue": np.any,
    "in1d": np.isin,
    "Inf": np.inf,
    "NaN": np.nan,
    "infty": np.inf,
}

_PICTURES: Mapping[str, str] = {
    "ANTIALIAS": "LANCZOS",
    "LINEAR": "BILINEAR",
    "CUBIC": "BICUBIC",
}

_added: list[tuple[ModuleType, str]] = []


def install() -> None:
    """Put back what is missing."""
    for module, names in [*_PYTHON, (np, _NUMPY)]:
        _add(module, names)


def install_for_pictures() -> None:
    """The same for Pillow, which takes a moment to import."""
    try:
        pictures = importlib.import_module("PIL.Image")
    except ImportError:  # the script will say that it needs Pillow
        return
    _add(pictures, {old: getattr(pictures, new) for old, new in _PICTURES.items()})


def uninstall() -> None:
    """Take away what was put back."""
    while _added:
        module, name = _added.pop()
        delattr(module, name)


def _add(module: ModuleType, names: Mapping[str, Any]) -> None:
    for name, value in names.items():
        # Asking numpy for such a name warns, so its table is looked at.
        if name not in vars(module):
            setattr(module, name, value)
            _added.append((sys.modules[module.__name__], name))
