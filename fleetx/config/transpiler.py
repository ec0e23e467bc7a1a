"""The configuration of parameter-server jobs in the spelling of ``DistributeTranspilerConfig``."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from typing_extensions import override

from fleetx.config.distributed_strategy import DistributedStrategy
from fleetx.plan.option import AtLeast, Config, OneOf, annotations, check, unknown


@dataclass(frozen=True, kw_only=True)
class _Options(Config):
    sync_mode: bool = True
    split_method: Annotated[str, OneOf(("BySize", "RoundRobin", "HashName"))] = "BySize"
    slice_var_up: bool = True
    min_block_size: Annotated[int, AtLeast(1)] = 1024
    runtime_split_send_recv: bool = False
    half_async: bool = False
    geo_sgd_mode: bool = False
    geo_sgd_need_push_nums: Annotated[int, AtLeast(1)] = 100


def _refuse_unused(values: Mapping[str, Any]) -> None:
    """A flag that is on is in force, or the run stops."""
    normal = _Options().geo_sgd_need_push_nums
    if values["geo_sgd_need_push_nums"] != normal and not values["geo_sgd_mode"]:
        raise ValueError(
            "DistributeTranspilerConfig.geo_sgd_need_push_nums = "
            f"{values['geo_sgd_need_push_nums']} says how often workers that train copies exchange "
            f"them, and geo_sgd_mode is False; set geo_sgd_mode = True, or leave it at {normal}"
        )
    for name in ("half_async", "runtime_split_send_recv"):
        if values["geo_sgd_mode"] and values[name]:
            raise ValueError(
                f"DistributeTranspilerConfig.{name} = True and geo_sgd_mode = True ask for two "
                "ways to exchange, and a job has one; set one of them"
            )


class DistributeTranspilerConfig:
    """Options are attributes, checked when they are set."""

    sync_mode: bool
    """Every update waits for all workers."""
    split_method: str
    """"BySize", "RoundRobin" or "HashName"; a class of that name is understood as well."""
    slice_var_up: bool
    """Spread large parameters over several servers."""
    min_block_size: int
    """The least numbers in a part of a parameter."""

    def __init__(self) -> None:
        for name, value in _Options().values().items():
            setattr(self, name, value)

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        known = annotations(_Options)
        if name not in known:
            message = f"DistributeTranspilerConfig has no {name!r}"
            raise AttributeError(unknown(message, name, known))
        if name == "split_method":
            value = getattr(value, "__name__", "BySize" if value is None else value)
        super().__setattr__(name, check(name, known[name], value))

    def split(self) -> dict[str, Any]:
        """How parameters are spread, in the words of the plan."""
        names = ("split_method", "slice_var_up", "min_block_size")
        return {name: getattr(self, name) for name in names}

    def strategy(self, base: DistributedStrategy) -> DistributedStrategy:
        """The strategy that this asks for, next to what ``base`` asks for."""
        made = copy.deepcopy(base)
        made.a_sync = not self.sync_mode
        values = vars(self)
        _refuse_unused(values)
        if self.sync_mode:
            if values["runtime_split_send_recv"] or values["geo_sgd_mode"] or values["half_async"]:
                raise ValueError(
                    "DistributeTranspilerConfig.sync_mode = True waits for all workers, and "
                    "runtime_split_send_recv, half_async and geo_sgd_mode do not; set sync_mode = "
                    "False, or leave them alone"
                )
        elif values["geo_sgd_mode"]:
            made.a_sync_configs = {"k_steps": values["geo_sgd_need_push_nums"]}
        else:
            half = values["half_async"] or not values["runtime_split_send_recv"]
            made.a_sync_configs = {"k_steps": 0, "half_async": half}
        return made
