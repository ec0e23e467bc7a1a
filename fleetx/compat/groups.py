"""Groups of workers, as eager scripts of Paddle hold them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

import fleetx
from fleetx import roles


@dataclass
class Group:
    """Some of the workers."""

    rank: int
    """This worker's place among them; -1 if it is none of them."""
    ranks: list[int]
    id: int = 0
    process_group: Any = None
    """The group of torch; None where there is one worker."""

    @property
    def nranks(self) -> int:
        """How many they are."""
        return len(self.ranks)

    world_size = nranks

    @property
    def name(self) -> str:
        """How the group is called."""
        return f"_default_pg{self.id}"

    def get_group_rank(self, rank: int) -> int:
        """The place of a worker among them; -1 if it is none of them."""
        return self.ranks.index(rank) if rank in self.ranks else -1

    def is_member(self) -> bool:
        """Whether this worker is one of them, and there are others."""
        return self.rank >= 0 and self.nranks > 1


_made: list[Group] = []


def joined() -> None:
    """Meet the other workers, if that has not happened."""
    if not roles.started():
        fleetx.init(is_collective=True)


def everybody() -> Group:
    """All workers."""
    joined()
    count = roles.worker_num()
    group = dist.group.WORLD if dist.is_initialized() else None
    return Group(roles.worker_index(), list(range(count)), 0, group if count > 1 else None)


def chosen(group: Any) -> Group:
    """A group, or all workers if None."""
    return everybody() if group is None or isinstance(group, int) else group


def of_torch(group: Any) -> Group:
    """A group of torch by the name of Paddle."""
    ranks = dist.get_process_group_ranks(group)
    return Group(ranks.index(dist.get_rank()), ranks, 0, group if len(ranks) > 1 else None)


def alone() -> Group:
    """This worker by itself."""
    return Group(0, [roles.worker_index() if roles.started() else 0])


def new_group(
    ranks: Sequence[int] | None = None, backend: str | None = None, timeout: Any = None
) -> Group:
    """Some of the workers; all workers must call it."""
    joined()
    members = sorted(ranks) if ranks else list(range(roles.worker_num()))
    made = dist.new_group(members) if roles.worker_num() > 1 else None
    here = roles.worker_index()
    place = members.index(here) if here in members else -1
    _made.append(Group(place, members, len(_made) + 1, made if len(members) > 1 else None))
    return _made[-1]


def get_group(id: int = 0) -> Group:
    """A group by its number."""
    return everybody() if id == 0 else _made[id - 1]
