"""What a layer over a sparse table owes to the carrier that moves its gradients."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fleetx.ps import kernels
from fleetx.ps.client import Batch
from fleetx.ps.entries import CountFilterEntry, Entry, ProbabilityEntry
from fleetx.ps.hashing import Floats
from fleetx.ps.initializers import Initializer, Uniform
from fleetx.ps.rules import Rule


@dataclass(frozen=True)
class Lookup:
    """One use of a table in a forward: which rows, and what became of them."""

    batch: Batch
    result: Tensor
    back: Callable[[Tensor], Floats]
    """From the gradient of the result to those of the rows."""
    stats: Floats | None


@dataclass(frozen=True)
class Gathered:
    """Gradients of one update: each row once."""

    batch: Batch
    gradients: Floats
    stats: Floats | None


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """What a user says about a table."""

    name: str
    dim: int
    rule: Rule | None = None
    """None takes the job's optimizer."""
    initializer: Initializer = field(default_factory=Uniform)
    entry: Entry | None = None
    seed: int = 0
    wire: str | None = None
    """The form in which rows and gradients travel; None for float32."""


class Carries(Protocol):
    """A strategy that moves gradients of rows; it has a carrier when the optimizer is there."""

    @property
    def carrier(self) -> Any:
        """What gradients go to and rows come from."""


@dataclass
class Home:
    """Where a layer's rows are; one for all forms of a layer that programs make."""

    strategy: Carries | None = None
    """There when the model was distributed."""


class SparseModule(nn.Module):
    """A layer whose rows live on servers.

    ``anchor`` stands for the rows among the model's parameters: it is empty, but while an update is
    made it bears their gradients, so that whatever scales or limits gradients reaches them too.
    """

    options: TableOptions
    one_operator = True
    """Programs record its call, not what it does."""

    def __init__(self, options: TableOptions) -> None:
        super().__init__()
        self.options, self.home = options, Home()
        self.anchor = nn.Parameter(torch.empty(0, options.dim))
        self.lookups: list[Lookup] = []
        """What forwards have used since the last update."""

    @property
    def counts_sightings(self) -> bool:
        """Whether ids get a row by how often they were met."""
        return isinstance(self.options.entry, CountFilterEntry | ProbabilityEntry)

    def reset_parameters(self) -> None:
        """Nothing: what rows begin with follows from their ids, on the servers."""

    def forget_ahead(self) -> None:
        """Let go of rows that were fetched for later batches."""

    def gather(self, servers: int) -> Gathered:
        """The gradients of all lookups since the last time, each row once."""
        each = []
        for look in self.lookups:
            if look.result.grad is not None:
                # Behind them there may be one for ids that stand for nothing.
                gradients = look.back(look.result.grad)[: len(look.batch.ids)]
                each.append(Gathered(look.batch, gradients, look.stats))
        self.lookups.clear()
        return joined(each, servers, self.options.dim)

    def lend(self, gathered: Gathered) -> None:
        """Let the anchor bear gradients, for those that look at parameters."""
        anchor, gradients = self.anchor, torch.from_numpy(gathered.gradients)
        if not anchor.is_cpu:
            gradients = gradients.to(anchor.device)
        # One number seen many times: only the shape is wanted.
        anchor.grad = None
        anchor.data = anchor.new_zeros(1, 1).expand(gradients.shape)
        anchor.grad = gradients

    def take_back(self) -> Floats:
        """What has become of the gradients; the anchor is empty again."""
        anchor = self.anchor
        gradients = array_of(anchor.grad)
        anchor.grad = None
        anchor.data = anchor.new_empty(0, self.options.dim)
        return gradients


def array_of(tensor: Tensor | None) -> Floats:
    """The numbers of a tensor that may be anywhere."""
    assert tensor is not None
    tensor = tensor.detach()
    if not tensor.is_cpu or tensor.dtype != torch.float32:
        tensor = tensor.to("cpu", torch.float32)
    array: Floats = np.ascontiguousarray(tensor.numpy())
    return array


def joined(gathered: list[Gathered], servers: int, dim: int, share: float = 1.0) -> Gathered:
    """The sum of several, each row once, times a factor."""
    if len(gathered) == 1 and share == 1.0:
        return gathered[0]
    ids = [one.batch.ids for one in gathered] or [np.empty(0, np.int64)]
    rows = [one.gradients for one in gathered] or [np.empty((0, dim), np.float32)]
    batch = Batch.of(np.concatenate(ids), servers)
    counted = [one.stats for one in gathered if one.stats is not None]
    stats = _summed(np.concatenate(counted), batch) if counted else None
    return Gathered(batch, _summed(np.concatenate(rows), batch) * np.float32(share), stats)


def _summed(rows: Floats, batch: Batch) -> Floats:
    total = np.zeros((len(batch.ids), rows.shape[1]), np.float32)
    kernels.active.sum_rows(np.ascontiguousarray(rows), batch.place, total)
    return total
