"""What scripts do with tensors that are spread over workers, as if they were whole.

``f"{p.grad.norm():.3f}"``, ``p.data.numpy()``, ``for row in p.data``, ``p.data *= mask``: torch has
no answer for parts, and a few wrong ones. Here the workers that share a tensor meet, gather it, and
go on with the whole one. Where autograd or the compiler follow, everything is as in torch.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.experimental import implicit_replication

from fleetx.roles import activity
from fleetx.spread.data_assigned import take_assigned_data
from fleetx.spread.drawn_numbers import draw_for_whole_ones
from fleetx.spread.followed import is_followed, is_seen_to
from fleetx.spread.from_parts import COMPLETE, WRITE_WRONGLY
from fleetx.spread.gathered_calls import gathered, is_spread, is_unknown, summed
from fleetx.spread.whole_numbers import give_whole_numbers, meet

_READ = ("__array__", "__contains__", "numpy", "tolist")
_COMPUTED = (
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__"),
    *("__iadd__", "__isub__", "__imul__", "__itruediv__", "__matmul__", "__rmatmul__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__and__", "__or__"),
    *("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "copy_", "lerp", "lerp_"),
    *("addcmul", "addcmul_", "addcdiv", "addcdiv_", "matmul", "mm", "bmm", "where"),
    *("masked_fill", "masked_fill_", "masked_select", "maximum", "minimum", "clamp", "clamp_"),
    *("allclose", "argmax", "argmin", "bincount", "cumsum", "cumprod", "cummax", "cummin"),
    *("logcumsumexp", "amax", "amin", "any", "all", "nonzero", "prod", "quantile", "nanquantile"),
    *("gather", "index_select", "index_fill", "index_fill_", "index_add", "index_add_"),
    *("index_copy", "index_copy_", "scatter", "scatter_", "scatter_add", "scatter_add_"),
    *("take", "take_along_dim", "trace", "unique", "histogram", "renorm", "renorm_", "put_"),
    *("masked_scatter", "masked_scatter_", "scatter_reduce", "scatter_reduce_", "fill_diagonal_"),
    *("tril_", "triu_", "cumsum_", "cumprod_", "index_put", "index_put_", "addmm", "addmm_"),
    *("addr", "addr_", "baddbmm", "baddbmm_"),
)
"""Methods that torch cannot compute from some parts, or from parts and a plain tensor."""
_RIGHT_OF_ALL = frozenset({"any", "all", "amax", "amin", "argmax", "argmin"})
"""Wrong along some dimensions, and right of all numbers, which one need not gather."""


_SUMMED = ("dot", "max", "mean", "min", "nansum", "norm", "std", "sum", "var", "vdot")
"""Methods whose results torch leaves to be added up, and then refuses to change in place."""


def answer_as_whole_ones() -> None:
    """From now on, in this process."""
    give_whole_numbers()
    draw_for_whole_ones()
    take_assigned_data()
    if DTensor.__format__ is _format:
        return
    setattr(DTensor, "__format__", _format)  # noqa: B010
    for name in _READ:
        setattr(DTensor, name, _reads(name))
    setattr(DTensor, "__iter__", _iterate)  # noqa: B010
    for name in _COMPUTED:
        setattr(DTensor, name, computes(name))
    for name in _SUMMED:
        setattr(DTensor, name, _adds_up(name))


def _format(self: DTensor, spec: str) -> str:
    return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)


def _iterate(self: DTensor) -> Iterator[Tensor]:
    found: Iterator[Tensor] = Tensor.__iter__(self) if is_seen_to() else iter(self.unbind(0))  # type: ignore[no-untyped-call]
    return found


def _reads(name: str) -> Callable[..., Any]:
    def method(self: DTensor, *args: Any, **kwargs: Any) -> Any:
        # Looked up by each call: Paddle's way of reading may come later than this.
        plain: Callable[..., Any] = getattr(Tensor, name)
        if is_seen_to():
            return plain(self, *args, **kwargs)
        meet(self, f"{name}() of a tensor that is spread over workers")
        return plain(self.full_tensor(), *args, **kwargs)

    return method


def _adds_up(name: str) -> Callable[..., Any]:
    plain, call = computes(name), f"{name}() of a tensor that is spread over workers"

    def method(self: DTensor, *args: Any, **kwargs: Any) -> Any:
        found = plain(self, *args, **kwargs)
        if is_followed(self) or not is_spread(found):
            return found
        # In an update all workers run the same rule, which asks often.
        waits = any(where.is_partial() for where in found.placements)
        if waits and activity.current() != activity.UPDATING:
            meet(self, call)
        return summed(found)

    return method


def computes(name: str) -> Callable[..., Any]:
    """A method that computes from whole tensors what torch cannot compute from parts."""
    plain: Callable[..., Any] = getattr(Tensor, name)
    call = f"{name}() of a tensor that is spread over workers"
    wrong = plain in COMPLETE or plain in WRITE_WRONGLY or name in _RIGHT_OF_ALL

    def method(self: DTensor, *args: Any, **kwargs: Any) -> Any:
        right = not wrong or (name in _RIGHT_OF_ALL and not args and not kwargs)
        # Of a tensor of a worker's own, such as a mask, it takes what it has a part of.
        for around in (
            (nullcontext, implicit_replication) if right or is_followed(self, args, kwargs) else ()
        ):
            try:
                with around():
                    return plain(self, *args, **kwargs)
            except RuntimeError as error:  # which NotImplementedError is, too
                if not is_unknown(error) or is_followed(self, args, kwargs):
                    raise
        meet(self, call)
        return gathered(self.device_mesh, plain, (self, *args), kwargs)

    return method
