"""The end of a day, which goes through a table part by part while others push."""

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

_BEGIN = struct.Struct("<qqqQQ")
_PART = struct.Struct("<q")


class Call(NamedTuple):
    """Which request of which client, so that a repeated one is noticed."""

    client: int
    number: int


@dataclass
class DayEnd:
    """What is known of a day whose end has begun."""

    day: int
    """The one that begins."""
    threshold: int
    bits: int
    """The table is gone through in two to the power of this many parts."""
    call: Call
    done: int = 0
    """Parts that were gone through."""
    gone: int = 0
    """Rows that were dropped in them."""

    @property
    def complete(self) -> bool:
        """Whether it is over."""
        return self.done == 1 << self.bits

    def packed(self) -> bytes:
        """For the log, when it begins."""
        return _BEGIN.pack(self.day, self.threshold, self.bits, *self.call)

    @staticmethod
    def unpacked(data: memoryview) -> "DayEnd":
        """The inverse of ``packed``."""
        day, threshold, bits, *call = _BEGIN.unpack(data)
        return DayEnd(day, threshold, bits, Call(*call))

    def plain(self) -> dict[str, Any]:
        """For the manifest of a save that finds it half done."""
        return vars(self) | {"call": [*self.call]}

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> "DayEnd":
        """The inverse of ``plain``."""
        return DayEnd(**plain | {"call": Call(*plain["call"])})


def packed_part(number: int) -> bytes:
    """For the log, before the ids that go with a part."""
    return _PART.pack(number)


def unpacked_part(data: memoryview) -> tuple[int, memoryview]:
    """The number of a part, and the ids that go with it."""
    (number,) = _PART.unpack(data[: _PART.size])
    return number, data[_PART.size :]
