"""The part of a tensor that lies on this rank."""

from typing import Any

from torch import Tensor


def local(tensor: Tensor) -> Tensor:
    """A view of this rank's part of a tensor that is spread over ranks; others come back as is.

    DTensor is not imported: jobs without one shall not pay for loading it.
    """
    spread: Any = tensor
    part: Tensor = spread.to_local() if hasattr(spread, "to_local") else tensor
    return part
