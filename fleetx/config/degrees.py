"""The degrees of the mesh, wherever a user wrote them."""

from collections.abc import Collection, Mapping
from typing import Any

from fleetx.plan.error import PlanError
from fleetx.plan.mesh import Degree

_SPELLINGS = {
    "sharding_configs": {
        "pp_degree": "pp",
        "dp_degree": "dp",
        "sharding_degree": "sharding",
        "mp_degree": "tp",
    },
    "hybrid_configs": {
        "pp_degree": "pp",
        "dp_degree": "dp",
        "sharding_degree": "sharding",
        "mp_degree": "tp",
    },
    "tensor_parallel_configs": {"tensor_parallel_degree": "tp"},
}


_OWN = {
    ("sharding_configs", "sharding_degree"): "sharding",
    ("tensor_parallel_configs", "tensor_parallel_degree"): "tensor_parallel",
}
"""Degrees that speak of one strategy only and rest when it is off, like its other options."""


def degrees(blocks: Mapping[str, Mapping[str, Any]], on: Collection[str]) -> dict[str, Degree]:
    """Axis -> degree, from what was set by hand; -1 leaves an axis open."""
    found: dict[str, Degree] = {}
    for block, keys in _SPELLINGS.items():
        for key, axis in keys.items():
            ranks = blocks.get(block, {}).get(key, -1)
            resting = (owner := _OWN.get((block, key))) is not None and owner not in on
            if ranks > 0 and not resting:
                _add(found, axis, Degree(ranks, f"{block}[{key!r}]"))
    if "pipeline" in on and "pp" not in found:
        _add_stages(found, blocks.get("pipeline_configs", {}))
    return found


def _add_stages(found: dict[str, Degree], pipeline: Mapping[str, Any]) -> None:
    """Names at which the model is cut say how many stages there are."""
    if split := pipeline.get("split", ()):
        found |= _stage_degree(pipeline, len(split) + 1, "pipeline_configs['split']")


def degrees_of_cuts(strategies: Mapping[str, Any], stages: int, source: str) -> dict[str, Degree]:
    """The degrees that a program asks for by being cut into stages."""
    if stages == 1 or "pipeline" not in strategies:
        return {}
    return _stage_degree(strategies["pipeline"], stages, source)


def _stage_degree(pipeline: Mapping[str, Any], stages: int, source: str) -> dict[str, Degree]:
    """The degree of a pipeline of so many stages; none if they cannot be dealt out evenly."""
    chunks = pipeline.get("stages_per_rank", 1)
    if pipeline.get("schedule_mode") == "interleaved":
        chunks = max(chunks, 2)
    if stages % chunks:
        return {}
    return {"pp": Degree(stages // chunks, f"the {stages // chunks} ranks that {source} needs")}


def other_options(block: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """What a block says besides degrees, which somebody else must obey."""
    read = _SPELLINGS.get(block, {})
    return {key: value for key, value in values.items() if key not in read}


def _add(found: dict[str, Degree], axis: str, degree: Degree) -> None:
    other = found.setdefault(axis, degree)
    if other.ranks != degree.ranks:
        raise PlanError(
            f"{other.spelled} = {other.ranks} and {degree.spelled} = {degree.ranks} contradict "
            "each other: both are the degree of one axis. Set one of them."
        )
