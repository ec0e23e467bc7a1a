"""Writes to parts of tensors that are spread over workers: ``p.data[0].zero_()``, ``p[:3] = 0``.

torch refuses some, and loses others without a word: where workers exchange what a part shows, the
part is a copy. Here an assignment reaches the whole, on the workers that hold it; a write to a copy
stops the next batch, with the line where a method took the part, or where a method wrote to one
that a function took (``torch.chunk(p.data, 3)[0].zero_()``).
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from fleetx.roles import activity
from fleetx.spread.followed import is_followed
from fleetx.spread.gathered_calls import everywhere
from fleetx.spread.script_lines import script_line
from fleetx.spread.whole_answers import computes
from fleetx.spread.whole_numbers import meet
from fleetx.torch_internals import part_held, tree_map_only, version_of, viewed

_VIEWING = (
    *("__getitem__", "chunk", "diagonal", "expand", "flatten", "movedim", "narrow", "permute"),
    *("reshape", "select", "split", "swapaxes", "tensor_split", "transpose", "unbind"),
    *("unflatten", "unfold", "view", "view_as"),
)
"""Methods that show a part of a tensor."""
_WRITING = (
    *("zero_", "fill_", "copy_", "add_", "sub_", "mul_", "div_", "pow_", "neg_", "abs_", "sign_"),
    *("clamp_", "clamp_min_", "clamp_max_", "clip_", "lerp_", "addcmul_", "addcdiv_", "sqrt_"),
    *("exp_", "log_", "round_", "floor_", "ceil_", "relu_", "sigmoid_", "tanh_", "nan_to_num_"),
    *("masked_fill_", "masked_scatter_", "index_fill_", "index_copy_", "index_add_", "index_put_"),
    *("scatter_", "scatter_add_", "tril_", "triu_", "fill_diagonal_", "normal_", "uniform_"),
    *("bernoulli_", "exponential_", "random_", "__iadd__", "__isub__", "__imul__", "__itruediv__"),
)
"""Methods that change numbers in place."""
_PLACES = int | slice | type(Ellipsis)
_KEPT, _LARGE = 16, 16 << 20
"""So many copies are watched at the same time, and none that takes more bytes."""
_NEVER = -1
"""The version of no tensor: that of a copy which was written before it was noted."""
_copies: deque[tuple[DTensor, int, str, str]] = deque(maxlen=_KEPT)
"""With the version that each had when it was made, the method, and where it was called."""


def watch_parts() -> None:
    """From now on, in this process."""
    if DTensor.__setitem__ is _set_item:
        return
    DTensor.__setitem__ = _set_item  # type: ignore[method-assign, assignment]
    for name in _VIEWING:
        setattr(DTensor, name, _watched(name))
    for name in _WRITING:
        setattr(DTensor, name, _writes(name))
    activity.listeners.append(_hear)


def _set_item(target: DTensor, index: Any, value: Any) -> None:
    """Assign to the whole tensor, of which each worker keeps its part."""
    if is_followed(target, index, value):
        Tensor.__setitem__(target, index, value)
        return
    if _is_mask(index, target) and not isinstance(value, Tensor):
        target.masked_fill_(index, value)  # which each worker can do alone, as rules of updates do
        return
    meet(target, "an assignment to a part of a tensor that is spread over workers")
    _note_write(target, "an assignment")
    others = [kept for kept in _copies if kept[0] is not value]
    _copies.clear()  # of p[:3] *= 2, which writes to the copy and then assigns it
    _copies.extend(others)
    with torch.no_grad():
        changed = target.full_tensor().clone()
        index, value = tree_map_only(DTensor, DTensor.full_tensor, (index, value))
        changed[index] = value
        whole = everywhere(changed, target.device_mesh)
    target.copy_(whole.redistribute(placements=target.placements))


def _is_mask(index: Any, target: DTensor) -> bool:
    spread = isinstance(index, DTensor) and index.dtype == torch.bool
    return spread and index.shape == target.shape


def _watched(name: str) -> Callable[..., Any]:
    plain = computes(name)

    def method(self: DTensor, *args: Any, **kwargs: Any) -> Any:
        found = plain(self, *args, **kwargs)
        if is_followed(self) or not _is_view(name, self, args):
            return found
        note = partial(_noted, own=_place(self), name=name, line=_line())
        return note(found) if isinstance(found, DTensor) else type(found)(map(note, found))

    return method


def _writes(name: str) -> Callable[..., Any]:
    plain: Callable[..., Any] = getattr(DTensor, name)

    def method(self: DTensor, *args: Any, **kwargs: Any) -> Any:
        if viewed(self) is not None and not is_followed(self):
            _note_write(self, name)
        return plain(self, *args, **kwargs)

    return method


def _note_write(part: DTensor, name: str) -> None:
    """Of a part that a function took, which nobody saw; so did a view of a part that was noted."""
    whole = None if torch.is_inference_mode_enabled() else viewed(part)
    if isinstance(whole, DTensor) and _place(part) not in {0, _place(whole)}:
        _copies.append((part, _NEVER, name, _line()))


def _is_view(name: str, whole: DTensor, args: tuple[Any, ...]) -> bool:
    """Whether it would be one of a plain tensor, so that writes to it are writes to the whole."""
    if torch.is_inference_mode_enabled() or whole.is_inference():  # there versions are not counted
        return False
    if name == "__getitem__":
        places = args[0] if isinstance(args[0], tuple) else args
        return all(place is None or isinstance(place, _PLACES) for place in places)
    return name not in {"reshape", "flatten"} or whole.is_contiguous()


def _noted(part: DTensor, *, own: int, name: str, line: str) -> Any:
    """The part; a copy, whose place is not that of the whole, with a version of its own.

    So is a part of a copy.
    """
    same = _place(part) in {0, own} and not any(_place(copied) == own for copied, *_ in _copies)
    if same or part.nbytes > _LARGE:
        return part
    copied: Any = part.data  # else writes to the whole would be counted, too
    _copies.append((copied, version_of(copied), name, line))
    return copied


def _place(spread: DTensor) -> int:
    """Where this worker's tensor lies; 0 for one of no numbers."""
    return part_held(spread).untyped_storage().data_ptr()


def _line() -> str:
    file, line = script_line()
    return f"{file}:{line}"


def _hear(doing: str) -> None:
    if not _copies or doing != "in forward":
        return
    written = [
        (was, name, line) for copied, was, name, line in _copies if version_of(copied) != was
    ]
    _copies.clear()
    if written:
        was, name, line = written[0]
        does = f"takes a part ({name}) of a tensor that is spread over workers and writes to it"
        if was == _NEVER:
            does = f"writes ({name}) to a part of a tensor that is spread over workers"
        raise RuntimeError(
            f"{line} {does}; they exchanged what it shows, so it is a copy, and the tensor did not "
            "change. Assign to the part, on all workers: parameter[:3] = parameter[:3] * 2"
        )
