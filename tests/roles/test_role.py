"""Identities that contradict themselves are refused."""

from typing import Any

import pytest

from fleetx import Role
from fleetx.roles import Identity

COLLECTIVE = {"is_collective": True}


def test_roles_keep_their_numbers() -> None:
    assert [(role.name, int(role)) for role in Role] == [
        ("WORKER", 1),
        ("SERVER", 2),
        ("HETER_WORKER", 3),
        ("ALL", 4),
        ("COORDINATOR", 5),
    ]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"index": 1, **COLLECTIVE}, "worker 1 of 1 cannot be; indices run from 0 to 0"),
        ({"index": -1, **COLLECTIVE}, "worker -1 of 1"),
        (
            {"worker_num": 2, "worker_endpoints": ("a:1",), **COLLECTIVE},
            "2 workers but 1 worker endpoints",
        ),
        ({"server_endpoints": ("a:1",), **COLLECTIVE}, "a collective job has no servers"),
        ({"role": Role.SERVER, "is_collective": False}, "server 0 of 0"),
        ({"role": Role.COORDINATOR, **COLLECTIVE}, "role COORDINATOR does not exist in fleetx"),
    ],
)
def test_contradictions(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Identity(**(fields | {"source": "test"}))
