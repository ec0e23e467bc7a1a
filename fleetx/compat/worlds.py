"""This process among the workers, also before ``fleet.init``."""

from fleetx import roles


def _identity() -> roles.Identity:
    if roles.started():
        return roles.identity()
    try:
        return roles.detect(is_collective=True).identity()
    except (RuntimeError, ValueError):  # a job with servers
        return roles.detect(is_collective=False).identity()


def rank() -> int:
    """The number of this worker."""
    found = _identity()
    return found.index if found.is_worker else 0


def world_size() -> int:
    """How many workers there are."""
    return _identity().worker_num


def local_rank() -> int:
    """The number of this worker on its machine."""
    return _identity().local_rank


def endpoints() -> list[str]:
    """Addresses of all workers, where they are known."""
    return list(_identity().worker_endpoints)


def own_endpoint() -> str:
    """The address of this worker, where it is known."""
    known = endpoints()
    return known[rank()] if known else ""


def device_number() -> int:
    """The number of this worker's card; 0 without one."""
    found = _identity()
    ids = found.local_device_ids
    return found.device_index if found.device_index is not None else (ids[0] if ids else 0)
