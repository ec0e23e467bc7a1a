"""Operators: kernels without a public name, and what an operator says of itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "OpOverload",
    "assert_soon",
    "attention_on_cpu",
    "decompositions",
    "foreach_add",
    "foreach_add_",
    "foreach_addcmul_",
    "foreach_clamp_max_",
    "foreach_clamp_min_",
    "foreach_copy_",
    "foreach_div",
    "foreach_div_",
    "foreach_lerp_",
    "foreach_mul",
    "foreach_mul_",
    "foreach_neg",
    "foreach_norm",
    "foreach_sqrt",
    "foreach_sub_",
    "fused_adam_",
    "fused_sgd_",
    "is_mutable",
    "scaled_mm",
    "unscale_and_find_inf_",
    "without_mkldnn",
    "written",
]

# Operators on lists of tensors, which torch.optim itself is written with.
foreach_add: Any = torch._foreach_add
foreach_add_: Any = torch._foreach_add_
foreach_addcmul_: Any = torch._foreach_addcmul_
foreach_clamp_max_: Any = torch._foreach_clamp_max_
foreach_clamp_min_: Any = torch._foreach_clamp_min_
foreach_copy_: Any = torch._foreach_copy_
foreach_div: Any = torch._foreach_div
foreach_div_: Any = torch._foreach_div_
foreach_lerp_: Any = torch._foreach_lerp_
foreach_mul: Any = torch._foreach_mul
foreach_mul_: Any = torch._foreach_mul_
foreach_neg: Any = torch._foreach_neg
foreach_norm: Any = torch._foreach_norm
foreach_sqrt: Any = torch._foreach_sqrt
foreach_sub_: Any = torch._foreach_sub_
fused_adam_: Any = torch._fused_adam_
fused_sgd_: Any = torch._fused_sgd_
"""The kernels behind ``torch.optim.Adam(fused=True)`` and ``SGD(fused=True)``."""

assert_soon: Any = torch._assert_async
"""Ends the process, with these words, when a device gets to a flag that is not set; at once on a
host."""

unscale_and_find_inf_: Any = torch._amp_foreach_non_finite_check_and_unscale_
"""The kernel behind ``torch.amp.GradScaler.unscale_``."""

scaled_mm: Any = torch._scaled_mm
"""Multiplies float8 matrices, each with its scale. `torch.nn.functional.scaled_mm` is public and
the same, but torch 2.11 makes no compiled code of it."""


def written(operator: Any, arguments: Any) -> Iterator[Tensor]:
    """The tensors among positional arguments to which an operator of torch writes."""
    if operator._schema.is_mutable:
        for declared, value in zip(operator._schema.arguments, arguments, strict=False):
            if declared.alias_info is not None and declared.alias_info.is_write:
                several = value if isinstance(value, list | tuple) else (value,)
                yield from (tensor for tensor in several if isinstance(tensor, Tensor))


OpOverload = torch._ops.OpOverload
"""One operator of torch for one kind of arguments, such as ``torch.ops.aten.add.Tensor``."""


class _WithoutMkldnn:
    """One switch for all threads: the first that comes turns it off, the last puts it back.

    Each for itself, two threads that overlap would leave it off for ever.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._before = Lock(), 0, True

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._inside:
                self._before = torch._C._get_mkldnn_enabled()
                torch._C._set_mkldnn_enabled(False)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    torch._C._set_mkldnn_enabled(self._before)


without_mkldnn = _WithoutMkldnn()
"""Leave oneDNN out; torch's public switch for it warns about devices of others."""


def is_mutable(operator: Any) -> bool:
    """Whether an operator, such as ``torch.ops.aten.add_.Tensor``, changes what it is given."""
    return bool(operator._schema.is_mutable)


def attention_on_cpu() -> Any:
    """What scaled_dot_product_attention becomes on a CPU; torch's counter does not know it."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def decompositions() -> Any:
    """The module with what torch runs for operators that have no kernel for fake tensors."""
    from torch._decomp import decompositions as found

    return found
