"""What torch says of tensors that are spread, in words that name what to change."""

from collections.abc import Iterator
from contextlib import contextmanager

CANNOT_RESHAPE = (
    "Attempted to flatten multiple dimensions",
    "Attempted to split the sharded dimension",  # as 2.11 says, and later ones "unevenly sharded"
    "Attempted to unbind along the sharded dimension",
    "unevenly sharded",
)
_WHILE_TRACED = "when making fake tensor call"
"""What the compiler says of an operation that fails while it follows a forward."""
_WRITES_IN_CODE = (
    "as_strided not supported with DTensor",
    "'FunctionalTensor' object has no attribute '_local_tensor'",
)
"""What the compiler says of writes to parts of tensors that are spread."""


@contextmanager
def explained() -> Iterator[None]:
    """Tell of what fails inside, as `ValueError`."""
    try:
        yield
    except RuntimeError as error:
        if any(reason in str(error) for reason in CANNOT_RESHAPE) and _WHILE_TRACED in str(error):
            raise ValueError(
                "strategy.compile cannot make code of an operation that splits or joins a "
                "dimension that tensor_parallel cuts; without code every rank computes that "
                "operation completely. Leave the layers before it whole, or set strategy.compile "
                f"= False ({error})"
            ) from error
        if "unevenly sharded" in str(error):
            raise ValueError(
                "a dimension that tensor_parallel cuts, such as that of the heads, cannot be dealt "
                f"out evenly to the ranks; choose an mp_degree that divides it ({error})"
            ) from error
        if any(reason in str(error) for reason in _WRITES_IN_CODE):
            raise ValueError(
                "strategy.compile cannot make code of a write to a part of a tensor (x[:, 0] = y, "
                "x[:, 0].mul_(2)) in a module some of whose layers tensor_parallel cuts. Make a "
                "new tensor there with torch.cat, torch.stack or torch.where, or set "
                f"strategy.compile = False ({type(error).__name__}: {error})"
            ) from error
        if not isinstance(error, NotImplementedError) or "sharding strategy" not in str(error):
            raise
        raise ValueError(
            f"{error} It is used in a module some of whose layers tensor_parallel cuts. Leave "
            "those layers whole, or put the operation into a module of its own around them."
        ) from error
