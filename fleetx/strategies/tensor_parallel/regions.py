"""Regions of a model whose tensors are spread over ranks.

Inside a region tensors are DTensors of their whole shape, so code that knows the number of heads
or features of the complete model stays right. Outside everything is plain.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.backends import mha
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import implicit_replication
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from fleetx.spread.followed import seen_to
from fleetx.spread.from_parts import COMPLETE, READ, has_no_rule, lists_places, picks_by_tensor
from fleetx.spread.parts_written import watch_parts
from fleetx.spread.whole_answers import answer_as_whole_ones
from fleetx.spread.whole_numbers import CALL, meet
from fleetx.strategies.tensor_parallel.draws import DRAWS, drawn
from fleetx.strategies.tensor_parallel.explained import CANNOT_RESHAPE, explained
from fleetx.strategies.tensor_parallel.pieces import CUTS, pieces
from fleetx.strategies.tensor_parallel.placing import as_spread, is_cut, is_spread, placed, whole
from fleetx.strategies.tensor_parallel.writes import (
    mark_copies,
    refuse_lost_gradient,
    refuse_lost_write,
    set_item,
    written,
)
from fleetx.torch_internals import (
    is_view,
    tree_any,
    tree_iter,
    tree_map_only,
    version_of,
)

Forward = Callable[..., Any]
Change = Callable[[Forward], Forward]

POSITION = 1
"""The dimension of activations along which positions of a sequence lie."""


class Border:
    """Where plain tensors become replicated ones and complete tensors come out again."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        self._rank = mesh.get_local_rank()
        self._here = _Here()
        answer_as_whole_ones()
        watch_parts()

    def around(self, forward: Forward) -> Forward:
        """The forward of a module in a region; only the outermost one converts.

        Every module of a region is given it: recomputation may replay one of them by itself, and
        then hands it the DTensors that it had been called with.
        """

        def run(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return self._compiled(forward, args, kwargs)
            if self._here.inside:
                return forward(*args, **kwargs)
            if tree_any(is_spread, (args, kwargs)):
                with self._within():
                    return forward(*args, **kwargs)
            spread = [self.enter(value) for value in (*args, *kwargs.values())]
            named = dict(zip(kwargs, spread[len(args) :], strict=True))
            with self._within(), explained():
                outputs = forward(*spread[: len(args)], **named)
            return tree_map_only(DTensor, _own, outputs)

        return run

    def _compiled(self, forward: Forward, args: Any, kwargs: Any) -> Any:
        """Compiled code knows where it is by what it was given."""
        if tree_any(is_spread, (args, kwargs)):
            return forward(*args, **kwargs)
        args, kwargs = tree_map_only(Tensor, lambda t: as_spread(t, self._mesh), (args, kwargs))
        outputs = forward(*args, **kwargs)
        return tree_map_only(DTensor, _own, outputs)

    def surround(self, forward: Forward) -> Forward:
        """What runs compiled code, which cannot enter and leave regions by itself."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with self._mixing(), explained():
                return forward(*args, **kwargs)

        return run

    def enter(self, value: Any) -> Any:
        """The value with its tensors replicated; what holds none stays the same object."""
        if not any(isinstance(leaf, Tensor) for leaf in tree_iter(value)):
            return value
        return tree_map_only(Tensor, lambda tensor: as_spread(tensor, self._mesh), value)

    @contextmanager
    def _within(self) -> Iterator[None]:
        with self._mixing(), ExitStack() as stack:
            stack.callback(self._here.leave)
            self._here.inside = True
            yield

    @contextmanager
    def _mixing(self) -> Iterator[None]:
        fast = mha.get_fastpath_enabled()
        with ExitStack() as stack:
            # Its kernels take plain tensors only.
            mha.set_fastpath_enabled(False)
            stack.callback(mha.set_fastpath_enabled, fast)
            stack.enter_context(implicit_replication())
            stack.enter_context(seen_to())
            stack.enter_context(_Mixing(self._mesh, self._rank))
            yield

    def column(self, forward: Forward) -> Forward:
        """Each rank computes some of the output features of a linear layer, from all inputs."""
        return lambda x: forward(self._complete(x))

    def row(self, *, by_position: bool) -> Change:
        """Each rank multiplies some of the input features of a linear layer.

        The sum is complete on every rank, or cut by position where its neighbours are.
        """
        between = Shard(POSITION) if by_position else Replicate()

        def change(forward: Forward) -> Forward:
            return lambda x: placed(forward(placed(x, self._mesh, Shard(-1))), self._mesh, between)

        return change

    def gathered(self, forward: Forward) -> Forward:
        """A layer whose weight is cut and whose output is complete on every rank."""

        def run(x: Tensor, *args: Any, **kwargs: Any) -> DTensor:
            # Tables of positions are told where to begin, as Whisper's.
            found = forward(self._complete(x), *args, **kwargs)
            return placed(found, self._mesh, Replicate())

        return run

    def sequence(self, forward: Forward) -> Forward:
        """Each rank computes some of the positions."""

        def run(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            return forward(placed(x, self._mesh, Shard(POSITION)), *args, **kwargs)

        return run

    def alone(self, forward: Forward) -> Forward:
        """A layer that each rank computes completely, from plain tensors."""
        return partial(whole, self._mesh, forward)

    def _complete(self, x: Tensor) -> Tensor:
        """The whole of a tensor; layers that share an input share the gathering of it, too."""
        if torch.compiler.is_compiling():  # which finds twins by itself
            return placed(x, self._mesh, Replicate())
        if isinstance(x, DTensor) and x.placements != (Replicate(),):
            key = x, version_of(x), torch.is_grad_enabled()
            kept = self._here.gathered
            if kept is None or kept[0][0] is not x or kept[0][1:] != key[1:]:
                self._here.gathered = kept = key, placed(x, self._mesh, Replicate())
            return kept[1]
        return placed(x, self._mesh, Replicate())


class _Here(threading.local):
    """Where a thread is: backward, which replays, has threads of its own."""

    inside = False
    gathered: tuple[tuple[Tensor, int, bool], Tensor] | None = None

    def leave(self) -> None:
        self.inside, self.gathered = False, None


def _own(spread: DTensor) -> Tensor:
    """The complete tensor, to which code outside may write, as in ``x += y``.

    What comes out of a DTensor is a view that autograd refuses to change.
    """
    found = spread.full_tensor()
    # The compiler cannot ask whether it is a view; there it is one.
    is_one = torch.compiler.is_compiling() or is_view(found)
    return found.clone() if found.requires_grad and is_one else found


PICKS_ANYWHERE = torch.__version__ >= "2.12"
"""Whether torch has a backward for an index of numbers that is not in the first dimension."""


class _Mixing(TorchFunctionMode):
    """Lets plain tensors of the user's code take part as replicated ones.

    torch's implicit replication alone would leave them plain in what autograd saves, and backward,
    which runs outside of the region, would refuse to mix them.
    """

    def __init__(self, mesh: DeviceMesh, rank: int) -> None:
        super().__init__()
        self._mesh, self._rank = mesh, rank

    @override
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in JOINS and args:
            args = (_joined(args[0]), *args[1:])
        leaves = _tensors(chain(args, kwargs.values()))
        spread = sum(map(is_spread, leaves))
        if not spread:
            return func(*args, **kwargs)
        if func is Tensor.__iter__:
            return iter(_flattening(self._mesh, Tensor.unbind, args, kwargs))
        if _is_complete(func, args):
            return self._completed(func, leaves, args, kwargs)
        if spread < len(leaves):
            refuse_lost_gradient(func, args, kwargs, leaves)
            args, kwargs = tree_map_only(
                Tensor, lambda tensor: as_spread(tensor, self._mesh), (args, kwargs)
            )
        refuse_lost_write(func, args, kwargs)
        found = self._computed(func, args, kwargs)
        if torch.compiler.is_compiling():
            mark_copies(func, args, found)
        return found

    def _completed(
        self, func: Callable[..., Any], leaves: list[Any], args: Any, kwargs: Mapping[str, Any]
    ) -> Any:
        """Call it with whole tensors."""
        if func in READ and not torch.compiler.is_compiling():
            for cut in filter(is_cut, leaves[:1]):  # a script may read on one rank alone
                meet(cut, CALL)
        return whole(self._mesh, func, *args, **kwargs)

    def _computed(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call it with tensors that are all spread."""
        if func is Tensor.__setitem__ and is_cut(args[0]):
            return set_item(self._mesh, *args)
        if func in PRODUCTS and (by_batch := _cut_alike(args, kwargs)):
            return alike(self._mesh, func, by_batch, *args)
        if func is F.scaled_dot_product_attention:
            return attention(self._mesh, *args, **kwargs)
        if func in SELECTS and len(args) == 3:
            dim = args[1] % args[0].ndim  # an index has a backward whichever dimension is cut
            return args[0][(*(slice(None),) * dim, args[2])]
        if func in DRAWS:
            return drawn(self._mesh, self._rank, func, args, kwargs)
        return _flattening(self._mesh, func, args, kwargs)


def _is_complete(func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether every rank computes it from the numbers of all."""
    if func in COMPLETE or lists_places(func, args):
        return True
    return _lacks_gradient(func, args) or picks_by_tensor(func, args)


def _lacks_gradient(func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether it picks by numbers in a later dimension, for which 2.11 has no backward."""
    if func is not Tensor.__getitem__ or PICKS_ANYWHERE or not isinstance(args[1], tuple):
        return False
    first, *others = args[1]
    return not isinstance(first, Tensor) and any(isinstance(index, Tensor) for index in others)


def _flattening(
    mesh: DeviceMesh, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Call it, with complete tensors where torch cannot compute it from parts.

    It has no rule for some functions; those that write keep to parts, for a copy would be lost.
    2.11 cannot flatten a dimension where one lies before it, as that of samples before positions,
    and so a linear layer cannot, either. And no release splits one into a number of parts that the
    ranks do not divide, as a packed layer into queries, keys and values.
    """
    compiling = torch.compiler.is_compiling()  # it follows gradients of pieces by itself
    run = partial(pieces, func) if func in CUTS and not compiling else func
    try:
        return run(*args, **kwargs)
    except RuntimeError as error:
        if not compiling and has_no_rule(error) and written(func, args, kwargs) is None:
            return whole(mesh, func, *args, **kwargs)
        if not any(reason in str(error) for reason in CANNOT_RESHAPE):
            raise
    args, kwargs = tree_map_only(
        DTensor, lambda tensor: placed(tensor, mesh, Replicate()), (args, kwargs)
    )
    return run(*args, **kwargs)


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """Arguments, and items of lists and indices, that are tensors; without a walk through trees."""
    found = []
    for value in values:
        items = value if type(value) in {list, tuple} else (value,)
        found += [item for item in items if isinstance(item, Tensor)]
    return found


JOINS = frozenset({torch.cat, torch.concat, torch.concatenate})


def _joined(parts: Any) -> Any:
    """What is put together, without the empty vectors with which caches of other libraries begin.

    torch takes such a one for nothing next to parts of any shape, and cannot cut it as those.
    """
    if type(parts) not in {list, tuple}:
        return parts
    return [part for part in parts if part.shape != (0,)] or parts


SELECTS = frozenset({torch.select, Tensor.select})

PRODUCTS = frozenset({torch.matmul, torch.bmm, Tensor.matmul, Tensor.__matmul__, Tensor.bmm})
"""Products of matrices, of which a rank computes those that it has both factors of."""


def _cut_alike(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Placement | None:
    """How both factors are cut, if it is by the same dimension in front of the matrices."""
    if kwargs or len(args) != 2 or not all(map(is_spread, args)):
        return None
    left, right = args
    (where,) = left.placements
    if (
        right.placements != (where,)
        or left.ndim != right.ndim
        or left.shape[:-2] != right.shape[:-2]
    ):
        return None
    by_batch = isinstance(where, Shard) and where.dim < left.ndim - 2
    return where if by_batch else None


def alike(mesh: DeviceMesh, func: Callable[..., Any], where: Placement, *args: DTensor) -> DTensor:
    """What each rank computes from its own parts, and what is cut as they are."""
    found = func(*(part.to_local() for part in args))
    shape = torch.Size((*args[0].shape[:-1], args[1].shape[-1]))
    return DTensor.from_local(
        found, mesh, [where], run_check=False, shape=shape, stride=_stride(shape)
    )


def _stride(shape: torch.Size) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def attention(
    mesh: DeviceMesh,
    query: DTensor,
    key: DTensor,
    value: DTensor,
    attn_mask: DTensor | None = None,
    *options: Any,
    **more: Any,
) -> DTensor:
    """Scaled dot product attention, each rank with its heads, in the fastest kernel there is."""
    parts = (query, key, value)
    by_heads = all(
        part.ndim == 4 and part.placements == (Shard(1),) and part.size(1) % mesh.size() == 0
        for part in parts
    )
    where: Placement = Shard(1) if by_heads else Replicate()
    q, k, v = (placed(part, mesh, where).to_local() for part in parts)
    mask = None if attn_mask is None else _mask(attn_mask, mesh, query.size(1), by_heads)
    found = F.scaled_dot_product_attention(q, k, v, mask, *options, **more)
    return DTensor.from_local(found, mesh, [where], run_check=False)


def _mask(mask: DTensor, mesh: DeviceMesh, heads: int, by_heads: bool) -> Tensor:
    """This rank's part of a mask; one that all heads share gets a gradient from all of them."""
    if by_heads and mask.ndim == 4 and mask.size(1) == heads:
        return placed(mask, mesh, Shard(1)).to_local()
    whole = placed(mask, mesh, Replicate())
    return whole.to_local(grad_placements=[Partial()] if by_heads else None)
