"""An embedding over 64-bit ids whose rows live on parameter servers."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fleetx.nn.row_outputs import Indexed, InOrder, Pooled, RowOutput, bags_of
from fleetx.nn.table_arguments import (
    check_kinds,
    check_pooling,
    check_tensor,
    counted_from_the_end,
    padding_id,
    refuse_norms,
    whole,
)
from fleetx.ps.tables.entries import Entry, ShowClickEntry
from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.initializers import Initializer, Uniform
from fleetx.ps.tables.row_source import RowSource, TableOptions
from fleetx.ps.tables.rules import Rule
from fleetx.ps.tables.sparse_spec import check_dtype, memory_for
from fleetx.ps.wire.arrays import Array, Floats, Ids, same_ids
from fleetx.ps.wire.short_floats import check_wire_dtype
from fleetx.ps.worker.given_rows import GivenRows
from fleetx.ps.worker.row_gradients import array_of
from fleetx.ps.worker.sparse_module import Lookup, SparseModule
from fleetx.torch_internals import FakeTensor, current_backward, unsafe_view

AHEAD = 2
"""Batches whose rows may be on their way; of more, the oldest are forgotten."""


REPLAYED = 64
"""Lookups that are remembered because a backward may repeat them; of more, the latest."""


class SparseEmbedding(SparseModule):
    """Looks ids up in a table that has no size: any 64-bit number is an id.

    A row is made when its id is first trained; what it begins with depends on the id alone.
    """

    def __init__(
        self,
        embedding_dim: int,
        *,
        name: str,
        rule: Rule | None = None,
        initializer: Initializer | None = None,
        entry: Entry | None = None,
        padding_idx: int | None = None,
        pooling: str | None = None,
        include_last_offset: bool = False,
        seed: int = 0,
        wire: str | None = None,
        storage: str = "memory",
        memory: str | int | None = None,
        dtype: str = "float32",
    ) -> None:
        """Describe the table; it is made on the servers at the first lookup.

        Args:
            embedding_dim: floats in a row.
            name: of the table; two layers of one name share their rows.
            rule: how rows move, with a learning rate of its own; the job's optimizer if not said.
            initializer: what rows begin with, ``Uniform(-1e-4, 1e-4)`` if not said.
            entry: which ids get a row; all of them if not said.
            padding_idx: an id that stands for nothing: its row is zero and never trained.
            pooling: "sum" or "mean" over the ids of a bag, padding left out; a row for each id if
                not said.
            include_last_offset: whether offsets end with the number of ids, as in
                ``torch.nn.EmbeddingBag``.
            seed: another one gives other initial rows.
            wire: "float16" or "bfloat16" sends rows and gradients in half the bytes; tables keep
                float32.
            storage: "disk" keeps rows that are seldom used on the servers' disks.
            memory: what each server may take for the others then, as in "8GB".
            dtype: "float16", "bfloat16" or "int8" keeps rows in fewer bytes on the servers; a
                forward sees float32, and the rule's state stays so.
        """
        check_pooling(pooling, include_last_offset)
        check_kinds(name, rule=rule, initializer=initializer, entry=entry)
        padding_idx = padding_id(name, padding_idx)
        options = TableOptions(
            name=name,
            dim=embedding_dim,
            rule=rule,
            initializer=initializer or Uniform(),
            entry=entry,
            seed=whole(name, "seed", seed),
            wire=wire,
            storage=storage,
            memory=memory_for(name, storage, memory),
            dtype=dtype,
        )
        check_wire_dtype(name, wire)
        check_dtype(name, dtype)
        super().__init__(options)
        self.padding_idx, self.pooling = padding_idx, pooling
        self.include_last_offset = include_last_offset
        self._ahead: deque[tuple[Array, list[int], Future[tuple[IdBatch, Floats]]]] = deque(
            maxlen=AHEAD
        )
        self._seen: deque[Array] = deque(maxlen=REPLAYED)

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor | nn.Embedding | nn.EmbeddingBag,
        freeze: bool = True,
        padding_idx: int | None = None,
        *,
        name: str,
        ids: Tensor | Sequence[int] | None = None,
        max_norm: float | None = None,
        scale_grad_by_freq: bool = False,
        **options: Any,
    ) -> Self:
        """A layer whose table begins with these rows, as ``torch.nn.Embedding`` has it.

        The first worker gives them to the servers before the first batch, for ids that have no row
        there yet: what a save brought, or was trained already, stays. Other ids begin as ever.

        Args:
            embeddings: a row for each id, or a layer of torch, whose ``padding_idx`` and whose
                ``mode`` and ``include_last_offset`` are taken over, too.
            freeze: rows stay as they are; ``False`` trains them.
            padding_idx: an id whose row is never trained. It stays as it is in ``embeddings``;
                bags leave it out.
            name: of the table.
            ids: of the rows; 0, 1, 2 and so on if not said.
            max_norm: refused, as rows are not renormalised.
            scale_grad_by_freq: refused, as gradients are not divided.
            options: those of ``SparseEmbedding``.
        """
        layer = embeddings if isinstance(embeddings, nn.Embedding | nn.EmbeddingBag) else None
        refuse_norms(name, layer, max_norm, scale_grad_by_freq)
        given = GivenRows.checked(name, embeddings if layer is None else layer.weight, ids)
        if layer is not None and padding_idx is None:
            padding_idx = layer.padding_idx
            if padding_idx is not None:
                padding_idx = int(given.ids[padding_idx])
        elif padding_idx is not None and ids is None:
            padding_idx = counted_from_the_end(padding_idx, len(given.ids))
        if isinstance(layer, nn.EmbeddingBag):
            options = {
                "pooling": layer.mode,
                "include_last_offset": layer.include_last_offset,
            } | options
        made = cls(given.rows.shape[1], name=name, padding_idx=padding_idx, **options)
        made._shared.given = given.without(padding_idx)
        kept = None if made.pooling is not None else given.row(padding_idx)
        if kept is not None and bool(kept.any()):
            made.register_buffer("padding_row", kept)
        made.anchor.requires_grad_(not freeze)
        return made

    @override
    def forward(
        self,
        ids: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
        *,
        show: Tensor | None = None,
        click: Tensor | None = None,
    ) -> Tensor:
        """The rows of the ids, or of bags of them, on the device of the layer.

        Args:
            ids: whole numbers of any shape, on any device; a flat list when there are offsets.
            offsets: where each bag begins, as in ``torch.nn.EmbeddingBag``.
            per_sample_weights: what the row of each id is multiplied by, before rows of a bag are
                added up.
            show: how often each id was shown, for a table with a ``ShowClickEntry``.
            click: how often it was clicked.
        """
        check_tensor("ids", ids, Tensor)
        check_tensor("offsets", offsets, Tensor | None)
        check_tensor("per_sample_weights", per_sample_weights, Tensor | None)
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise TypeError(f"ids must be whole numbers, got {ids.dtype}; use ids.long()")
        if per_sample_weights is not None:
            self._check_weights(ids, per_sample_weights)
        if isinstance(ids, FakeTensor):
            return self._recorded(ids, offsets, per_sample_weights)
        flat = (ids if ids.is_cpu else ids.cpu()).numpy().reshape(-1).astype(np.int64, copy=False)
        train = self.learns()
        batch, rows = self._rows(flat, train)
        if self.padding_idx is not None:
            rows = np.concatenate([rows, self._padding()])
        pools = self.pooling is not None and per_sample_weights is None
        output = self._output(batch, ids, offsets, pools=pools)
        leaf = output.forward(rows)
        dtype = self.anchor.dtype
        if train:
            leaf.requires_grad_()
            self.follow(leaf, Lookup(batch, output.backward, self._stats(batch, show, click)))
        if per_sample_weights is not None:
            return self._weighted(leaf, per_sample_weights, self._bags(ids, offsets)).to(dtype)
        shape = leaf.shape if pools else (*ids.shape, self.options.dim)
        # No view, for torch lets nobody write to views of a leaf; nor a copy, for nobody reads it.
        return (unsafe_view(leaf, shape) if train else leaf.view(shape)).to(dtype)

    def _padding(self) -> Floats:
        """The row of the id that stands for nothing: zero, unless another one was given."""
        if "padding_row" in self._buffers:
            return array_of(self.get_buffer("padding_row"))[None]
        return np.zeros((1, self.options.dim), np.float32)

    def _check_weights(self, ids: Tensor, weights: Tensor) -> None:
        """As ``torch.nn.EmbeddingBag``, which weighs rows of sums."""
        if self.pooling != "sum":
            raise ValueError(
                f"SparseEmbedding {self.options.name!r} got per_sample_weights, which are for "
                f"sums, and its pooling is {self.pooling!r}; set pooling='sum', or leave them out"
            )
        if weights.shape != ids.shape:
            raise ValueError(
                f"per_sample_weights of shape {list(weights.shape)} are not one for each id of "
                f"shape {list(ids.shape)}; pass a tensor of that shape"
            )

    @staticmethod
    def _weighted(rows: Tensor, weights: Tensor, bags: tuple[Ids, int]) -> Tensor:
        """The weighted sum of each bag, by autograd, for weights may be learned, too."""
        bag_of_each, number = bags
        weighted = rows * weights.reshape(-1, 1).to(rows.dtype)
        places = torch.from_numpy(bag_of_each).to(rows.device)
        return weighted.new_zeros(number, rows.shape[1]).index_add(0, places, weighted)

    def _recorded(self, ids: Tensor, offsets: Tensor | None, weights: Tensor | None) -> Tensor:
        """What a program is told of the result: its shape, and on what it depends."""
        shape = ids.shape
        if self.pooling is not None:
            shape = ids.shape[:1] if offsets is None else offsets.shape
            if offsets is not None and self.include_last_offset:
                shape = torch.Size([shape[0] - 1])
        source = self.anchor.sum() if weights is None else self.anchor.sum() + weights.sum()
        return source + self.anchor.new_zeros((*shape, self.options.dim))

    def _bags(self, ids: Tensor, offsets: Tensor | None) -> tuple[Ids, int]:
        """The bag of each id, and how many there are."""
        if offsets is None or not self.include_last_offset:
            return bags_of(ids.shape, offsets)
        if not len(offsets) or int(offsets[-1]) != len(ids):
            raise ValueError(
                f"include_last_offset=True wants offsets that end with {len(ids)}, the number of "
                f"ids; they end with {offsets[-1:].tolist()}"
            )
        return bags_of(ids.shape, offsets[:-1])

    def _output(
        self, batch: IdBatch, ids: Tensor, offsets: Tensor | None, *, pools: bool
    ) -> RowOutput:
        if self.pooling is None and offsets is not None:
            raise ValueError(
                f"SparseEmbedding {self.options.name!r} got offsets but makes no bags; pass "
                "pooling='sum' or 'mean' to it, or leave them out"
            )
        # Not that of the ids, which are needed where the rows come from: on the host.
        device = self.anchor.device
        if not pools and batch.in_order:
            return InOrder(device)
        # One more for the row that stands for nothing.
        count = len(batch.ids) + (self.padding_idx is not None)
        if not pools:
            return Indexed(batch.place, count, device)
        bags, mean = self._bags(ids, offsets), self.pooling == "mean"
        padding = None if self.padding_idx is None else len(batch.ids)
        return Pooled(batch.place, count, bags, device, mean=mean, padding=padding)

    def _rows(self, flat: Array, train: bool) -> tuple[IdBatch, Floats]:
        """What was fetched ahead for these ids, or what is fetched now."""
        if train:
            # What was asked for before this batch was skipped; what comes after it is still wanted.
            for number, (ids, versions, coming) in enumerate(self._ahead):
                if same_ids(ids, flat):
                    self._ahead = deque(list(self._ahead)[number + 1 :], AHEAD)
                    source = self._source()
                    if source.outdated(self.options, versions):
                        # This batch is a part of that update, or other updates came between.
                        coming.cancel()
                        break
                    batch, rows = coming.result()
                    return batch, source.refreshed(self.options, batch, rows)
        return self._pull(flat, train)

    def _pull(
        self, flat: Array, train: bool, versions: list[int] | None = None
    ) -> tuple[IdBatch, Floats]:
        source = self._source()
        batch, met = self._sorted(flat, source)
        if train and met is not None and self._is_replay(flat):
            met = np.zeros_like(met)
        rows = source.look_up(
            self.options, batch, met if train else None, train=train, versions=versions
        )
        return batch, rows

    def _is_replay(self, flat: Array) -> bool:
        """Whether a backward repeats a lookup that was counted: it was, if it had gradients."""
        if current_backward() < 0:
            self._seen.append(flat.copy())  # the caller may fill its array anew
            return False
        known = next((at for at, ids in enumerate(self._seen) if same_ids(ids, flat)), None)
        if known is not None:
            del self._seen[known]
        return known is not None

    def _sorted(self, flat: Array, source: RowSource) -> tuple[IdBatch, Array | None]:
        real = flat if self.padding_idx is None else flat[flat != self.padding_idx]
        batch = source.sort_ids(real)
        met = np.bincount(batch.place, minlength=len(batch.ids)) if self.counts_sightings else None
        if self.padding_idx is not None:
            place = np.full(len(flat), len(batch.ids), np.int64)
            place[flat != self.padding_idx] = batch.place
            batch = IdBatch(batch.ids, batch.begins, place)
        return batch, met

    def _source(self) -> RowSource:
        if (source := self.row_source) is None:
            raise RuntimeError(
                f"the rows of SparseEmbedding {self.options.name!r} live on parameter servers, and "
                "this model is not part of such a job: start it with servers (fleetrun "
                "--server_num 1 --worker_num 2), and call fleet.distributed_model() and "
                "fleet.distributed_optimizer() first; a program that only computes runs after the "
                "one that trains its layers, or after fleet.load_persistables()"
            )
        return source

    def _stats(self, batch: IdBatch, show: Tensor | None, click: Tensor | None) -> Floats | None:
        if not isinstance(self.options.entry, ShowClickEntry):
            if show is not None or click is not None:
                raise ValueError(
                    f"table {self.options.name!r} counts no shows and clicks; pass "
                    "entry=ShowClickEntry(...) to SparseEmbedding, or leave them out"
                )
            return None
        shows = self._counted("show", show, batch, 1.0)
        clicks = self._counted("click", click, batch, 0.0)
        counts = [np.bincount(batch.place, each, len(batch.ids) + 1) for each in (shows, clicks)]
        return np.stack(counts, 1)[: len(batch.ids)].astype(np.float32)

    def _counted(self, name: str, given: Tensor | None, batch: IdBatch, usual: float) -> Array:
        """A number for each id; what is none would stay in the score of its row."""
        if given is None:
            return np.full(len(batch.place), usual)
        check_tensor(name, given, Tensor)
        found: Array = given.detach().reshape(-1).to("cpu", torch.float64).numpy()
        if len(found) != len(batch.place):
            raise ValueError(
                f"{name} of table {self.options.name!r} has {len(found)} numbers for "
                f"{len(batch.place)} ids; pass one for each id, as in "
                f"{name}.unsqueeze(-1).expand_as(ids) where there is one for each example"
            )
        if not bool(((found >= 0) & (found < np.inf)).all()):
            raise ValueError(
                f"{name} of table {self.options.name!r} holds NaN, infinity or a negative number, "
                "which would stay in the counts of its row; pass how often it was, from 0"
            )
        return found

    def prefetch(self, ids: Tensor) -> None:
        """Begin to fetch the rows of the next batch, before this one is computed.

        Synchronous training still sees every update: the fetch waits for it at the servers.
        """
        source = self._source()
        # A copy: the caller may fill its tensor anew before the thread has read it.
        flat = ids.detach().reshape(-1).cpu().numpy().astype(np.int64)
        # Asked here: the thread may begin when the update is done, and would wait for the next one.
        versions = source.next_versions(self.options)
        coming = source.fetch_ahead(self._pull, flat, True, versions)
        self._ahead.append((flat, versions, coming))

    @property
    def exact_prefetch(self) -> bool:
        """Whether training is the same with and without ``prefetch``."""
        source = self.row_source
        return source is not None and source.exact_prefetch

    @override
    def forget_ahead(self) -> None:
        while self._ahead:
            self._ahead.popleft()[-1].cancel()

    @override
    def extra_repr(self) -> str:
        return f"{self.options.dim}, name={self.options.name!r}"
