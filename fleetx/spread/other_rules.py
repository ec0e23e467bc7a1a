"""Steps of optimizers of other libraries, with parameters that are spread over workers.

They call whatever operator there is; torch knows some only for whole tensors, and computes a few
wrongly from parts. These are computed here from whole tensors, equally on all workers.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from fleetx.spread.from_parts import COMPLETE, WRITE_WRONGLY
from fleetx.spread.gathered_calls import gathered, is_spread, is_unknown, summed, writes_to
from fleetx.spread.same_numbers import SameNumbers
from fleetx.torch_internals import part_held, tree_iter, tree_map_only

Function = Callable[..., Any]

_MIX = ("_foreach_norm", "_foreach_max", "_foreach_powsum")
"""Of the functions of lists, those that put the numbers of a tensor together."""


_FILLS = frozenset(
    {
        *(Tensor.bernoulli_, Tensor.cauchy_, Tensor.exponential_, Tensor.geometric_),
        *(Tensor.log_normal_, Tensor.normal_, Tensor.random_, Tensor.uniform_),
    }
)
_MAKES = frozenset(
    {
        *(torch.bernoulli, torch.multinomial, torch.normal, torch.poisson, torch.rand),
        *(torch.rand_like, torch.randint, torch.randint_like, torch.randn, torch.randn_like),
        *(torch.randperm, Tensor.bernoulli, Tensor.multinomial),
    }
)
DRAWS = _FILLS | _MAKES
"""Functions that draw random numbers."""


@contextmanager
def computed_whole(mesh: DeviceMesh) -> Iterator[None]:
    """Inside, what torch cannot compute from parts is computed from whole tensors.

    All workers run the same step, and torch refuses by shapes and places, which are known
    everywhere: what one of them gathers, the others gather, too.

    Args:
        mesh: the workers that share tensors.
    """
    with SameNumbers(mesh) as numbers, implicit_replication(), _Whole(numbers):
        yield


class _Whole(TorchFunctionMode):
    def __init__(self, numbers: SameNumbers) -> None:
        super().__init__()
        self._numbers = numbers

    @override
    def __torch_function__(
        self,
        func: Function,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        spread = next(filter(is_spread, tree_iter((args, kwargs))), None)
        if func in DRAWS:
            self._numbers.agree()
            if spread is not None:
                return _drawn(spread, func, args, kwargs)
        if spread is None:
            return func(*args, **kwargs)
        wrong = func in COMPLETE or func in WRITE_WRONGLY
        # torch would write to a plain tensor, and fail then.
        if wrong or not all(map(is_spread, writes_to(func, args, kwargs))):
            return gathered(spread.device_mesh, func, args, kwargs)
        try:
            found = func(*args, **kwargs)
        except (RuntimeError, ValueError) as error:
            if not is_unknown(error):
                raise
            if _is_each(func, args):
                return _each(func, args, kwargs)
            return gathered(spread.device_mesh, func, args, kwargs)
        return tree_map_only(DTensor, summed, found)


def _drawn(
    spread: DTensor, func: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """All workers draw for the whole tensor, and each keeps its part."""
    found = gathered(spread.device_mesh, func, args, kwargs)
    made = func in _MAKES and found.shape == spread.shape
    return found.redistribute(placements=spread.placements) if made else found


def _is_each(func: Function, args: tuple[Any, ...]) -> bool:
    """Whether it computes each number of lists by itself, and all lists are cut alike."""
    if not func.__name__.startswith("_foreach_") or func.__name__.startswith(_MIX):
        return False
    if any(isinstance(value, Tensor) for value in args):
        return False
    lists = [value for value in args if isinstance(value, list | tuple)]
    tensors = [value for value in lists if all(isinstance(one, Tensor) for one in value)]
    return all(
        all(map(is_spread, row)) and len({one.placements for one in row}) == 1
        for row in zip(*tensors, strict=True)
    )


def _each(func: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Each worker with its parts."""
    found = func(*tree_map_only(DTensor, part_held, args), **kwargs)
    if found is None or func.__name__.endswith("_"):
        return found
    return [_like(part, whole) for part, whole in zip(found, args[0], strict=True)]


def _like(part: Tensor, whole: DTensor) -> DTensor:
    """This worker's part of a tensor that is cut as another one."""
    return DTensor.from_local(
        part,
        whole.device_mesh,
        whole.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )
