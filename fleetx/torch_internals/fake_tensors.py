"""Fake tensors and free sizes, with which programs and pipelines are recorded.

They load much else of torch, and jobs without programs do not pay for it: each is loaded when it is
first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch._dispatch.python import enable_python_dispatcher
    from torch._dynamo.source import ConstantSource
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensor,
        FakeTensorMode,
    )
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

__all__ = [
    "ConstantSource",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "PythonReferenceAnalysis",
    "enable_python_dispatcher",
    "sympy_interp",
]

_HOMES = {
    "ConstantSource": "torch._dynamo.source",
    "DataDependentOutputException": "torch._subclasses.fake_tensor",
    "DynamicOutputShapeException": "torch._subclasses.fake_tensor",
    "FakeTensor": "torch._subclasses.fake_tensor",
    "FakeTensorMode": "torch._subclasses.fake_tensor",
    "PythonReferenceAnalysis": "torch.utils._sympy.reference",
    "enable_python_dispatcher": "torch._dispatch.python",
    "sympy_interp": "torch.utils._sympy.interp",
}
"""Name -> the module of torch that has it."""


def __getattr__(name: str) -> Any:
    """Load one that is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
