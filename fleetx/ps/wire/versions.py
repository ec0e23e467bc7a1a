"""Up to where a copy of a table has come."""

import struct
from typing import NamedTuple

from fleetx.ps.wire.frames import VERSION_BYTES

_VERSION = struct.Struct("<QQq")
assert _VERSION.size == VERSION_BYTES


class Version(NamedTuple):
    """Whose changes are meant, and the last of them that is known."""

    history: int
    """Of the table; another one when it was made anew, or set to a save."""
    life: int
    """Of the server's process."""
    number: int
    """Of the last change."""

    def packed(self) -> bytes:
        """The bytes of it."""
        return _VERSION.pack(*self)

    @staticmethod
    def unpacked(data: bytes | bytearray | memoryview) -> "Version":
        """The version at the beginning of some bytes."""
        return Version(*_VERSION.unpack(data[:VERSION_BYTES]))


NOTHING = Version(0, 0, -1)
"""The version of an empty copy."""
