"""What a model saves, by name."""

from typing import Any

from torch import Tensor, nn


def saved_names(model: nn.Module) -> list[str]:
    """Tensors and extra states of modules, in the order of the model."""
    return [name for name, value in model.state_dict().items() if not is_added(name, value)]


def is_extra(name: str) -> bool:
    """Whether an entry of a state is the extra state of a module."""
    return name.rpartition(".")[2] == "_extra_state"


def is_added(name: str, value: Any) -> bool:
    """Whether a model itself has added an entry, as those of neuraloperator add their arguments.

    It is the same on every worker, and in no file of weights.
    """
    return not isinstance(value, Tensor) and not is_extra(name)
