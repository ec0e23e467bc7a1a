"""Numbers of bytes as people write them: "8GB"."""

import re
from typing import Any

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def byte_size(given: Any) -> int | None:
    """The bytes that a number, or a number with a unit, stands for; None if it stands for none."""
    if isinstance(given, int) and not isinstance(given, bool):
        return given if given > 0 else None
    if not isinstance(given, str):
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", given.strip())
    if found is None or found[2].upper() not in _UNITS:
        return None
    return int(float(found[1]) * _UNITS[found[2].upper()]) or None
