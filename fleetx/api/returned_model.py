"""The class of a module that was distributed: the user's, with words for habits of torch's DDP."""

import copyreg
import sys
from collections.abc import Collection, Iterator
from typing import Any, ClassVar, cast

from torch import nn
from typing_extensions import override

from fleetx.api.parts_of_parameters import PartsOfParameters
from fleetx.api.parts_of_state import own_part, tell_of_parts, tell_of_rows
from fleetx.api.wrappers import of_fsdp
from fleetx.plan.error import PlanError

_NEW: Any = vars(copyreg)["__newobj__"]
"""How objects of most classes are made anew."""
_LOOKS = ("__doc__", "__deepcopy__")
HABITS = {
    "module": (
        "fleet.distributed_model() returns your own module and no wrapper like "
        "DistributedDataParallel, so there is nothing to unwrap: write model instead of "
        "model.module"
    ),
    "no_sync": (
        "to add up the gradients of 4 batches and exchange them once, set strategy.gradient_merge "
        "= True and strategy.gradient_merge_configs = {'k_steps': 4, 'avg': True} before "
        "fleet.init(strategy=strategy), and call optimizer.minimize(loss) for every batch, without "
        "no_sync(): each fourth one ends in an update"
    ),
}
"""Attributes of a wrapper that a script asks the module for -> what to write instead."""


class Returned:
    """Stands before the user's class; copies and pickles are of that class alone.

    Compiled code is kept by the class of a module and not by its hooks, so that one class for each
    distributed module keeps torch.compile from running code that it made for a plain one.
    """

    _names_of_all: ClassVar[Collection[str]] = ()
    """In the state of the plain model, until the script was told that it gets less."""
    _parts: ClassVar[PartsOfParameters | None] = None
    """Where other workers hold some of its parameters."""

    @override
    def __init_subclass__(cls) -> None:
        """Leave out those of users, which may keep a register of their classes."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """What the module itself gives, and once a word where that is a part of the model."""
        state = super().state_dict(*args, **kwargs)  # type: ignore[misc]
        own = type(self)
        if own._names_of_all:
            plain, frame = cast(nn.Module, self), sys._getframe(1)
            # A module around it collects the states of several in one.
            held = own_part(state, kwargs.get("prefix", args[1] if len(args) > 1 else ""))
            if tell_of_parts(held, own._names_of_all, frame) or tell_of_rows(plain, frame):
                own._names_of_all = ()
        return state

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """What the module itself gives, with an eye on who goes over a part of the model."""
        found = super().named_parameters(*args, **kwargs)  # type: ignore[misc]
        parts = type(self)._parts
        return found if parts is None else parts.of(found)

    def __getattr__(self, name: str) -> Any:
        """What the module itself answers; where it has nothing, words instead of torch's."""
        try:
            return super().__getattr__(name)  # type: ignore[misc]
        except AttributeError as error:
            if name not in HABITS:
                raise
            raise AttributeError(f"{error}; {HABITS[name]}.", name=name, obj=self) from None

    @override
    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced, own = super().__reduce_ex__(protocol), type(self)
        if isinstance(reduced, str) or own.__bases__[0] is not Returned:
            return reduced
        make, given, *rest = reduced
        plain = own.__bases__[1]
        if make is _NEW:  # for which pickle wants the class that the module has
            make = plain.__new__
        given = tuple(plain if value is own else value for value in given)
        return (plain if make is own else make, given, *rest)


def give_words(model: nn.Module, names: Collection[str], parts: PartsOfParameters) -> None:
    """Let the module, and no other of its class, answer for what wrappers of torch have.

    Args:
        model: of which this worker may hold a part.
        names: in the state of the plain model.
        parts: who looks at scripts that go over its parameters.
    """
    known = type(model)
    if issubclass(known, Returned):  # of a job before
        return
    # Torch, too, puts a class before the user's, and counts on being the first and the user's next.
    if known.__bases__[0] in of_fsdp("FSDPModule"):
        own = _before(known, known.__bases__[0], _own(known.__mro__[2]))
        own.__deepcopy__ = _refuse_copy
    else:
        own = _own(known)
    # Past ``__setattr__`` of users. Python allows it between classes whose objects look alike in
    # memory: ``own`` adds no slots, so they do, whatever the user's class has.
    object.__setattr__(model, "__class__", own)
    own._names_of_all, own._parts = names, parts if parts.absent else None


def _refuse_copy(model: nn.Module, memo: Any) -> Any:
    raise PlanError(
        "copy.deepcopy(model), by which averages of weights (EMA) begin, too, would copy this "
        "worker's share of a model that strategy.sharding = True has spread, which cannot run by "
        "itself. Copy the model before fleet.distributed_model(), and bring the copy up to date "
        "with copy.load_state_dict(fleet.full_state_dict(model, everywhere=True)); or set "
        "strategy.sharding = False."
    )


def _own(plain: type) -> Any:
    return _before(plain, Returned, plain)


def _before(like: type, first: type, second: type) -> Any:
    """A class that looks like another; metaclasses of users shall not hear of it."""
    kept = {name: value for name, value in vars(like).items() if name in _LOOKS}
    kept |= {"__module__": like.__module__, "__qualname__": like.__qualname__}
    return type.__new__(type(like), like.__name__, (first, second), kept)
