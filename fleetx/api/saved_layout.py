"""How the state of an optimizer lies over workers, in words that are saved with it."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from fleetx.comm.local import local
from fleetx.engine.engine import Engine

Layout = Mapping[str, Any]

SPREADING = ("pp", "sharding", "tp")
"""The axes along which workers hold different numbers; along dp all hold the same."""
OPTIONS = ("momentum", "amsgrad", "centered")
"""Options of torch's optimizers by which they keep one tensor more for each parameter."""
SHAPED = ("momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum")
"""What they keep in the shape of a parameter."""
WHOLE = (
    "The weights alone fit every layout: save them with fleet.full_state_dict() and load them with "
    "fleet.load_full_state_dict()."
)

_OTHER = "it was saved under another layout; load it under the strategy that saved it"


def layout_of(engine: Engine, optimizer: Optimizer) -> dict[str, Any]:
    """What must be the same again where the state of this optimizer is loaded."""
    job = engine.job
    named = reversed([*job.model.named_parameters(remove_duplicate=False)])
    names = {id(parameter): name for name, parameter in named}
    held = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        "mesh": {axis: job.size(axis) for axis in ("pp", "dp", "sharding", "tp")},
        "place": [_place(engine, axis) for axis in SPREADING],
        "cuts": {s.name: cut for s in engine.plan.strategies if (cut := s.layout())},
        "parameters": [names[id(p)] for p in held],
        "shapes": [list(local(p).shape) for p in held],
        "options": [options_of(group) for group in optimizer.param_groups for _ in group["params"]],
        "rule": [kind.__name__ for kind in type(optimizer).mro() if issubclass(kind, Optimizer)],
    }


def check_same(saved: Layout, here: Layout) -> None:
    """Refuse what lies differently, for a worker would take numbers of others for its own."""
    degrees = {axis for axis in SPREADING if saved["mesh"][axis] != here["mesh"][axis]}
    if degrees:
        raise ValueError(
            f"the state was saved on {told(saved)}, and this job runs on {told(here)}: what each "
            "worker keeps of optimizer and strategies cannot be dealt anew. Load it under the "
            f"strategy that saved it. {WHOLE}"
        )
    if saved["place"] != here["place"]:
        raise ValueError(
            f"the state is that of another worker: {told(saved)} in the place {saved['place']} "
            f"along {', '.join(SPREADING)}, and this one is in the place {here['place']}. Save and "
            "load a file for each worker, such as f'optimizer-{fleet.worker_index()}.pt'."
        )
    check_rule(saved, here)
    _check_parameters(saved, here)
    if saved["cuts"] != here["cuts"]:
        name = next(iter(saved["cuts"].keys() ^ here["cuts"].keys()), None) or next(
            name for name, cut in here["cuts"].items() if saved["cuts"][name] != cut
        )
        raise ValueError(
            f"the state was saved where {name} cut the model in other places, on this worker or on "
            f"others; set {name}_configs as they were then. {WHOLE}"
        )


def check_rule(saved: Layout, here: Layout) -> None:
    """Refuse numbers of another update rule."""
    if saved["rule"][0] not in here["rule"] and here["rule"][0] not in saved["rule"]:
        raise ValueError(
            f"the state was saved by {saved['rule'][0]}, and the optimizer that runs here is "
            f"{here['rule'][0]}, which keeps other numbers; use the optimizer and the strategies "
            f"that saved it. {WHOLE}"
        )


def _check_parameters(saved: Layout, here: Layout) -> None:
    old = dict(zip(saved["parameters"], saved["shapes"], strict=True))
    new = dict(zip(here["parameters"], here["shapes"], strict=True))
    if old.keys() != new.keys():
        missing, strange = sorted(new.keys() - old.keys()), sorted(old.keys() - new.keys())
        raise ValueError(
            "the state is not that of the parameters which this worker moves: it lacks "
            f"{missing[:3]} and has {strange[:3]} besides. Load it into the same model, cut and "
            f"given to the optimizer as it was when it was saved. {WHOLE}"
        )
    for name, shape in new.items():
        if old[name] != shape:
            raise ValueError(
                f"{name!r} has the shape {old[name]} in the state and {shape} on this worker; load "
                f"it into the same model, under the strategy that saved it. {WHOLE}"
            )


def check_options(saved: Layout, here: Layout) -> None:
    """Refuse numbers that the options of this optimizer would not use, or would miss."""
    old, new = (
        dict(zip(told["parameters"], told["options"], strict=True)) for told in (saved, here)
    )
    check_named_options(old, new)


def check_named_options(old: Mapping[str, list[str]], new: Mapping[str, list[str]]) -> None:
    """The same by names of parameters."""
    for name, options in new.items():
        if old.get(name, options) != options:
            raise ValueError(
                f"the state of {name!r} was saved by an optimizer with {old[name] or 'none'} of "
                f"{list(OPTIONS)} set, and this one has {options or 'none'}, so it keeps other "
                f"numbers; set them as they were when it was saved. {WHOLE}"
            )


def check_order(saved: Layout, here: Layout) -> None:
    """Refuse a state that counts the parameters differently, where they have no names."""
    pairs = zip(saved["parameters"], here["parameters"], strict=True)
    for number, (old, new) in enumerate(pairs):
        if old != new:
            raise ValueError(
                f"parameter {number} of the state is {old!r} and of this optimizer {new!r}; give "
                "the optimizer its parameters in the order in which they were saved."
            )


def check_fits(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Refuse a state that may say nothing of its layout, where it is plain that it does not fit."""
    here, there = (
        [len(g["params"]) for g in groups]
        for groups in (optimizer.param_groups, state["param_groups"])
    )
    if sum(here) != sum(there):
        raise ValueError(
            f"the optimizer state speaks of {sum(there)} parameters, and this rank holds "
            f"{sum(here)}: {_OTHER}, on the same rank. {WHOLE}"
        )
    if here != there:
        raise ValueError(
            f"the optimizer state has groups of {there} parameters, and this optimizer of {here}; "
            "give it the groups with which it was saved."
        )
    keys = [key for group in state["param_groups"] for key in group["params"]]
    # By numbers are parameters meant; what an optimizer keeps besides has a name.
    numbers = {key for key in state["state"] if isinstance(key, int)}
    if strange := sorted(numbers - set(keys)):
        raise ValueError(
            f"the optimizer state has numbers for {strange[:3]}, which are in none of its groups "
            "and would be lost; load a state as state_dict() returned it."
        )
    held = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter, key in zip(held, keys, strict=True):
        for name, value in state["state"].get(key, {}).items():
            if isinstance(value, Tensor) and value.dim():  # else it is a count of steps
                _check_value(name, value, parameter)


def _check_value(name: str, value: Tensor, parameter: Tensor) -> None:
    if _is_spread(parameter) != _is_spread(value):
        which = ("whole", "spread") if _is_spread(parameter) else ("spread", "whole")
        raise ValueError(
            f"the optimizer state {name!r} is {which[0]}, and its parameter is {which[1]} over "
            f"ranks here: {_OTHER}. {WHOLE}"
        )
    if name in SHAPED and value.shape != parameter.shape:
        raise ValueError(
            f"the optimizer state {name!r} has the shape {list(value.shape)}, and its parameter "
            f"{list(parameter.shape)}; load the state of the same model."
        )


def _is_spread(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local")


def options_of(group: Mapping[str, Any]) -> list[str]:
    """Which of ``OPTIONS`` a group of parameters has set."""
    return [name for name in OPTIONS if group.get(name)]


def _place(engine: Engine, axis: str) -> int:
    alone = engine.job.size(axis) == 1
    return 0 if alone else engine.job.mesh[axis].get_local_rank()


def told(layout: Layout) -> str:
    """The degrees of the mesh, in words."""
    return ", ".join(f"{axis} {degree}" for axis, degree in layout["mesh"].items())
