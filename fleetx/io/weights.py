"""Weights of a model in a folder of safetensors files, straight to and from shares."""

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fleetx import roles
from fleetx.api import session
from fleetx.api.promised import Promise, promise
from fleetx.api.weights import whole
from fleetx.comm.local import local
from fleetx.comm.shares import share_of
from fleetx.engine.engine import Engine
from fleetx.engine.saved_names import is_added, is_extra
from fleetx.expected import FLAG, PATH, a, takes
from fleetx.io.arrangement import Arrangement
from fleetx.io.files import Folder
from fleetx.io.stored_names import OnDisk, in_memory
from fleetx.io.weight_folder import Kind, WeightFolder, Written, size_in_bytes

logger = logging.getLogger(__name__)
MODEL = a(nn.Module, "a torch.nn.Module")
SHOWN = 4
"""Names that a complaint lists."""


@takes("fleet.load_weights", model=MODEL, folder=PATH, strict=FLAG)
def load_weights(model: nn.Module, folder: Folder, *, strict: bool = True) -> None:
    """Give a model the weights of a folder; every worker reads the parts that it holds.

    Args:
        model: what ``distributed_model`` returned, on all workers; or a plain model. One that was
            made on the meta device gets them when it is distributed.
        folder: with ``model.safetensors``, or ``model.safetensors.index.json`` and its files, as
            ``save_pretrained`` and ``save_weights`` write them.
        strict: refuse a folder that lacks tensors or has others; else a warning names them, and
            what is missing stays as it is.
    """
    path = Path(folder)
    if (engine := _engine(model)) is not None:
        engine.job.together(partial(_load_engine, engine, path, strict))
        return
    names = _aliases(model)
    with WeightFolder(path) as stored:
        found = _matched(stored, model, names, strict)
        if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
            given = frozenset(name for name in found)
            promise(model, Promise(given, partial(_load_engine, folder=path, strict=strict)))
            return
        _fill(stored, _tensors(model), found)


@takes("fleet.save_weights", model=MODEL, folder=PATH)
def save_weights(model: nn.Module, folder: Folder, *, max_shard_size: int | str = "5GB") -> None:
    """Write the weights of a model as a folder that ``from_pretrained`` reads.

    All workers call it. Worker 0 writes, one whole tensor after the other, and keeps none. The
    configuration of a model of transformers is written, too.

    Args:
        model: what ``distributed_model`` returned, or a plain model.
        folder: is made if it does not exist.
        max_shard_size: the most bytes of a file, such as ``"5GB"``.
    """
    path, limit = Path(folder), size_in_bytes(max_shard_size)
    engine = _engine(model)
    if engine is None:
        own = _first_only(model)
        _write(path, OnDisk(model, _kinds(own)), own.items(), limit)
        _write_config(model, path)
        return
    engine.job.together(partial(_save_engine, engine, path, limit))


def _engine(model: nn.Module) -> Engine | None:
    if not session.begun():
        return None
    found = (engine for engine in session.engines() if engine.job.model is model)
    return next(found, None)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    state = model.state_dict().items()
    return {n: value for n, value in state if not is_extra(n) and not is_added(n, value)}


def _aliases(model: nn.Module) -> dict[str, str]:
    """Every name of a tensor that is saved -> its first one."""
    seen: dict[int, str] = {}
    held: dict[str, Any] = dict(model.named_parameters(remove_duplicate=False))
    held |= dict(model.named_buffers(remove_duplicate=False))
    kept = model.state_dict().keys()
    return {name: seen.setdefault(id(held[name]), name) for name in held if name in kept}


def _load_engine(engine: Engine, folder: Path, strict: bool) -> None:
    names = {name: engine.first_name(name) for name in engine.saved_names}
    held = _tensors(engine.job.model)
    with WeightFolder(folder) as stored:
        found = _matched(stored, engine.job.model, names, strict)
        _fill(stored, held, found)
    engine.job.brought(found)


def _matched(
    stored: WeightFolder, model: nn.Module, names: Mapping[str, str], strict: bool
) -> dict[str, Arrangement]:
    """For each tensor of the model, where the folder has it.

    Args:
        stored: the folder.
        model: what this worker has of it.
        names: those of all tensors of the whole model -> the first of each, as tied ones have
            several.
        strict: complain of tensors that only one of the two has.
    """
    held = _tensors(model)
    have = in_memory(model, stored.names, names, stored.shape, strict=strict)
    by_first: dict[str, Arrangement] = {}
    for name, first in names.items():
        if name in have:
            by_first.setdefault(first, have[name])
    found = {name: by_first[first] for name, first in names.items() if first in by_first}
    wanted = [name for name in names if not is_extra(name)]
    _complain(
        stored,
        missing=[n for n in wanted if n not in found and (n in held or n == names[n])],
        strange=sorted(have.keys() - names.keys()),
        strict=strict,
    )
    for name in held.keys() & found.keys():
        here, there = list(held[name].shape), list(found[name].shape)
        if here != there:
            raise ValueError(
                f"{name!r} has the shape {there} in {str(stored.folder)!r} and {here} in the "
                "model; load weights of the same model, or make it with the same sizes."
            )
    return found


def _complain(
    stored: WeightFolder, *, missing: list[str], strange: list[str], strict: bool
) -> None:
    told = [
        f"{word} {', '.join(map(repr, names[:SHOWN]))}"
        + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        for word, names in (("lacks", missing), ("has, and the model has not,", strange))
        if names
    ]
    if not told:
        return
    sentence = f"the folder {str(stored.folder)!r} {'; it '.join(told)}"
    if strict:
        raise ValueError(
            f"{sentence}. Pass the folder of the same model, or strict=False to load what both "
            "have."
        )
    if not roles.started() or roles.is_first_worker():
        logger.warning("%s; the rest is loaded.", sentence)


@torch.no_grad()
def _fill(
    stored: WeightFolder, held: Mapping[str, Tensor], found: Mapping[str, Arrangement]
) -> None:
    for name, tensor in held.items():
        if name in found:
            local(tensor).copy_(found[name].read(stored.read, share_of(tensor)))


def _first_only(model: nn.Module) -> dict[str, Tensor]:
    names = _aliases(model)
    return {name: t for name, t in _tensors(model).items() if names.get(name, name) == name}


def _kinds(tensors: Mapping[str, Tensor]) -> dict[str, Kind]:
    return {n: (list(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in tensors.items()}


def _write(folder: Path, form: OnDisk, tensors: Iterable[tuple[str, Tensor]], limit: int) -> None:
    with Written(folder, form.kinds, limit).begin() as files:
        for name, value in tensors:
            for stored, part in form.parts(name, value):
                files.add(stored, part)


def _write_config(model: nn.Module, folder: Path) -> None:
    """What else ``from_pretrained`` wants of a model of transformers."""
    for owned in ("config", "generation_config") if session.may_save() else ():
        save = getattr(getattr(model, owned, None), "save_pretrained", None)
        if callable(save):
            save(folder)


def _save_engine(engine: Engine, folder: Path, limit: int) -> None:
    own = _tensors(engine.job.model)
    told = engine.job.of_all_stages(list(_kinds(own).items()))
    kinds: dict[str, Kind] = {}
    firsts = set[str]()
    for name, kind in (pair for stage in told for pair in stage):
        first = engine.first_name(name)
        if first not in firsts:  # of a tensor that several stages hold, one counts
            firsts.add(first)
            kinds[name] = (kind[0], kind[1])
    tensors = whole(engine, own)
    try:
        if roles.is_first_worker():
            _write(folder, OnDisk(engine.job.model, kinds), tensors, limit)
            _write_config(engine.job.model, folder)
    finally:
        for _ in tensors:  # others wait for each of them, also where writing failed
            pass
