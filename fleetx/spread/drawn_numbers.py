"""Random numbers for tensors that are spread over workers: ``nn.init``, ``randn_like(p.grad)``.

torch lets each worker draw for its part, on CPUs the same numbers for all parts, and other ones for
parts that are said to be equal. Here all draw what the first of them would draw for the whole
tensor, as one process does, and each keeps its part.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor
from torch.distributed.tensor import DTensor

from fleetx.spread.followed import is_seen_to
from fleetx.spread.gathered_calls import everywhere, is_spread
from fleetx.spread.same_numbers import SameNumbers
from fleetx.spread.whole_numbers import meet
from fleetx.torch_internals import answer_operator, part_held, tree_iter, tree_map_only

_CALL = "random numbers for a tensor that is spread over workers"
_aten = torch.ops.aten
_FILL = (
    *(_aten.normal_.default, _aten.uniform_.default, _aten.exponential_.default),
    *(_aten.random_.default, _aten.random_.to, getattr(_aten.random_, "from")),
    *(_aten.log_normal_.default, _aten.cauchy_.default, _aten.geometric_.default),
    _aten.bernoulli_.float,
)
_LIKE = (
    *(_aten.randn_like.default, _aten.rand_like.default),
    *(_aten.randint_like.default, _aten.randint_like.low_dtype),
)
"""Which look at the shape of a tensor, and not at its numbers."""
_READ = (
    *(_aten.bernoulli.default, _aten.bernoulli_.Tensor, _aten.poisson.default),
    *(_aten.normal.Tensor_float, _aten.normal.float_Tensor, _aten.normal.Tensor_Tensor),
)


def draw_for_whole_ones() -> None:
    """From now on, in this process."""
    for operator in (*_FILL, *_LIKE, *_READ):
        answer_operator(operator, _drawn, unless=is_seen_to)


@torch.no_grad()
def _drawn(operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    target: DTensor = next(filter(is_spread, args))
    meet(target, _CALL)
    own = next((one for one in tree_iter(kwargs) if isinstance(one, Generator)), None)

    def whole(spread: DTensor) -> Tensor:
        if operator in _READ:
            return spread.full_tensor().clone()
        shape, stride = spread.shape, spread.stride()
        return torch.empty_strided(shape, stride, dtype=spread.dtype, device=spread.device)

    plain_args, plain_kwargs = tree_map_only(DTensor, whole, (args, dict(kwargs)))
    with SameNumbers(target.device_mesh) as numbers:
        if own is None:
            numbers.agree()
        found = operator(*plain_args, **plain_kwargs)
    laid = everywhere(found, target.device_mesh).redistribute(placements=target.placements)
    if not operator.name().partition(".")[0].endswith("_"):
        return laid
    part_held(target).copy_(part_held(laid))
    return target
