"""``paddle.distributed.utils``."""

from fleetx.compat.worlds import endpoints, rank, world_size


def get_host_name_ip() -> tuple[str, str]:
    """The name and the address of this machine."""
    import socket

    name = socket.gethostname()
    return name, socket.gethostbyname(name)


__all__ = ["endpoints", "get_host_name_ip", "rank", "world_size"]
