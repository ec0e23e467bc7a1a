"""Parameters that are two tensors over the same numbers, as ``a.data = b.data`` makes them."""

from collections.abc import Mapping
from itertools import pairwise

from torch import Tensor
from torch.nn.parameter import is_lazy

from fleetx.comm.local import local
from fleetx.plan.error import PlanError


def refuse_shared_numbers(parameters: Mapping[str, Tensor], why: str) -> None:
    """Refuse two parameters over the same memory, where each has a life of its own elsewhere.

    One parameter in two places of a model is one, and fine.

    Args:
        parameters: by their names, each once.
        why: what becomes of each of them.
    """
    made = {name: p for name, p in parameters.items() if not (p.is_meta or is_lazy(p))}
    every = {name: local(p.detach()) for name, p in made.items()}
    held = [(name, p) for name, p in every.items() if p.numel() and p.data_ptr()]
    for (one, first), (other, second) in pairwise(sorted(held, key=lambda each: _begin(each[1]))):
        if _overlap(first, second):
            raise PlanError(
                f"{one!r} and {other!r} are two parameters over the same numbers, as "
                f"a.weight.data = b.weight.data ties them, and {why}. Let both places hold one "
                "parameter, a.weight = b.weight, or part them: a.weight.data = "
                "b.weight.detach().clone()."
            )


def _begin(parameter: Tensor) -> tuple[str, int]:
    return str(parameter.device), parameter.data_ptr()


def _overlap(first: Tensor, second: Tensor) -> bool:
    """Whether a tensor holds numbers of one that begins before it, or where it does."""
    (place, begin), (other, later) = _begin(first), _begin(second)
    if place != other or begin == later:
        return place == other
    whole = first.is_contiguous() and second.is_contiguous()  # others may lie between each other
    return whole and later < begin + first.numel() * first.element_size()
