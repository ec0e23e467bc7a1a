"""Which card, and which backend for all cards."""

import logging

import pytest
import torch

from fleetx.roles import Identity, Role
from fleetx.roles.devices import card, card_name, choose_backend, choose_device


def worker(local_rank: int, device_index: int | None = None) -> Identity:
    return Identity(
        source="test", is_collective=True, local_rank=local_rank, device_index=device_index
    )


@pytest.mark.parametrize(
    ("found", "visible", "index"),
    [(worker(1), 4, 1), (worker(3), 1, 0), (worker(5), 4, 1), (worker(1, 3), 4, 3)],
)
def test_card(found: Identity, visible: int, index: int) -> None:
    assert card(found, visible) == index


def test_a_card_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="FLAGS_selected_gpus=4 does not exist"):
        card(worker(0, 4), 4)


def test_servers_compute_on_the_cpu() -> None:
    server = Identity(
        source="test", is_collective=False, role=Role.SERVER, server_endpoints=("a:1",)
    )
    assert choose_device(server) == torch.device("cpu")
    assert card_name(torch.device("cpu")) == ""


@pytest.mark.parametrize(
    ("cards", "backend", "warning"),
    [
        ([""], "gloo", ""),
        (["", ""], "gloo", ""),
        (["x", "x"], "gloo", "2 workers share 1 CUDA device(s), which NCCL refuses; using gloo"),
        (["x", ""], "gloo", "workers 1 have no CUDA device"),
        (["x", "y"], "cpu:gloo,cuda:nccl", ""),
    ],
)
def test_backend(
    cards: list[str],
    backend: str,
    warning: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    with caplog.at_level(logging.WARNING):
        assert choose_backend(cards) == backend
    assert warning in caplog.text
    assert bool(caplog.text) == bool(warning)


def test_a_torch_without_nccl(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert choose_backend(["x", "y"]) == "gloo"
    assert "this torch has no NCCL" in caplog.text
