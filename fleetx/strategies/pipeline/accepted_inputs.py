"""The arguments that a model was cut with, which are those that batches must give."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from fleetx.torch_internals import tree_leaves


class Accepted:
    """What the forward of a model took when it was followed.

    A followed forward holds the defaults of its arguments as constants, so that another value of
    one would change nothing. Those that a sample gives as tensors are inputs instead, and what else
    it gives are constants in place of the defaults.
    """

    def __init__(self, model: nn.Module, sample: Mapping[str, Any] | None = None) -> None:
        _, *known = inspect.signature(type(model).forward).parameters.values()
        self._defaults = {p.name: p.default for p in known if p.default is not p.empty}
        self._rest = {p.name for p in known if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        held = {name for name, value in (sample or {}).items() if _has_tensors(value)}
        self.given = frozenset(held & self._defaults.keys())
        """Arguments with a default that are inputs nevertheless."""
        values = {n: v for n, v in (sample or {}).items() if n not in held | self._rest}
        self._defaults |= values
        self.sample = sample
        if sample is not None:
            self.check(sample)

    def check(self, inputs: Mapping[str, Any]) -> None:
        """Refuse arguments that the model would not notice, and missing ones that it needs."""
        for name, value in inputs.items():
            if name in self._rest and value:
                raise ValueError(
                    f"the batch gives more inputs than forward has names for, and what only its "
                    f"*args or **kwargs take ({name!r}) is left out when the model is cut; name "
                    "these arguments in forward."
                )
            if name in self._defaults and name not in self.given:
                self._check_default(name, value)
        for name in sorted(self.given):
            if not _has_tensors(inputs.get(name)):
                raise ValueError(
                    f"the model was cut for batches that give {name!r}, as the sample did, and "
                    "this one does not; give it in every batch, or leave it out of the sample of "
                    "fleet.distributed_model()."
                )

    def _check_default(self, name: str, value: Any) -> None:
        default = self._defaults[name]
        if _same(value, default):
            return
        if _has_tensors(value):
            raise ValueError(
                f"the batch gives {name!r}, which has a default in forward, and the model was cut "
                "with this default, so that what is given would change nothing. Call "
                f"fleet.distributed_model(model, sample=inputs) with inputs that hold {name!r}, "
                "or leave it out of all batches."
            )
        raise ValueError(
            f"the batch gives {name!r} = {value!r}, and the model was cut with {default!r}, its "
            "default or what the sample gave: only tensors may differ. Give the sample of "
            "fleet.distributed_model() the same value, or let forward read an attribute of the "
            "model."
        )


def _has_tensors(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))


def _same(value: Any, default: Any) -> bool:
    return value is default or _equal(value, default)


def _equal(value: Any, default: Any) -> bool:
    """Whether two plain values are the same; of others nothing is known."""
    plain = bool | int | float | str
    return type(value) is type(default) and isinstance(value, plain) and bool(value == default)
