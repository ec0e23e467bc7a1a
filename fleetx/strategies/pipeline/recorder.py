"""Records or refuses what python and torch would decide at once while a forward is followed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode, is_tensor_method_or_property
from typing_extensions import override

from fleetx.graph.torch_functions import FACTORY_NAMES, RARE_FACTORY_NAMES, SIZES
from fleetx.strategies.pipeline.refusal import REMEDY
from fleetx.torch_internals import tree_leaves

if TYPE_CHECKING:
    from fleetx.strategies.pipeline.tracer import Follower

_ABSENT = object()
_HARMLESS = SIZES | {"__repr__", "__format__", "__hash__", "__len__", "is_floating_point"}


@contextmanager
def recording(tracer: "Follower") -> Iterator[None]:
    """Record what makes tensors, note which modes are asked for, refuse what cannot be known."""
    makers = {getattr(torch, name): name for name in (*FACTORY_NAMES, *RARE_FACTORY_NAMES)}
    with ExitStack() as stack:
        for make, name in [*makers.items(), (torch.finfo, "finfo"), (torch.iinfo, "iinfo")]:
            stack.enter_context(_replaced(torch, name, _making(tracer, make)))
        stack.enter_context(_replaced(nn.Module, "__setattr__", _setting(tracer)))
        stack.enter_context(_replaced(nn.Module, "training", _training(tracer)))
        stack.enter_context(_Record(tracer, frozenset(makers)))
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = owner.__dict__.get(name, _ABSENT)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _making(tracer: "Follower", make: Callable[..., Any]) -> Callable[..., Any]:
    """Sizes that are not known yet pass torch's own argument checks only here and there."""

    def record(*args: Any, **kwargs: Any) -> Any:
        if _any(fx.Proxy, (args, kwargs)):
            return tracer.create_proxy("call_function", make, args, kwargs)
        return make(*args, **kwargs)

    return record


def _setting(tracer: "Follower") -> Callable[[nn.Module, str, Any], None]:
    def refuse(module: nn.Module, name: str, value: Any) -> None:
        raise tracer.refusal(
            f"the attribute {name!r} of a module is set, which would happen once instead of at "
            "every step"
        )

    return refuse


def _training(tracer: "Follower") -> property:
    """The mode is a constant of the graph; which modules were asked is noted."""

    def get(module: nn.Module) -> bool:
        mode: bool = module.__dict__["training"]
        tracer.note_mode(module, mode)
        return mode

    def set_(module: nn.Module, mode: bool) -> None:
        raise tracer.refusal(
            f"a {type(module).__name__} is made or switched between training and evaluating",
            remedy=f"do it outside of the forward, or {REMEDY}",
        )

    return property(get, set_)


class _Record(TorchFunctionMode):
    """Functions of torch on tensors that are no proxies, and those that make tensors."""

    def __init__(self, tracer: "Follower", makers: frozenset[Any]) -> None:
        super().__init__()
        self._tracer, self._makers = tracer, makers

    @override
    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not _any(fx.Proxy, (args, kwargs)):
            if _any(Tensor, (args, kwargs)):
                return self._stored(func, args, kwargs)
            if func not in self._makers:
                return self._executed(func, args, kwargs)
        return self._recorded(func, args, kwargs)

    def _stored(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A tensor that is an ordinary attribute of a module: its sizes are known."""
        name = func.__name__
        if name == "__get__":
            name = func.__self__.__name__
            if name not in SIZES | {"dtype", "device", "requires_grad", "is_nested"}:
                return self._tracer.create_proxy("call_function", getattr, (*args[:1], name), {})
        elif name not in _HARMLESS:
            return self._recorded(func, args, kwargs)
        return func(*args, **kwargs)

    def _executed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if _any(Tensor, result):
            name = getattr(func, "__name__", str(func))
            raise self._tracer.refusal(
                f"{name} makes a tensor, which would be the same at every step"
            )
        return result

    def _recorded(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_tensor_method_or_property(func):
            return self._tracer.create_proxy("call_method", func.__name__, args, kwargs)
        return self._tracer.create_proxy("call_function", func, args, kwargs)


def _any(kind: type, tree: Any) -> bool:
    return any(isinstance(leaf, kind) for leaf in tree_leaves(tree))
