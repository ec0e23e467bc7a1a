"""How many ranks each axis of the mesh gets."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from fleetx.plan.error import PlanError

AXES = ("pp", "dp", "sharding", "tp")
"""From the outermost to the innermost: neighbours along the last one talk the most."""


@dataclass(frozen=True)
class Degree:
    """A number of ranks that somebody asked for, and how it was spelled."""

    ranks: int
    spelled: str


def shape(axes: Mapping[str, str], asked: Mapping[str, Degree], world: int) -> dict[str, int]:
    """Axis -> ranks, for all axes; their product is the world.

    Args:
        axes: the axes that are in use -> the strategy that uses it.
        asked: the degrees that were set; an axis without one takes what the others leave.
        world: the number of workers.
    """
    for axis, degree in asked.items():
        if axis not in axes and degree.ranks > 1:
            raise PlanError(
                f"{degree.spelled} = {degree.ranks} spreads the job over the axis {axis}, and no "
                f"strategy of this plan uses it. {_instead(axis)}"
            )
    fixed = {axis: asked[axis].ranks for axis in axes if axis in asked}
    open_axes = [axis for axis in AXES if axis in axes and axis not in fixed]
    taken = prod(fixed.values())
    if world % taken or (not open_axes and taken != world):
        raise PlanError(_does_not_fit(asked, fixed, open_axes, world))
    # Of the axes without a degree the innermost one takes the rest, replication only if no other
    # axis is open: a strategy that was switched on shall have something to do.
    taker = next((axis for axis in reversed(open_axes) if axis != "dp"), "dp")
    rest = {axis: world // taken if axis == taker else 1 for axis in open_axes}
    return {axis: (fixed | rest).get(axis, 1) for axis in AXES}


def in_words(mesh: Mapping[str, int]) -> str:
    """The shape of a mesh, as people read it."""
    return " x ".join(f"{axis} {size}" for axis, size in mesh.items())


def data_place(axes: Mapping[str, int], rank: int) -> tuple[int, int]:
    """Which share of the data a rank works on, and how many shares there are.

    Ranks of one pipeline, and of one tensor-parallel group, work on the same share.
    """
    shares = axes["dp"] * axes["sharding"]
    return rank // axes["tp"] % shares, shares


def _instead(axis: str) -> str:
    switch = {"pp": "pipeline", "sharding": "sharding", "tp": "tensor_parallel"}.get(axis)
    return f"Set strategy.{switch} = True, or the degree to 1." if switch else "Set it to 1."


def _does_not_fit(
    asked: Mapping[str, Degree], fixed: Mapping[str, int], open_axes: list[str], world: int
) -> str:
    taken = prod(fixed.values())
    product = " x ".join(f"{asked[axis].spelled} = {ranks}" for axis, ranks in fixed.items())
    first = next(iter(fixed))
    others = taken // fixed[first]
    if world % others == 0:
        instead = f"set {asked[first].spelled} to {world // others}"
    else:
        instead = f"start {taken} workers"
    relation = "does not divide" if open_axes else "is not"
    return f"{product} gives {taken}, which {relation} the {world} workers; {instead}."
