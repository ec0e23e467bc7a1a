"""``paddle.fluid.layers.device``."""

from typing import Any

from fleetx.static.run.devices import CPUPlace


def get_places(device_count: int | None = None, device_type: Any = None) -> list[Any]:
    """The devices of this process: one worker has one."""
    return [CPUPlace() for _ in range(device_count or 1)]
