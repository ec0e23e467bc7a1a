"""Functions and methods of torch by what they do, for all that follows the code of a model."""

import torch

_FACTORY_NAMES = (
    *("arange", "empty", "eye", "full", "linspace", "logspace", "normal", "ones", "rand"),
    *("randint", "randn", "randperm", "tensor", "tril_indices", "triu_indices", "zeros"),
)
"""Functions that make tensors from nothing; inside a model they are operators, not constants."""

FACTORIES = frozenset(getattr(torch, name) for name in _FACTORY_NAMES)

IN_PLACE_OPERATORS = frozenset(
    {"setitem", "delitem", "iadd", "isub", "imul", "idiv", "itruediv", "ifloordiv", "imod"}
    | {"ipow", "imatmul", "iand", "ior", "ixor", "ilshift", "irshift"}
)
"""Names of Python's operators that change what stands on their left."""


def changes_in_place(name: str) -> bool:
    """Whether a function or method of that name changes its first argument."""
    return name[2:-2] in IN_PLACE_OPERATORS if name.startswith("__") else name.endswith("_")
