"""The base of layers over sparse tables: it hands gradients of rows to the carrier."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fleetx.ps.tables.entries import CountFilterEntry, ProbabilityEntry
from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.row_source import RowSource, TableOptions
from fleetx.ps.wire.arrays import Floats
from fleetx.ps.worker.row_gradients import RowGradients, array_of, joined

_EVALUATED = (
    "an update was asked for, and the layer of table {} is in evaluation mode, in which rows are "
    "looked up but not trained; call model.train() before, and eval() for layers alone that shall "
    "keep their statistics, or freeze the table with requires_grad_(False)"
)


@dataclass(frozen=True)
class Lookup:
    """One use of a table in a forward: which rows, and what became of them."""

    batch: IdBatch
    result: Tensor
    backward: Callable[[Tensor], Floats]
    """From the gradient of the result to those of the rows."""
    stats: Floats | None


@dataclass
class _SharedSource:
    """Where rows come from; one object for all shallow copies of a layer that programs make."""

    source: RowSource | None = None


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
        self.options = options
        self._shared = _SharedSource()
        self.anchor = nn.Parameter(torch.empty(0, options.dim))
        self.lookups: list[Lookup] = []
        """What forwards have used since the last update."""
        self._evaluated = False
        """Whether there were some since then that would have had gradients in training mode."""

    @property
    def row_source(self) -> RowSource | None:
        """Where its rows come from, once that is known; the same for all copies of the layer."""
        return self._shared.source

    @row_source.setter
    def row_source(self, source: RowSource | None) -> None:
        self._shared.source = source

    @property
    def counts_sightings(self) -> bool:
        """Whether ids get a row by how often they were met."""
        return isinstance(self.options.entry, CountFilterEntry | ProbabilityEntry)

    def reset_parameters(self) -> None:
        """Nothing: what rows begin with follows from their ids, on the servers."""

    def forget_ahead(self) -> None:
        """Let go of rows that were fetched for later batches."""

    def learns(self) -> bool:
        """Whether rows that are looked up now may be trained."""
        could = self.anchor.requires_grad and torch.is_grad_enabled()
        self._evaluated |= could and not self.training
        return could and self.training

    def gather(self, servers: int) -> RowGradients:
        """The gradients of all lookups since the last time, each row once."""
        if self._evaluated and not self.training and not self.lookups:
            raise RuntimeError(_EVALUATED.format(repr(self.options.name)))
        self._evaluated, each = False, []
        for look in self.lookups:
            if look.result.grad is not None:
                # Behind them there may be one for ids that stand for nothing.
                gradients = look.backward(look.result.grad)[: len(look.batch.ids)]
                each.append(RowGradients(look.batch, gradients, look.stats))
        self.lookups.clear()
        return joined(each, servers, self.options.dim)

    def lend(self, gathered: RowGradients) -> None:
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
