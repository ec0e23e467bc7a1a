"""Models that were trained with parameter servers, without them."""

import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from fleetx.ps.observers.follower import Follower
from fleetx.ps.tables import safetensors_file
from fleetx.ps.tables.save_folder import TABLES
from fleetx.ps.tables.saved_rows import SavedRows
from fleetx.ps.worker.sparse_module import SparseModule

Model = TypeVar("Model", bound=nn.Module)


def load_inference_model(
    dirname: str | Path, model: Model, *, follow: str | Sequence[str] | Follower | None = None
) -> Model:
    """Let a plain model compute with what ``fleet.save_inference_model`` wrote; no job is needed.

    Dense parameters and buffers are loaded by name, rows are looked up in the saved tables. The
    model is set to ``eval()`` and cannot be trained.

    Args:
        dirname: the folder.
        model: of the same structure as the one that was saved.
        follow: the servers of a running job (``"host:port,host:port"``, or a list), or a
            ``Follower`` of them: rows and dense parameters stay as new as theirs. The save is
            what the model computes with until they were copied.
    """
    folder = Path(dirname)
    if not (folder / "dense.safetensors").is_file():
        raise ValueError(
            f"{folder} holds no dense.safetensors, so it is no model of a job with servers; pass a "
            "folder that fleet.save_inference_model() wrote there"
        )
    rows, modules = SavedRows(folder / TABLES), list(model.modules())
    tables = [module for module in modules if isinstance(module, SparseModule)]
    dense = folder / "dense.safetensors"
    rows.require_those_of(dense, safetensors_file.beside(dense))
    arrays = safetensors_file.read(dense, sealed=rows.sealed)
    found = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    for name, held in model.state_dict(keep_vars=True).items():
        if name in found and isinstance(held, Tensor) and held.is_complex():
            found[name] = torch.view_as_complex(found[name])
    anchors = {name for name, p in model.named_parameters() if any(p is t.anchor for t in tables)}
    left = model.load_state_dict(found, strict=False)
    missing = [name for name in left.missing_keys if name not in anchors]
    if missing or left.unexpected_keys:
        raise ValueError(
            f"the model in {folder} has other parameters than the one it is loaded into: "
            f"{[*missing, *left.unexpected_keys][:4]} are in one of them only; build the model "
            "that was saved"
        )
    source = rows if follow is None else _following(follow, rows, model)
    for table in tables:
        table.row_source = source
    return model.eval()


def _following(
    follow: str | Sequence[str] | Follower, rows: SavedRows, model: nn.Module
) -> Follower:
    follower = follow if isinstance(follow, Follower) else Follower(follow)
    if follower is not follow:  # nobody else can end it
        weakref.finalize(model, follower.close)
    if follower.base is None:
        follower.base = rows
    follower.attach(model)
    return follower
