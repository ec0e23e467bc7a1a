"""Parameters that a script kept from before, and that other workers have now.

``params = list(model.parameters())`` before ``fleet.distributed_model()`` holds those of all stages
of a pipeline; gradients come to those of this worker's stages alone.
"""

import sys
import weakref
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from fleetx.api.parts_of_parameters import PartsOfParameters

_GRAD: Any = Tensor.grad
References = Mapping[str, "weakref.ref[nn.Parameter]"]


def by_names(model: nn.Module) -> References:
    """The parameters of a model, which are not kept alive by it."""
    return {name: weakref.ref(parameter) for name, parameter in model.named_parameters()}


def mark_absent(before: References, held: Mapping[str, Any], parts: PartsOfParameters) -> None:
    """Let those that this worker let go of say so when they are asked for their gradient.

    Args:
        before: those of the whole model.
        held: what this worker has of it, by the same names.
        parts: who looks at scripts that ask.
    """
    own: Any = type("Parameter", (_Absent,), {"_parts": parts})
    for name, reference in before.items():
        parameter = None if name in held else reference()
        if type(parameter) is nn.Parameter:
            # Python allows it: objects of both classes look alike in memory.
            parameter.__class__ = own


class _Absent(nn.Parameter):
    """One that is not part of the model on this worker any more."""

    _parts: ClassVar[PartsOfParameters]

    @property  # type: ignore[explicit-override]  # which mypy does not see where setters follow
    def grad(self) -> Any:
        """Its gradient, which will never come."""
        self._parts.of_absent(sys._getframe(1), _Absent)
        return _GRAD.__get__(self)

    @grad.setter
    def grad(self, value: Any) -> None:
        _GRAD.__set__(self, value)

    @grad.deleter
    def grad(self) -> None:
        _GRAD.__delete__(self)
