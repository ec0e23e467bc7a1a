"""Whether a model still has the parameters that were laid out, which everything else holds."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fleetx.comm.held_gradients import records

_INSTEAD = (
    "Load with model.load_state_dict(state) without assign=True, or fleet.load_full_state_dict(), "
    "and change layers before fleet.distributed_model()."
)


@dataclass(frozen=True)
class _Place:
    owner: dict[str, Any]
    """The parameters or the children of a module."""
    key: str
    held: Any
    what: str


class LaidOut:
    """Looks at every place once per batch, so it asks dictionaries and not the tree of modules."""

    def __init__(self, model: nn.Module) -> None:
        modules = dict(model.named_modules(remove_duplicate=False))
        self._records = _records(model)
        """What is spread in units, whose places hold the whole parameter now and a part then."""
        spread = {id(held) for _, held, _ in self._records}
        self._places = list[_Place]()
        for path, module in modules.items():
            lead = f"{path}." if path else ""
            for key, child in module._modules.items():
                if child is not None and next(child.parameters(), None) is not None:
                    what = f"the submodule {lead + key!r}"
                    self._places.append(_Place(module._modules, key, child, what))
            for key, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in spread:
                    what = f"the parameter {lead + key!r}"
                    self._places.append(_Place(module._parameters, key, parameter, what))
        own: list[tuple[str, Tensor]] = [(path, held) for _, held, path in self._records]
        own += [(path, p) for path, p in model.named_parameters() if id(p) not in spread]
        self._formats = [(path, parameter, parameter.dtype) for path, parameter in own]

    def check(self) -> None:
        """Complain of a parameter that was replaced or has another format."""
        for place in self._places:
            if place.owner.get(place.key) is not place.held:
                raise RuntimeError(_replaced(place.what))
        for record, parameter, path in self._records:
            if record.sharded_param is not parameter:
                raise RuntimeError(_replaced(f"the parameter {path!r}"))
        for path, parameter, dtype in self._formats:
            if parameter.dtype is not dtype:
                raise RuntimeError(_converted(path, dtype, parameter))


def _records(model: nn.Module) -> list[tuple[Any, Tensor, str]]:
    if not any(hasattr(module, "_get_fsdp_state") for module in model.modules()):
        return []
    return [(record, record.sharded_param, name) for name, record in records(model)]


def _replaced(what: str) -> str:
    return (
        f"{what} was replaced after fleet.distributed_model(), and what exchanges and moves "
        f"parameters holds the old ones, which would train without effect. {_INSTEAD}"
    )


def _converted(path: str, dtype: torch.dtype, parameter: Tensor) -> str:
    return (
        f"the parameter {path!r} was {dtype} in fleet.distributed_model() and is {parameter.dtype} "
        "now, and what exchanges and moves parameters was made for the former. Convert the model "
        "before fleet.distributed_model(), or set strategy.amp = True to compute in 16 bits."
    )
