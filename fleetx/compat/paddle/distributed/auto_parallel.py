"""``paddle.distributed.auto_parallel``: layouts written by hand, which are refused by name."""

from typing import Any, NoReturn

_INSTEAD = (
    "lays tensors out over a mesh by hand; fleetx lays models out by strategies: set "
    "strategy.hybrid_configs with strategy.tensor_parallel, strategy.pipeline or "
    "strategy.sharding, and leave the annotations out."
)


class ProcessMesh:
    """Workers along axes; it can be made, and nothing is laid out by it."""

    def __init__(self, mesh: Any, dim_names: Any = None, parent: Any = None) -> None:
        self.mesh, self.dim_names, self.parent = mesh, dim_names, parent

    @property
    def topology(self) -> list[int]:
        """The lengths of the axes."""
        found, level = [], self.mesh
        while isinstance(level, list | tuple):
            found.append(len(level))
            level = level[0]
        return found

    def set_placement(self, order: Any) -> None:
        """Refused."""
        _refuse("ProcessMesh.set_placement()")


def _refuse(call: str) -> NoReturn:
    raise NotImplementedError(f"paddle.distributed.auto_parallel.{call} {_INSTEAD}")


def shard_tensor(x: Any, dist_attr: Any = None, **_: Any) -> NoReturn:
    """Refused."""
    _refuse("shard_tensor()")


def shard_op(op_fn: Any, dist_attr: Any = None, **_: Any) -> NoReturn:
    """Refused."""
    _refuse("shard_op()")
