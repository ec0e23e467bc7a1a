"""Tensors by name in a folder of safetensors files, of which every worker writes its own.

It is torch's distributed checkpoint in its safetensors storage: a file says of each tensor in it
which block of the whole it is, so whoever reads takes the blocks that he needs, from all files.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from typing_extensions import override

from fleetx.io.chunks import Chunk

Group = dist.ProcessGroup


def write(folder: Path, chunks: Mapping[str, Chunk], group: Group | None = None) -> None:
    """Write the blocks of this worker; all members of the group write theirs at the same time.

    Of a block that several members give, one writes it. What fails on one of them is raised on all.

    Args:
        folder: is made if it does not exist; others may write there, too.
        chunks: by the names of the whole tensors.
        group: a gloo group; None for a worker that writes everything alone.
    """
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    _without_remarks()
    try:
        save(
            {},
            storage_writer=writer,
            planner=_Saving(chunks),
            process_group=group,
            no_dist=group is None,
        )
    except CheckpointException as failed:
        raise _told(failed, group) from failed


@dataclass(frozen=True)
class Kind:
    """What is known of a tensor before it is read."""

    shape: torch.Size
    dtype: torch.dtype


class Stored:
    """The tensors of a folder, to be read in blocks."""

    def __init__(self, folder: Path) -> None:
        self._reader = _Reader(str(folder))
        described = self._reader.read_metadata().state_dict_metadata
        self.kinds = {
            name: Kind(known.size, known.properties.dtype)
            for name, known in described.items()
            if isinstance(known, TensorStorageMetadata)
        }
        """Name -> shape and type of the whole."""

    def read(self, targets: Mapping[str, Chunk]) -> None:
        """Fill the blocks, from whichever files have their numbers; no other worker is asked."""
        if not targets:
            return
        _without_remarks()
        planner = _Loading(targets)
        try:
            load({}, storage_reader=self._reader, planner=planner, no_dist=True)
        except CheckpointException as failed:
            raise _told(failed, None) from failed

    def whole(self, name: str) -> Tensor:
        """A whole tensor, on the host."""
        kind = self.kinds[name]
        made = torch.empty(kind.shape, dtype=kind.dtype)
        self.read({name: Chunk(made, (0,) * made.dim(), made.shape)})
        return made


class _Reader(HuggingFaceStorageReader):
    """Opens all files once, however often it reads."""

    _known: Metadata | None = None

    @override
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self._known is None:
            self._known = super().read_metadata()
        return self._known

    @override
    def reset(self, checkpoint_id: Any = None) -> None:
        known = self._known
        super().reset(checkpoint_id)
        self._known = known


class _Saving(DefaultSavePlanner):
    """Plans from blocks, which know their places by themselves."""

    def __init__(self, chunks: Mapping[str, Chunk]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._chunks = chunks

    @override
    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan([_item(name, chunk) for name, chunk in self._chunks.items()])
        return self.plan

    @override
    def lookup_object(self, index: MetadataIndex) -> Tensor:
        # Files hold rows one after the other, whatever the order in memory (channels_last).
        return self._chunks[index.fqn].here.contiguous()


def _item(name: str, chunk: Chunk) -> WriteItem:
    block = ChunkStorageMetadata(offsets=torch.Size(chunk.offset), sizes=chunk.here.shape)
    properties = TensorProperties(dtype=chunk.here.dtype)
    return WriteItem(
        index=MetadataIndex(name, block.offsets),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(chunk=block, properties=properties, size=chunk.whole),
    )


class _Loading(DefaultLoadPlanner):
    """Plans reads into blocks."""

    def __init__(self, targets: Mapping[str, Chunk]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._targets = targets

    @override
    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        items: list[ReadItem] = []
        for name, target in self._targets.items():
            known = self.metadata.state_dict_metadata[name]
            assert isinstance(known, TensorStorageMetadata)
            block = ChunkStorageMetadata(torch.Size(target.offset), target.here.shape)
            items += create_read_items_for_chunk_list(name, known, [block])
        # Of nothing there is nothing to read.
        return LoadPlan([item for item in items if item.lengths.numel()])

    @override
    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        found = self._targets[read_item.dest_index.fqn].here
        for dim, (start, length) in enumerate(
            zip(read_item.dest_offsets, read_item.lengths, strict=True)
        ):
            found = found.narrow(dim, start, length)
        return found


def _told(failed: CheckpointException, group: Group | None) -> Exception:
    """The failure of this worker, or else a word about another one's."""
    own = 0 if group is None else dist.get_rank(group)
    found = {rank: error for rank, (error, _) in failed.failures.items()}
    if own in found and isinstance(found[own], Exception):
        mine: Exception = found[own]  # type: ignore[assignment]
        return mine
    rank, error = min(found.items())
    return RuntimeError(f"worker {rank} failed, so all stop: {type(error).__name__}: {error}")


def _without_remarks() -> None:
    """A worker that saves alone, or reads for itself, means to."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
