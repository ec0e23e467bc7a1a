"""A stand-in for a GPU: memory of the processor that refuses to mix with the processor's own.

    python tests/card.py examples/ctr/train.py --mode sync

runs a script whose workers compute on ``card:0``. Tensors are ordinary ones, so everything works
that works on a CPU; but each piece of memory knows whether it lies on the card, tensors answer for
it (``tensor.device``), and an operator whose operands lie in both places raises, as CUDA does:

- a number (no dimensions) of the CPU may meet tensors of the card;
- ``copy_()``, ``to()`` and ``cpu()`` go from one place to the other;
- indices on the CPU may choose from a tensor of the card, and not the other way round;
- what lies on the card gives no numpy array.

What is made inside of torch, such as the buckets of data parallel, belongs to neither place until
something is written to it. Threads other than the one that installed it see plain tensors.
"""

import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import rename_privateuse1_backend  # type: ignore[attr-defined]
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fleetx.roles import world

NAME = "card"
CPU, NOWHERE = "cpu", "nowhere"
_aten = torch.ops.aten
_CROSSING = {_aten.copy_, _aten._to_copy, _aten.set_, _aten._has_compatible_shallow_copy_type}
_INDEXING = {_aten.index, _aten.index_put_, _aten.index_put, _aten._index_put_impl_}
_base: Any = torch._C.TensorBase


def place(tensor: Tensor) -> str:
    """Where the memory of a tensor is said to be."""
    if isinstance(tensor, FakeTensor) or tensor.layout != torch.strided:
        return NOWHERE
    with torch._C.DisableTorchFunction():
        return getattr(tensor.untyped_storage(), "place", CPU)


def put(tensor: Tensor, where: str) -> None:
    """Say so."""
    if not isinstance(tensor, FakeTensor) and tensor.layout == torch.strided:
        with torch._C.DisableTorchFunction():
            tensor.untyped_storage().place = where  # type: ignore[attr-defined]


class _Operators(TorchDispatchMode):
    """Checks the operands of each operator, and says where its results are."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        packet = func.overloadpacket
        if func.namespace == "aten" and packet not in _CROSSING:
            self._check(packet, args, given)
        known = {id(x.untyped_storage()) for x in given if x.layout == torch.strided}
        before = [place(x) for x in given]
        made = func(*args, **(kwargs or {}))
        where = NAME if NAME in before else CPU if CPU in before else NOWHERE
        for tensor in tree_leaves(made):
            if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
                continue
            # What was in no place is where it is written; what is new is where its operands are.
            if id(tensor.untyped_storage()) not in known or place(tensor) == NOWHERE:
                put(tensor, where)
        return made

    def _check(self, packet: Any, args: Any, given: list[Tensor]) -> None:
        counted = given
        if packet in _INDEXING and given and place(given[0]) == NAME:
            counted = [given[0], *(x for x in tree_leaves(args[2:]) if isinstance(x, Tensor))]
        found = {place(x) for x in counted if x.dim() > 0}
        if place(given[0]) == NAME if given else False:
            found.add(NAME)
        if {NAME, CPU} <= found:
            described = ", ".join(f"{list(x.shape)} on {place(x)}" for x in given)
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{NAME}:0 and cpu! (when calling {packet}: {described})"
            )


class _Calls(TorchFunctionMode):
    """Lets tensors and calls speak of the card."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if func in _ANSWERS and isinstance(args[0], Tensor) and place(args[0]) == NAME:
            return _ANSWERS[func](*args, **given)
        if func is Tensor.to:
            return _moved_by_to(*args, **given)
        if func is Tensor.cpu:
            return _moved(args[0], CPU)
        if given.get("device") is not None and func is not torch._C._nn._parse_to:
            where = torch.device(given["device"]).type
            if where in (CPU, NAME):
                made = func(*args, **(given | {"device": CPU}))
                put(made, where)
                return made
        made = func(*args, **given)
        if func in _CONSTRUCTORS and isinstance(made, Tensor) and place(made) == NOWHERE:
            put(made, CPU)
        return made


_CONSTRUCTORS: set[Any] = _device_constructors()


def _device(tensor: Tensor) -> torch.device:
    found: torch.device = _base.device.__get__(tensor)
    return torch.device(NAME, 0) if place(tensor) == NAME else found


def _is_cpu(tensor: Tensor) -> bool:
    return _device(tensor).type == CPU


def _no_numpy(tensor: Tensor, *args: Any, force: bool = False, **kwargs: Any) -> Any:
    if force:
        return _moved(tensor, CPU).numpy(force=True)
    raise TypeError(
        f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
        "to host memory first."
    )


_ANSWERS: dict[Any, Callable[..., Any]] = {
    Tensor.get_device: lambda *_: 0,
    Tensor.numpy: _no_numpy,
    Tensor.__array__: _no_numpy,
}


def _moved_by_to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    copy = kwargs.pop("copy", False)
    other = args[0] if args else kwargs.get("other")
    if isinstance(other, Tensor):
        where, kind, layout = place(other), other.dtype, None
    else:
        parsed: Any = torch._C._nn._parse_to(*args, **kwargs)
        device, kind, _, layout = parsed
        where = place(tensor) if device is None else device.type
    if where not in (CPU, NAME):
        call: Any = tensor.to  # for the meta device, say
        return call(*args, copy=copy, **kwargs)
    return _moved(tensor, where, kind, copy=copy, layout=layout)


def _moved(
    tensor: Tensor,
    where: str,
    kind: torch.dtype | None = None,
    *,
    copy: bool = False,
    layout: torch.memory_format | None = None,
) -> Tensor:
    copy = copy or place(tensor) != where
    form = torch.preserve_format if layout is None else layout
    made = tensor.to(CPU, kind or tensor.dtype, copy=copy, memory_format=form)
    if copy:
        put(made, where)
    return made


def _module() -> ModuleType:
    """What torch asks of a kind of device."""
    module: Any = ModuleType(NAME)
    module.is_available = module.is_initialized = lambda: True
    module.device_count = lambda: 1
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.current_device, module._is_in_bad_fork = (lambda: 0), (lambda: False)
    module.get_rng_state = lambda device=None: torch.get_rng_state()
    module.set_rng_state = lambda state, device=None: torch.set_rng_state(state)
    module.manual_seed_all = module.manual_seed = lambda seed: None
    # Its copies are over when they return, so there is nothing that a stream would wait for.
    stream = SimpleNamespace(synchronize=lambda: None)
    module.current_stream, module.stream = (lambda: stream), nullcontext
    module.synchronize = lambda device=None: None
    return module


@contextmanager
def card() -> Iterator[torch.device]:
    """The card, while its rules are in force in this thread."""
    if torch._C._get_privateuse1_backend_name() != NAME:
        rename_privateuse1_backend(NAME)
        torch._register_device_module(NAME, _module())
    calls, run = _Calls(), torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def backward(*args: Any, **kwargs: Any) -> Any:
        with calls:  # it was left for the call of backward(), and hooks ask tensors where they are
            return run(*args, **kwargs)

    tensors: Any = Tensor
    with _Operators(), calls:  # type: ignore[no-untyped-call]
        torch.autograd._engine_run_backward = backward  # type: ignore[attr-defined]
        # Not by the mode, which is left inside of calls, where checkpoint() asks as well.
        tensors.device, tensors.is_cpu = property(_device), property(_is_cpu)
        try:
            yield torch.device(NAME, 0)
        finally:
            torch.autograd._engine_run_backward = run  # type: ignore[attr-defined]
            del tensors.device, tensors.is_cpu


def main() -> None:
    """Run a script; its workers are on a card, and its servers are not."""
    with card() as chosen:
        vars(world)["choose_device"] = lambda found: (
            chosen if found.is_worker else torch.device(CPU)
        )
        sys.argv = sys.argv[1:]
        sys.path[0] = str(Path(sys.argv[0]).parent)
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
