"""Axes must use every worker exactly once."""

import pytest

from fleetx.roles.device_mesh import check_axes


@pytest.mark.parametrize(
    ("axes", "complaint"),
    [
        ({}, "has no axis"),
        ({"dp": 0}, "a length must be at least 1"),
        ({"pp": 2, "dp": 3}, "mesh axes pp=2 x dp=3 need 6 workers, but the job has 4"),
    ],
)
def test_axes_that_do_not_fit(axes: dict[str, int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        check_axes(axes, 4)


def test_axes_that_fit() -> None:
    check_axes({"pp": 2, "dp": 2, "tp": 1}, 4)
