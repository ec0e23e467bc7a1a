"""A model that was made on the meta device: it is laid out first, and numbers come afterwards."""

import logging
from collections.abc import Collection, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fleetx.comm.shares import keep_share
from fleetx.graph.first_values import FirstValues, Group
from fleetx.plan.error import PlanError
from fleetx.torch_internals import buffers_of, moved_or_empty, parameters_of

logger = logging.getLogger(__name__)
SHOWN = 4
"""Names that a complaint lists."""


class Unmade:
    """What of a model has a shape and no numbers; each rank makes its own share of them.

    Every rank draws the complete values of one module after the other, from a seed that the job
    and the module's name give, and keeps its part. So nothing is sent, no rank holds more than its
    share and one module, and all layouts begin with the same whole weights.
    """

    def __init__(self, model: nn.Module, promised: Collection[str] = ()) -> None:
        """Learn how the model makes its values.

        Args:
            model: as its user made it.
            promised: names of tensors that somebody will load, which need not be drawn.
        """
        self._first = FirstValues(model)
        self._names = _names(model)
        """Every name of a tensor without numbers -> its first one."""
        self._promised = frozenset(self._names.get(name, name) for name in promised)
        self._seed: int | None = None
        self.without = set[str]()
        """First names of tensors that are still without numbers, because no module makes them."""

    def given(self, names: Iterable[str]) -> None:
        """Somebody brought the numbers of these tensors."""
        self.without -= {self._names.get(name, name) for name in names}

    def place(self, model: nn.Module, device: torch.device) -> None:
        """Move a model to its device, and make what this rank holds of it there."""
        if self._seed is None:  # every rank comes here, also one that holds nothing
            self._seed = _common_seed(device)
        if not (held := self._held(model)):
            model.to(device)
            return
        moved_or_empty(model, device)
        lost = [] if self._promised else self._first.lost()
        for kind, function in lost if not dist.is_initialized() or dist.get_rank() == 0 else ():
            logger.warning(
                "The constructor of %s fills tensors itself (%s), which a model on the meta device "
                "cannot repeat: they begin as their layers' reset_parameters() says. Give the "
                "class an _init_weights(self, module) that does the same, or load weights.",
                kind,
                function,
            )
        for group in self._first.groups:
            self._make(group, device, model, held)
        _follow_attributes(model)

    def _held(self, model: nn.Module) -> set[str]:
        return {self._names[name] for name, _ in _empty(model)}

    def _make(self, group: Group, device: torch.device, model: nn.Module, held: set[str]) -> None:
        assert self._seed is not None
        wanted = held.intersection(group.names.values())
        if not wanted - self._promised:
            self.without |= wanted
            return
        made = self._first.make(group, self._seed, device)
        targets = self._targets(model, wanted)
        for name in wanted:
            keep_share(targets[name], made.values[name])
        self.without |= wanted.intersection(made.left_out)

    def _targets(self, model: nn.Module, wanted: Collection[str]) -> dict[str, Tensor]:
        """Where tensors lie here: of a tied one, this rank may hold a later place alone."""
        found: dict[str, Tensor] = {}
        for name, first in self._names.items():
            if first in wanted and first not in found:
                path, _, own = name.rpartition(".")
                module = model.get_submodule(path)
                tensor = parameters_of(module).get(own, buffers_of(module).get(own))
                if tensor is not None:
                    found[first] = tensor
        return found

    def check(self) -> None:
        """Complain of what still has no numbers, when they are needed."""
        if self.without:
            raise PlanError(_told(sorted(self.without)))


def unmade(model: nn.Module, promised: Collection[str] = ()) -> Unmade | None:
    """What of a model has no numbers; None of a model that has them all."""
    return Unmade(model, promised) if _names(model) else None


def _told(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    shown = ", ".join(names[:SHOWN]) + more
    return (
        f"the model was made on the meta device, and nothing gives {shown} "
        "their first numbers: their modules have neither reset_parameters() nor a model around "
        "them with _init_weights(module) that fills them. Give the module a reset_parameters(), "
        "load all weights with fleet.load_weights(model, folder), or make the model without "
        "torch.device('meta')."
    )


def _names(model: nn.Module) -> dict[str, str]:
    seen: dict[int, str] = {}
    return {name: seen.setdefault(id(t), name) for name, t in _empty(model)}


def _empty(model: nn.Module) -> list[tuple[str, Tensor]]:
    """The tensors without numbers under each of their names."""
    parameters = model.named_parameters(remove_duplicate=False)
    named = [*parameters, *model.named_buffers(remove_duplicate=False)]
    return [(name, tensor) for name, tensor in named if tensor.is_meta]


def _common_seed(device: torch.device) -> int:
    """The seed of worker 0, from which all of them draw."""
    own = torch.initial_seed() % 2**63
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return own
    shared = torch.tensor(own, device=device)
    dist.broadcast(shared, src=0)
    return int(shared)


def _follow_attributes(model: nn.Module) -> None:
    """Complain of plain attributes that are tensors without numbers, which nobody can make."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.is_meta:
                raise PlanError(
                    f"{path or 'the model'!r} has a tensor on the meta device as the plain "
                    f"attribute {name!r}, of which nothing says how it is made; register it as a "
                    "buffer and fill it in reset_parameters(), or make the model without "
                    "torch.device('meta')."
                )
