"""Laying a model out with torch's ``fully_shard``, unit by unit."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from fleetx.comm.complex_numbers import update_cut_complex_numbers
from fleetx.comm.nested import mapped, tensors
from fleetx.comm.pairwise import is_gloo
from fleetx.graph.meta import said
from fleetx.plan import option
from fleetx.plan.error import PlanError
from fleetx.plan.first_order import refuse_second_order
from fleetx.plan.forward import Forward, replace_forward
from fleetx.plan.job import Job
from fleetx.strategies.sharding.entered_backward import gather_where_entered
from fleetx.strategies.sharding.failures import weights_read
from fleetx.strategies.sharding.first_forward import begin_as_whole
from fleetx.strategies.sharding.returned_weights import copy_returned_weights
from fleetx.strategies.sharding.through_gloo import at_full_speed
from fleetx.strategies.sharding.units import (
    Unit,
    by_anchors,
    by_size,
    of_one_format,
    without_shared,
)
from fleetx.torch_internals import is_fsdp

_SCALAR = (
    "strategy.sharding = True cuts parameters along their first dimension, and {} has none. Give "
    "it one before fleet.distributed_model(): "
    "model.{} = nn.Parameter(model.{}.detach().reshape(1)), which computes the same wherever it is "
    "multiplied or added; or set strategy.sharding = False."
)
_EMPTY = (
    "strategy.sharding = True cuts parameters and adds up parts of their gradients, and {!r} has "
    "no numbers. Freeze it before fleet.distributed_model(), by "
    "model.{}.requires_grad_(False), for there is nothing to train; or set strategy.sharding = "
    "False."
)
_FORMATS = (
    "strategy.sharding = True reduces gradients that travel together in one format, and {} has "
    "parameters of several: {}. Give those of one format a submodule of their own, which the "
    "forward calls, or bring all to one format (complex numbers as nn.Parameter("
    "torch.view_as_real(...)), which the forward reads by torch.view_as_complex); or set "
    "strategy.sharding = False."
)
_SECOND = (
    "strategy.sharding = True gives the gathered weights back as soon as the first backward has "
    "used them; set strategy.sharding = False, because data parallel can do this."
)
_UNGATHERED = (
    "the forward reads weights ({}) without calling the submodule that has them, and under "
    "sharding_configs['stage'] = 3 weights are gathered only while their submodule runs; call the "
    "submodule instead, or set sharding_configs['stage'] = 2, which keeps what a forward has "
    "gathered until the backward."
)


def units_of(
    model: nn.Module,
    not_run: tuple[Collection[nn.Module], Collection[nn.Module]],
    entries: Sequence[str],
    megabytes: float,
    whole: Collection[nn.Module] = (),
) -> list[Unit]:
    """What travels together: up to the submodules that entries name, or up to a size.

    Args:
        model: whose modules they are.
        not_run: modules that run on other ranks, and those that are never called themselves.
        entries: names or patterns of submodules that end a unit.
        megabytes: the size that ends one if there are none.
        whole: modules that stay in one, however large they are.
    """
    elsewhere, opened = not_run
    calls, named = said(model).get("calls"), said(model).get("segments", {})
    anchors = [name for entry in entries for name in _named(model, entry, named)]
    if anchors:
        found = by_anchors(model, anchors, elsewhere, opened, calls, whole=whole)
    else:
        found = by_size(model, megabytes * 2**20, elsewhere, opened, calls, whole=whole)
    # What one format cuts off may share a weight with what it was cut from.
    return without_shared(of_one_format(found))


def shard(model: nn.Module, units: Sequence[Unit], job: Job, *, again: bool) -> None:
    """Spread the units, and what they leave, over ranks.

    Args:
        model: it is changed in place.
        units: what is gathered together.
        job: says over which ranks.
        again: let go of weights after a forward and gather them again in backward.
    """
    _check_shapes(model)
    _check_formats(model, units)
    _lay_in_rows(model)
    if any(parameter.is_complex() for parameter in model.parameters()):
        update_cut_complex_numbers()
    # Loaded here: FSDP takes a second that jobs without sharding do not pay.
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from fleetx.spread.parts_written import watch_parts
    from fleetx.spread.whole_answers import answer_as_whole_ones

    answer_as_whole_ones()
    watch_parts()
    common: dict[str, Any] = {"mesh": _mesh(job), "reshard_after_forward": again}

    def policy(parameters: Iterable[Tensor]) -> Any:
        narrow = all(p.dtype == torch.float32 for p in parameters)
        return MixedPrecisionPolicy(reduce_dtype=job.wire if narrow else None)

    for unit in units:
        held = [p for module in unit.modules for p in module.parameters()]
        with _classes_explained(unit):
            fully_shard(unit.modules, mp_policy=policy(held), **common)
    # In a program, what lies in a unit has a place of its own beside it.
    done = {p for unit in units for module in unit.modules for p in module.parameters()}
    rest = policy(p for p in model.parameters() if p not in done)
    fully_shard(model, mp_policy=rest, ignored_params=done, **common)
    left = [name for name, p in model.named_parameters() if not _is_spread(p)]
    assert not left, f"{left} would be neither spread nor exchanged"
    if is_gloo(job.device, job.mesh["sharding"].get_group()):
        at_full_speed(model)
    gather_where_entered(model, units)
    begin_as_whole(model, units)
    refuse_second_order(model, _SECOND, within=is_fsdp)
    if again:
        copy_returned_weights(model, units)
        replace_forward(model, partial(_explained, model))
    replace_forward(model, _of_plain_tensors)


@contextmanager
def _classes_explained(unit: Unit) -> Iterator[None]:
    try:
        yield
    except TypeError as error:
        if "__init_subclass__" not in str(error):
            raise
        names = ", ".join(
            f"{name!r} ({type(module).__name__})"
            for name, module in zip(unit.names, unit.modules, strict=True)
        )
        raise PlanError(
            "strategy.sharding = True gives the modules that are gathered a class below their own, "
            f"and a class among those of {names} asks each such class for arguments ({error}). "
            "Give these arguments of __init_subclass__ defaults, end units elsewhere by "
            "sharding_configs['segment_anchors'], or set strategy.sharding = False."
        ) from error


def _lay_in_rows(model: nn.Module) -> None:
    """Bring parameters whose rows lie otherwise (channels_last, transposed) to an order to cut."""
    for parameter in model.parameters():
        if not (parameter.is_contiguous() or hasattr(parameter, "to_local")):
            parameter.data = parameter.data.contiguous()


def _check_shapes(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if not parameter.dim():
            raise PlanError(_SCALAR.format(repr(name), name, name))
        if parameter.requires_grad and not parameter.numel():
            raise PlanError(_EMPTY.format(name, name))


def _check_formats(model: nn.Module, units: Sequence[Unit]) -> None:
    done = {p for unit in units for module in unit.modules for p in module.parameters()}
    groups = {
        f"the submodule {name!r}": dict(module.named_parameters(name))
        for unit in units
        for name, module in zip(unit.names, unit.modules, strict=True)
    }
    left = {name: p for name, p in model.named_parameters() if p not in done}
    for owner, held in (groups | {"what travels with the model itself": left}).items():
        by_format = {p.dtype: name for name, p in held.items() if p.requires_grad}
        if len(by_format) > 1:
            said = ", ".join(f"{name!r} in {dtype}" for dtype, name in by_format.items())
            raise PlanError(_FORMATS.format(owner, said.replace("torch.", "")))


def _is_spread(tensor: Any) -> bool:
    mesh = getattr(tensor, "device_mesh", None)
    return mesh is not None and "sharding" in (mesh.mesh_dim_names or ())


def _mesh(job: Job) -> DeviceMesh:
    """Shard along one axis, replicate along the other where there is one."""
    return job.mesh["dp", "sharding"] if job.size("dp") > 1 else job.mesh["sharding"]


def _explained(model: nn.Module, forward: Forward) -> Forward:
    """Say what is wrong where a forward reads weights of a submodule that it does not call."""

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return forward(*args, **kwargs)
        except RuntimeError as error:
            if "mixed torch.Tensor and DTensor" not in str(error):
                raise
            raise PlanError(_UNGATHERED.format(weights_read(model, error))) from error

    return run


def _of_plain_tensors(forward: Forward) -> Forward:
    """Take the spread out of inputs that a script made from a parameter.

    As many recurrent models begin: ``next(model.parameters()).new_zeros(layers, rows, width)``.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        compiled = torch.compiler.is_compiling()  # by the script, for inputs that are plain
        if not compiled and any(map(_is_spread, tensors((args, kwargs)))):
            args, kwargs = mapped(_plain, (args, kwargs))
        return forward(*args, **kwargs)

    return run


def _plain(value: Any) -> Any:
    # A parameter among the inputs would get a gradient that nobody exchanges.
    return value.full_tensor() if _is_spread(value) and not value.requires_grad else value


def _named(model: nn.Module, entry: str, named: Mapping[str, str]) -> list[str]:
    """The paths of what an entry names: submodules, or in a program those of its cuts."""
    known = named or {name: name for name, _ in model.named_modules() if name}
    names = [entry] if entry in known else [name for name in known if fnmatchcase(name, entry)]
    found = [known[name] for name in names]
    if not found:
        message = f"sharding_configs['segment_anchors'] names {entry!r}, and the model has no such "
        raise PlanError(option.unknown(f"{message}submodule", entry, known))
    return found
