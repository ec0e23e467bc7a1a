"""The shape of the mesh: degrees that were set, and who takes the rest."""

import pytest

from fleetx import PlanError
from fleetx.plan.mesh import Degree, shape

ALL = {"pp": "pipeline", "dp": "data parallel", "sharding": "sharding", "tp": "tensor_parallel"}


def asked(**degrees: int) -> dict[str, Degree]:
    return {axis: Degree(ranks, f"{axis}_degree") for axis, ranks in degrees.items()}


@pytest.mark.parametrize(
    ("axes", "degrees", "world", "expected"),
    [
        (["dp"], {}, 4, (1, 4, 1, 1)),
        (["dp", "sharding"], {}, 8, (1, 1, 8, 1)),
        (["dp", "sharding"], {"sharding": 2}, 8, (1, 4, 2, 1)),
        (["dp", "sharding"], {"dp": 2}, 8, (1, 2, 4, 1)),
        (["dp", "pp", "tp"], {"pp": 2, "tp": 2}, 8, (2, 2, 1, 2)),
        (["dp", "pp", "sharding", "tp"], {"pp": 2, "tp": 2, "sharding": 2}, 8, (2, 1, 2, 2)),
        (["dp"], {"tp": 1}, 2, (1, 2, 1, 1)),
    ],
)
def test_open_axes_take_what_is_left(
    axes: list[str], degrees: dict[str, int], world: int, expected: tuple[int, ...]
) -> None:
    found = shape({axis: ALL[axis] for axis in axes}, asked(**degrees), world)
    assert tuple(found.values()) == expected
    assert list(found) == ["pp", "dp", "sharding", "tp"]


@pytest.mark.parametrize(
    ("axes", "degrees", "world", "words"),
    [
        (["dp"], {"tp": 2}, 4, "tp_degree = 2 spreads the job over the axis tp"),
        (["dp", "tp"], {"tp": 3}, 4, "tp_degree = 3 gives 3, which does not divide the 4 workers"),
        (
            ["dp", "tp"],
            {"tp": 2, "dp": 3},
            4,
            "dp_degree = 3 x tp_degree = 2 gives 6, which is not the 4 workers; set dp_degree to 2",
        ),
        (["dp", "tp"], {"dp": 2, "tp": 3}, 8, "start 6 workers"),
    ],
)
def test_what_does_not_fit_says_what_to_change(
    axes: list[str], degrees: dict[str, int], world: int, words: str
) -> None:
    with pytest.raises(PlanError) as caught:
        shape({axis: ALL[axis] for axis in axes}, asked(**degrees), world)
    assert words in str(caught.value)
