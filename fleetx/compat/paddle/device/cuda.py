"""``paddle.device.cuda``: the memory and the streams of cards."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from fleetx.compat.paddle.device import device_count, device_of, empty_cache, synchronize

__all__ = [
    "Event",
    "Stream",
    "current_stream",
    "device_count",
    "empty_cache",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "stream_guard",
    "synchronize",
]

Event = torch.cuda.Event


def _card(device: Any) -> torch.device | None:
    """A card by its place, name or number; None without one."""
    if not torch.cuda.is_available():
        return None
    if isinstance(device, int):
        return torch.device("cuda", device)
    return device_of(device)


def _bytes(name: str, device: Any) -> int:
    card = _card(device)
    return 0 if card is None else int(getattr(torch.cuda, name)(card))


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that tensors took so far; 0 without a card."""
    return _bytes("max_memory_allocated", device)


def max_memory_reserved(device: Any = None) -> int:
    """The most bytes that were held so far."""
    return _bytes("max_memory_reserved", device)


def memory_allocated(device: Any = None) -> int:
    """Bytes that tensors take now."""
    return _bytes("memory_allocated", device)


def memory_reserved(device: Any = None) -> int:
    """Bytes that are held now."""
    return _bytes("memory_reserved", device)


def get_device_properties(device: Any = None) -> Any:
    """What is known of a card."""
    return torch.cuda.get_device_properties(_card(device))


def get_device_name(device: Any = None) -> str:
    """The name of a card."""
    return torch.cuda.get_device_name(_card(device))


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Its generation, as two numbers."""
    return torch.cuda.get_device_capability(_card(device))


def Stream(device: Any = None, priority: int | None = None) -> Any:
    """A queue of work of a card; None without one."""
    card = _card(device)
    # Paddle counts 1 for high and 2 for normal, torch -1 and 0.
    return None if card is None else torch.cuda.Stream(card, priority=(priority or 2) - 2)


def current_stream(device: Any = None) -> Any:
    """The queue that work goes to now; None without a card."""
    card = _card(device)
    return None if card is None else torch.cuda.current_stream(card)


def stream_guard(stream: Any) -> AbstractContextManager[Any]:
    """Let work inside go to another queue."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)
