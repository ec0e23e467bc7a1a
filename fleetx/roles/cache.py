"""Where results that are dear to find are kept between jobs."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """``FLEETX_CACHE``, else fleetx's place among the caches of this user."""
    if chosen := os.environ.get("FLEETX_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fleetx"
