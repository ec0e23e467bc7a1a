"""Workers along the axes of a hybrid job: data, pipeline, sharding and model."""

import math
from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from fleetx import roles
from fleetx.api import session
from fleetx.compat.groups import Group, alone, joined, of_torch

AXES = {"data": "dp", "pipe": "pp", "sharding": "sharding", "model": "tp"}
"""Paddle's name of an axis -> ours."""


def degrees(strategy: Any = None) -> dict[str, int]:
    """Axis -> workers, as ``hybrid_configs`` says; the axis dp takes what the others leave."""
    joined()
    chosen = (strategy or session.current("hybrid").strategy).hybrid_configs
    made = {
        "pp": int(chosen["pp_degree"]),
        "dp": int(chosen["dp_degree"]),
        "sharding": int(chosen["sharding_degree"]),
        "tp": int(chosen["mp_degree"]),
    }
    taken = made["pp"] * made["sharding"] * made["tp"]
    made["dp"] = roles.worker_num() // taken if made["dp"] <= 0 else made["dp"]
    if made["dp"] * taken != roles.worker_num():
        raise ValueError(
            f"strategy.hybrid_configs asks for {made['dp'] * taken} workers (dp {made['dp']}, pp "
            f"{made['pp']}, sharding {made['sharding']}, mp {made['tp']}), and the job has "
            f"{roles.worker_num()}; start so many, or leave dp_degree out."
        )
    return made


class Topology:
    """Where each worker is along the axes; those of the last axis are next to each other."""

    def __init__(
        self,
        hybrid_group_names: Sequence[str] = tuple(AXES),
        dims: Sequence[int] = (1, 1, 1, 1),
    ) -> None:
        self._parallel_names, self._dims = list(hybrid_group_names), [int(size) for size in dims]
        self._axes = dict(zip(self._parallel_names, self._dims, strict=True))
        self.coordinate: Any = namedtuple("Coordinate", self._parallel_names)  # type: ignore[misc]

    def get_hybrid_group_names(self) -> list[str]:
        """The axes."""
        return self._parallel_names

    def get_dim(self, axis_name: str) -> int:
        """How many workers an axis has."""
        return self._axes[axis_name]

    get_dim_size = get_dim

    def world_size(self) -> int:
        """How many workers all axes have."""
        return math.prod(self._dims)

    def get_coord(self, rank: int) -> Any:
        """The place of a worker along each axis."""
        place: dict[str, int] = {}
        for axis in reversed(self._parallel_names):
            rank, place[axis] = divmod(rank, self._axes[axis])
        return self.coordinate(**place)

    def get_rank(self, **place: int) -> int:
        """The worker at a place."""
        wanted = self.coordinate(**place)
        return next(r for r in range(self.world_size()) if self.get_coord(r) == wanted)

    def get_rank_from_stage(self, global_rank: int, **place: int) -> int:
        """The worker that is where another is, but for some axes."""
        return self.get_rank(**self.get_coord(global_rank)._replace(**place)._asdict())

    def get_axis_list(self, axis_name: str, index: int) -> list[int]:
        """The workers at one place along an axis."""
        at = self._parallel_names.index(axis_name)
        return [r for r in range(self.world_size()) if self.get_coord(r)[at] == index]

    def get_comm_list(self, axis_name: str) -> list[list[int]]:
        """The groups of workers along an axis."""
        rows: dict[Any, list[int]] = {}
        for rank in range(self.world_size()):
            rest = self.get_coord(rank)._replace(**{axis_name: 0})
            rows.setdefault(rest, []).append(rank)
        return list(rows.values())


def _of_job(made: Mapping[str, int]) -> Topology:
    names = {ours: name for name, ours in AXES.items()}
    return Topology([names[axis] for axis in made], list(made.values()))


class HybridCommunicateGroup:
    """This worker's place and groups, along each axis."""

    def __init__(self, topology: Topology | None = None) -> None:
        self._degrees = degrees()
        self._topo = _of_job(self._degrees)
        self._check(topology)
        self.global_rank = roles.worker_index()
        self._place: dict[str, int] = self._topo.get_coord(self.global_rank)._asdict()
        self._groups: dict[str, Group] = {}

    def _check(self, given: Topology | None) -> None:
        sizes = {} if given is None else given._axes
        if any(size != self._degrees[AXES[name]] for name, size in sizes.items()):
            raise ValueError(
                f"HybridCommunicateGroup() was given the sizes {sizes}, and the job has "
                f"{self._topo._axes}; set strategy.hybrid_configs before fleet.init()."
            )

    def _group(self, axis: str) -> Group:
        if axis not in self._groups:
            if self._degrees[AXES[axis]] == 1 or not dist.is_initialized():
                self._groups[axis] = alone()
            else:
                mesh = roles.mesh(self._degrees)
                self._groups[axis] = of_torch(mesh[AXES[axis]].get_group())
        return self._groups[axis]

    def _set_comm_group(self, parallel_method: str = "data") -> tuple[list[int], Group]:
        found = self._group(parallel_method)
        return list(found.ranks), found

    def topology(self) -> Topology:
        """Where everybody is."""
        return self._topo

    def get_parallel_mode(self) -> int:
        """0 data, 1 model, 2 pipeline, 3 sharding."""
        order = (("pp", 2), ("tp", 1), ("sharding", 3))
        return next((mode for axis, mode in order if self._degrees[axis] > 1), 0)

    def get_global_rank(self) -> int:
        """The number of this worker."""
        return self.global_rank

    def get_data_parallel_rank(self) -> int:
        """Its place along the axis of data."""
        return self._place["data"]

    _get_data_parallel_id = get_data_parallel_rank

    def get_data_parallel_world_size(self) -> int:
        """The length of that axis."""
        return self._degrees["dp"]

    def get_data_parallel_group(self) -> Group:
        """The workers along it."""
        return self._group("data")

    def get_data_parallel_group_src_rank(self) -> int:
        """The first of them."""
        return self._group("data").ranks[0]

    def get_model_parallel_rank(self) -> int:
        """Its place along the axis of cut layers."""
        return self._place["model"]

    _get_model_parallel_id = get_model_parallel_rank

    def get_model_parallel_world_size(self) -> int:
        """The length of that axis."""
        return self._degrees["tp"]

    def get_model_parallel_group(self) -> Group:
        """The workers along it."""
        return self._group("model")

    def get_model_parallel_group_src_rank(self) -> int:
        """The first of them."""
        return self._group("model").ranks[0]

    def get_stage_id(self) -> int:
        """Its place in the pipeline."""
        return self._place["pipe"]

    get_pipe_parallel_rank = get_stage_id

    def get_pipe_parallel_world_size(self) -> int:
        """The length of the pipeline."""
        return self._degrees["pp"]

    def get_pipe_parallel_group(self) -> Group:
        """The workers of it."""
        return self._group("pipe")

    def is_first_stage(self) -> bool:
        """Whether it begins the pipeline."""
        return self.get_stage_id() == 0

    def is_last_stage(self) -> bool:
        """Whether it ends the pipeline."""
        return self.get_stage_id() == self._degrees["pp"] - 1

    def get_sharding_parallel_rank(self) -> int:
        """Its place along the axis of parts of parameters."""
        return self._place["sharding"]

    def get_sharding_parallel_world_size(self) -> int:
        """The length of that axis."""
        return self._degrees["sharding"]

    def get_sharding_parallel_group(self) -> Group:
        """The workers along it."""
        return self._group("sharding")

    def get_sharding_parallel_group_src_rank(self) -> int:
        """The first of them."""
        return self._group("sharding").ranks[0]

    def get_check_parallel_group(self, *_: Any) -> Group:
        """The workers that hold other parameters of the same model."""
        return self._group("model")


_made: list[HybridCommunicateGroup] = []


def hybrid_group() -> HybridCommunicateGroup:
    """The place of this worker in the job that runs."""
    joined()
    if not _made or _made[-1]._degrees != degrees():
        _made[:] = [HybridCommunicateGroup()]
        roles.at_stop(_made.clear)
    return _made[-1]
