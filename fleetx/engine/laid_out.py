"""Whether a model still has the parameters that were laid out, which everything else holds."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fleetx.comm.held_gradients import records
from fleetx.torch_internals import children_of, is_fsdp, parameters_of

SHOWN = 4
"""Names that a complaint lists of each kind."""


@dataclass(frozen=True)
class _Place:
    owner: dict[str, Any]
    """The parameters or the children of a module."""
    key: str
    held: Any
    path: str
    strict: bool
    """Whether it was a parameter, or had some; what had none may be exchanged for its like."""

    @property
    def is_left(self) -> bool:
        """Whether something else, or nothing, is there now."""
        return self.owner.get(self.key) is not self.held


class LaidOut:
    """Looks at every place once per batch, so it asks dictionaries and not the tree of modules."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._records = _records(model)
        """What is spread in units, whose places hold the whole parameter now and a part then."""
        spread = {id(held) for _, held, _ in self._records}
        owners = [parameters_of(module) for module in model.modules()]
        self._swapped = {
            (id(owner), key) for owner in owners for key, p in owner.items() if id(p) in spread
        }
        own: list[tuple[str, Tensor]] = [(path, held) for _, held, path in self._records]
        own += [(path, p) for path, p in model.named_parameters() if id(p) not in spread]
        # One without numbers stands for something elsewhere, and may show gradients of that.
        self._formats = [(path, p, p.dtype, p.shape if p.numel() else None) for path, p in own]
        self._names = dict(model.named_parameters(remove_duplicate=False)).keys()
        self._look()

    def _look(self) -> None:
        self._places = list[_Place]()
        self._sizes = list[tuple[dict[str, Any], int]]()
        for path, module in self._model.named_modules(remove_duplicate=False):
            lead = f"{path}." if path else ""
            for owner in (children_of(module), parameters_of(module)):
                self._sizes.append((owner, len(owner)))
                self._places += [
                    _Place(owner, key, held, lead + key, _has_parameters(held))
                    for key, held in owner.items()
                    if (id(owner), key) not in self._swapped
                ]

    def check(self) -> None:
        """Complain of parameters that are gone, new, replaced, or have another format or shape."""
        if self._differs():
            self._refuse_changed()
            self._look()  # at what came without parameters to train
        for path, parameter, dtype, shape in self._formats:
            if parameter.dtype is not dtype:
                raise RuntimeError(_converted(path, dtype, parameter))
            if shape is not None and parameter.shape != shape:
                raise RuntimeError(_resized(path, shape, parameter))

    def _differs(self) -> bool:
        return (
            any(place.owner.get(place.key) is not place.held for place in self._places)
            or any(len(owner) != size for owner, size in self._sizes)
            or any(record.sharded_param is not held for record, held, _ in self._records)
        )

    def _refuse_changed(self) -> None:
        now = dict(self._model.named_parameters(remove_duplicate=False))
        held = {id(parameter) for _, parameter, *_ in self._formats}
        left = [place.path for place in self._places if place.strict and place.is_left]
        left += [path for record, p, path in self._records if record.sharded_param is not p]
        trained = [name for name, p in now.items() if p.requires_grad and id(p) not in held]
        new = [name for name in trained if name not in self._names]
        if left or new:
            gone = [name for name in self._names if name not in now]
            replaced = [n for n in now if n in self._names and _is_in(n, left)]
            raise RuntimeError(_changed(new=new, gone=gone, replaced=replaced))


def _has_parameters(held: Any) -> bool:
    if isinstance(held, nn.Module):
        return next(held.parameters(), None) is not None
    return held is not None


def _is_in(name: str, paths: Iterable[str]) -> bool:
    return any(f"{name}.".startswith(f"{path}.") for path in paths)


def _records(model: nn.Module) -> list[tuple[Any, Tensor, str]]:
    if not any(is_fsdp(module) for module in model.modules()):
        return []
    return [(record, record.sharded_param, name) for name, record in records(model)]


def _changed(**kinds: Iterable[str]) -> str:
    told = [f"{kind}: {_listed([*names])}" for kind, names in kinds.items() if names]
    return (
        f"the model was changed after fleet.distributed_model() (parameters {'; '.join(told)}). "
        "What exchanges and moves parameters holds those of then: new ones would differ from "
        "worker to worker, and old ones train without effect. Replace a head, add layers and "
        "convert weights before fleet.distributed_model(), and give the optimizer the parameters "
        "of what it returns; load weights with model.load_state_dict(state) without assign=True, "
        "or fleet.load_full_state_dict()."
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _converted(path: str, dtype: torch.dtype, parameter: Tensor) -> str:
    return (
        f"the parameter {path!r} was {dtype} in fleet.distributed_model() and is {parameter.dtype} "
        "now, and what exchanges and moves parameters was made for the former. Convert the model "
        "before fleet.distributed_model(), or set strategy.amp = True to compute in 16 bits; a "
        "forward that converts it to the format of its inputs, as losses of "
        "pytorch-metric-learning do, is called with inputs in the former one."
    )


def _resized(path: str, shape: torch.Size, parameter: Tensor) -> str:
    return (
        f"the parameter {path!r} had the shape {list(shape)} in fleet.distributed_model() and has "
        f"{list(parameter.shape)} now, and what exchanges and moves parameters was made for the "
        "former. Resize embeddings (resize_token_embeddings) and other layers before "
        "fleet.distributed_model()."
    )
