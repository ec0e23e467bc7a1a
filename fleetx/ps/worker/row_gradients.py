"""Gradients of rows on their way from the layers to the servers."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fleetx.ps.tables import kernels
from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.wire.arrays import Floats


@dataclass(frozen=True)
class RowGradients:
    """Gradients of one update: each row once."""

    batch: IdBatch
    gradients: Floats
    stats: Floats | None


def array_of(tensor: Tensor | None) -> Floats:
    """The numbers of a tensor that may be anywhere."""
    assert tensor is not None
    tensor = tensor.detach()
    if not tensor.is_cpu or tensor.dtype != torch.float32:
        tensor = tensor.to("cpu", torch.float32)
    array: Floats = np.ascontiguousarray(tensor.numpy())
    return array


def joined(several: list[RowGradients], servers: int, dim: int, share: float = 1.0) -> RowGradients:
    """The sum of several, each row once, times a factor."""
    if len(several) == 1 and share == 1.0:
        return several[0]
    ids = [one.batch.ids for one in several] or [np.empty(0, np.int64)]
    rows = [one.gradients for one in several] or [np.empty((0, dim), np.float32)]
    batch = IdBatch.of(np.concatenate(ids), servers)
    counted = [one.stats for one in several if one.stats is not None]
    stats = _summed(np.concatenate(counted), batch) if counted else None
    return RowGradients(batch, _summed(np.concatenate(rows), batch) * np.float32(share), stats)


def _summed(rows: Floats, batch: IdBatch) -> Floats:
    total = np.zeros((len(batch.ids), rows.shape[1]), np.float32)
    kernels.active.sum_rows(np.ascontiguousarray(rows), batch.place, total)
    return total
