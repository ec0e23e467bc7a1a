"""``paddle.distributed.fleet.utils.log_util``: the logger of Paddle's fleet."""

import logging
from typing import Any

logger = logging.getLogger("fleetx")


def set_log_level(level: Any) -> None:
    """Say more or less: a number of ``logging``, or its name."""
    logger.setLevel(level.upper() if isinstance(level, str) else level)


def get_log_level_code() -> int:
    """The level as a number."""
    return logger.getEffectiveLevel()


def get_log_level_name() -> str:
    """The level by name."""
    return logging.getLevelName(logger.getEffectiveLevel())


def layer_to_str(base: str, *args: Any, **kwargs: Any) -> str:
    """A layer as it would be called."""
    given = [*map(str, args), *(f"{name}={value}" for name, value in kwargs.items())]
    return f"{base}({', '.join(given)})"
