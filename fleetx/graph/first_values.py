"""The first values of a model that was made on the meta device, by the functions of its modules."""

import copy
import hashlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from fleetx.torch_internals import TorchDispatchMode, buffers_of, parameters_of, written

Path = str
Action = Callable[[], Any]
_RESETS = ("reset_parameters", "_reset_parameters")
"""What a module is asked for to fill its own tensors, and those of modules that it is made of."""


@dataclass(frozen=True)
class Group:
    """The tensors of one module, which its functions fill together."""

    path: Path
    names: dict[str, Path]
    """Name in the module -> name in the model; a tied tensor belongs to its first module alone."""

    size: int
    """Bytes of all of them, complete."""


@dataclass(frozen=True)
class Made:
    """Complete values of the tensors of a group."""

    values: dict[Path, Tensor]
    left_out: tuple[Path, ...]
    """Those that no function wrote to; their values mean nothing."""


class FirstValues:
    """A copy of a model without numbers, whose modules make theirs one at a time.

    All tensors but those of one module stay on the meta device meanwhile, where writing does
    nothing. So a function that fills the whole tree can be run for one module of it, and what
    comes out is the same whoever runs it, whatever he holds of the model.
    """

    def __init__(self, model: nn.Module) -> None:
        tensors = (*model.parameters(), *model.buffers())
        known = {id(tensor): tensor for tensor in tensors if not tensor.is_meta}
        self._model = copy.deepcopy(model, memo=dict(known))
        self._modules = dict(self._model.named_modules())
        self.groups = list(self._groups())

    def _groups(self) -> Iterator[Group]:
        seen = set[int]()
        for path, module in self._modules.items():
            own = _own(module)
            fresh = {n: t for n, t in own.items() if t.is_meta and id(t) not in seen}
            seen.update(map(id, own.values()))
            if fresh:
                names = {name: f"{path}.{name}" if path else name for name in fresh}
                size = sum(tensor.numel() * tensor.element_size() for tensor in fresh.values())
                yield Group(path, names, size)

    @torch.no_grad()
    def make(self, group: Group, seed: int, device: torch.device) -> Made:
        """The complete values of one group, the same for the same seed."""
        module, watch = self._modules[group.path], _Written()
        empty = {name: _own(module)[name] for name in group.names}
        for name, tensor in empty.items():
            _put(module, name, _unwritten(tensor, device))
        begun = {name: _own(module)[name] for name in group.names}
        devices = [] if device.type == "cpu" else [device]
        try:
            with torch.random.fork_rng(devices, device_type=device.type), device:
                for path, action in self._actions(group.path):
                    torch.manual_seed(_seed(seed, path, group.path))
                    with watch:
                        _run(action, path, group.path)
            found = {name: _own(module)[name] for name in group.names}
        finally:
            for name, tensor in empty.items():
                _put(module, name, tensor)
        left = [n for n, t in found.items() if t is begun[n] and not watch.all_of(t)]
        return Made(
            values={group.names[name]: tensor.detach() for name, tensor in found.items()},
            left_out=tuple(group.names[name] for name in left),
        )

    def _actions(self, path: Path) -> Iterator[tuple[Path, Action]]:
        """What a constructor runs: from the inside out, and then what is applied to the model."""
        chain = [self._modules[place] for place in _outwards(path)]
        places = _outwards(path)
        for place, module in zip(places, chain, strict=True):
            for action in _constructing(module):
                yield place, action
        for at, (place, module) in enumerate(zip(places, chain, strict=True)):
            owner = next(filter(None, map(_applied, chain[at:])), None)
            if owner is not None:
                yield place, _bound(owner, module)

    def lost(self) -> list[tuple[str, str]]:
        """Classes whose constructors write values themselves, which nobody can repeat.

        With the name of a function by which each of them does so.
        """
        found: dict[str, str] = {}
        for path, module in self._modules.items():
            kind = type(module)
            if kind.__module__.startswith("torch.") or any(True for _ in _constructing(module)):
                continue
            used = _names_in(vars(kind).get("__init__")) & _FILLING
            covered = any(_applied(self._modules[place]) for place in _outwards(path))
            if used and not covered:
                found.setdefault(kind.__qualname__, min(used))
        return list(found.items())


_FILLING = frozenset(n for n in dir(nn.init) if n.endswith("_") and n[0] != "_") | {
    "apply",
    "named_apply",
}
"""Names by which a constructor fills tensors."""


def _names_in(function: Any) -> set[str]:
    pending: list[Any] = [getattr(inspect.unwrap(function), "__code__", None)] if function else []
    found = set[str]()
    while pending:
        code = pending.pop()
        if isinstance(code, CodeType):
            found.update(code.co_names)
            pending += code.co_consts
    return found


def _own(module: nn.Module) -> dict[str, Tensor]:
    held = {**parameters_of(module), **buffers_of(module)}
    return {name: tensor for name, tensor in held.items() if tensor is not None}


def _put(module: nn.Module, name: str, tensor: Tensor) -> None:
    if name in parameters_of(module):
        assert isinstance(tensor, nn.Parameter)
        parameters_of(module)[name] = tensor
        # What torch's recurrent layers keep beside their parameters.
        if isinstance(module, nn.RNNBase):
            setattr(module, name, tensor)
    else:
        buffers_of(module)[name] = tensor


def _unwritten(tensor: Tensor, device: torch.device) -> Tensor:
    """Memory for a tensor, in which what nobody writes to is no number where there is such."""
    made = torch.empty_like(tensor, device=device)
    if made.is_floating_point() or made.is_complex():
        made.fill_(float("nan"))
    if not isinstance(tensor, nn.Parameter):
        return made
    return nn.Parameter(made, requires_grad=tensor.requires_grad)


class _Written(TorchDispatchMode):
    """Notes which memory operators write to.

    What has no memory is passed over, which is quicker than letting torch find that out.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._places = set[int]()

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in written(func, args):
            if tensor.is_meta:
                return tensor
            self._places.add(tensor.untyped_storage().data_ptr())
        return func(*args, **(kwargs or {}))

    def all_of(self, tensor: Tensor) -> bool:
        """Whether all of it was written to, as far as can be known."""
        if not tensor.numel():
            return True
        if tensor.untyped_storage().data_ptr() not in self._places:
            return False
        return not (tensor.is_floating_point() and bool(tensor.isnan().any()))


def _outwards(path: Path) -> list[Path]:
    """A path and all around it, the model last."""
    steps = path.split(".") if path else []
    return [".".join(steps[:length]) for length in range(len(steps), -1, -1)]


def _constructing(module: nn.Module) -> Iterator[Action]:
    """The functions of a module that fill it as its constructor does."""
    for name in _RESETS:
        if _takes_nothing(action := getattr(module, name, None)):
            yield action  # type: ignore[misc]
            break
    if not _walks(module) and _takes_nothing(action := getattr(module, "init_weights", None)):
        yield action  # type: ignore[misc]


def _applied(module: nn.Module) -> Callable[[nn.Module], Any] | None:
    """The function of a model that is applied to each of its modules, if it has such a one."""
    action = getattr(module, "_init_weights", None)
    if not callable(action) or _takes_nothing(action):
        return None
    if not _walks(module) and _takes_nothing(getattr(module, "init_weights", None)):
        return None  # which applies it, or what replaced it
    return action  # type: ignore[no-any-return]


def _walks(module: nn.Module) -> bool:
    """Whether it is a model of transformers: its ``init_weights`` passes over what has a mark."""
    return callable(getattr(module, "_initialize_weights", None))


def _takes_nothing(action: Any) -> bool:
    if not callable(action):
        return False
    try:
        inspect.signature(action).bind()
    except (TypeError, ValueError):
        return False
    return True


def _bound(action: Callable[[nn.Module], Any], module: nn.Module) -> Action:
    return lambda: action(module)


def _run(action: Action, path: Path, group: Path) -> None:
    try:
        action()
    except Exception as error:
        raise ValueError(
            f"the function that fills {path or 'the model'!r} fails for the tensors of "
            f"{group or 'the model'!r} while all others are on the meta device "
            f"({type(error).__name__}: {error}); make the model without torch.device('meta')."
        ) from error


def _seed(seed: int, *names: str) -> int:
    text = "\n".join((str(seed), *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
