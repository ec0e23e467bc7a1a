"""Which cards a job uses."""

import pytest

from fleetx.launch import devices
from fleetx.launch.errors import LaunchError


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "count", lambda: 4)


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize(
    ("gpus", "nproc", "limit", "expected"),
    [
        (None, None, None, (("0", "1", "2", "3"), 4)),
        (None, 2, None, (("0", "1"), 2)),
        (None, None, "2,3", (("2", "3"), 2)),
        ("3,1", None, None, (("3", "1"), 2)),
        ("3", None, "2,3", (("3",), 1)),
        ("0,1,2,3", 2, None, (("0", "1", "2", "3"), 2)),
        ("none", 3, None, ((), 3)),
        (None, 2, "", ((), 2)),
        (None, None, "-1", ((), 1)),
        (None, None, "0,9,1", (("0",), 1)),
    ],
)
def test_cards_are_chosen(
    gpus: str | None, nproc: int | None, limit: str | None, expected: tuple[tuple[str, ...], int]
) -> None:
    environ = {} if limit is None else {"CUDA_VISIBLE_DEVICES": limit}
    assert devices.choose(gpus, nproc, environ) == expected


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize(
    ("gpus", "nproc", "limit", "words"),
    [
        ("4", None, None, "asks for card 4, but this machine shows only 0,1,2,3"),
        ("0", None, "2,3", "CUDA_VISIBLE_DEVICES is '2,3'"),
        ("0,0", None, None, "names 0 twice"),
        ("0,1,2", 2, None, "does not divide the 3 cards"),
        (None, 5, None, "more than the 4 cards"),
    ],
)
def test_impossible_cards_are_refused(
    gpus: str | None, nproc: int | None, limit: str | None, words: str
) -> None:
    environ = {} if limit is None else {"CUDA_VISIBLE_DEVICES": limit}
    with pytest.raises(LaunchError, match=words):
        devices.choose(gpus, nproc, environ)


def test_torch_s_version_decides_without_its_import(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(devices, "hardware", lambda: 8)
    usable = torch.version.cuda is not None or torch.version.hip is not None
    assert devices.count() == (8 if usable else 0)
