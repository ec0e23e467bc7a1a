"""``paddle.nn.utils``: parameters as one vector."""

from typing import Any

import torch

from fleetx.compat.tensors import op


@op
def parameters_to_vector(parameters: Any, name: str | None = None) -> Any:
    """All numbers behind each other."""
    return torch.nn.utils.parameters_to_vector(parameters)


def vector_to_parameters(vec: Any, parameters: Any, name: str | None = None) -> None:
    """Numbers of a vector back into parameters."""
    torch.nn.utils.vector_to_parameters(vec, parameters)
