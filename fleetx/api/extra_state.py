"""What modules save beside tensors (``get_extra_state``), from the ranks on which they run."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from fleetx.comm.transfer import to_device
from fleetx.engine.engine import Engine
from fleetx.engine.saved_names import is_extra
from fleetx.roles.messages import broadcast_json, broadcast_tree
from fleetx.torch_internals import tree_flatten, treespec_dumps, treespec_loads


def extra_states(engine: Engine, state: Mapping[str, Any]) -> dict[str, Any]:
    """Those of all modules, tensors on the host; all ranks of a pipeline must call it.

    Args:
        engine: whose layout it is.
        state: the ``state_dict()`` of the model here.
    """
    own = {name: state[name] for name, _ in _here(engine, state)}
    if engine.job.size("pp") > 1 and any(map(is_extra, engine.saved_names)):
        own = _of_all_stages(engine, own)
    return {name: copy.deepcopy(to_device(value, "cpu")) for name, value in own.items()}


def load_extra_states(engine: Engine, state: Mapping[str, Any]) -> None:
    """Give every module that runs here its own."""
    for name, module in _here(engine, state):
        module.set_extra_state(copy.deepcopy(state[name]))


def _here(engine: Engine, names: Iterable[str]) -> Iterator[tuple[str, nn.Module]]:
    """The modules with extra state that run on this rank: the others' here are out of date."""
    for name in filter(is_extra, names):
        module = engine.job.model.get_submodule(name.rpartition(".")[0])
        if module not in engine.job.elsewhere:
            yield name, module


def _of_all_stages(engine: Engine, own: dict[str, Any]) -> dict[str, Any]:
    """Those of all ranks of a pipeline; of a module that runs on several, the first one's."""
    group, device = engine.job.mesh["pp"].get_group(), engine.job.device
    found: dict[str, Any] = {}
    for stage in range(engine.job.size("pp")):
        mine = dist.get_rank(group) == stage
        flaws = [f"{name!r} {_flaw(value)}" for name, value in own.items() if _flaw(value)]
        if flaws := broadcast_json(
            flaws if mine else None, source=stage, group=group, device=device
        ):
            raise ValueError(
                f"the extra state {flaws[0]}, and only plain values and tensors travel between the "
                "ranks of a pipeline; let get_extra_state() return tensors, numbers and strings, "
                "in tuples, lists and dicts with strings as keys."
            )
        given = to_device(own, device) if mine else None
        found = broadcast_tree(given, source=stage, group=group, device=device) | found
    return found


def _flaw(value: Any) -> str:
    """What of an extra state cannot travel as JSON and tensors; nothing if all can."""
    leaves, spec = tree_flatten(value)
    for leaf in leaves:
        if not isinstance(leaf, Tensor | bool | int | float | str | None):
            return f"holds a {type(leaf).__name__}"
    try:
        same = treespec_loads(treespec_dumps(spec)) == spec
    except (TypeError, ValueError, NotImplementedError):
        same = False
    return "" if same else "holds a container that JSON has no form for"
