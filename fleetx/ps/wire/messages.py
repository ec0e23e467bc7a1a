"""Bodies of rare requests and their answers: small JSON objects."""

import json
from typing import Any

from fleetx.ps.wire.frames import BadFrameError

Message = dict[str, Any]
REST = "rest"
"""The topic at which workers wait for each other between two stretches of their data."""


def to_json(value: Message) -> bytes:
    """The body of a message."""
    return json.dumps(value, separators=(",", ":")).encode()


def from_json(data: bytes | bytearray | memoryview) -> Message:
    """A message; ``BadFrameError`` when it is not a JSON object."""
    try:
        value = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise BadFrameError(f"a message is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise BadFrameError("a message is not a JSON object")
    return value
