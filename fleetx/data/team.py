"""The workers that share the data, and the few words they exchange about it."""

import sys
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from fleetx.roles.messages import of_first, smallest


@dataclass(frozen=True, slots=True)
class Team:
    """This worker's place among the workers that share the data."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None
    """None for a single worker, and for workers that cannot reach each other."""

    @property
    def can_agree(self) -> bool:
        """Whether all workers can be brought to the same opinion."""
        return self.size == 1 or self.group is not None

    def hear_first(self, mine: Tensor) -> Tensor:
        """What worker 0 has; `mine` is of the same shape and type."""
        return mine if self.group is None else of_first(mine, self.group)

    def all_have(self, mine: bool) -> bool:
        """Whether it is true for every worker."""
        return bool(self.least(int(mine)))

    def least(self, mine: int) -> int:
        """The smallest of the workers' numbers."""
        return mine if self.group is None else smallest(mine, self.group)


def find_team(group: dist.ProcessGroup | None) -> Team:
    """The members of `group`; without one, the workers of the job; without a job, only us."""
    if group is not None:
        return _team_of(group)
    if team := _team_of_job():
        return team
    if dist.is_available() and dist.is_initialized():
        assert dist.group.WORLD is not None
        return _team_of(dist.group.WORLD)
    return Team()


def find_device() -> torch.device | None:
    """Where this process computes, if fleet.init() has chosen; None leaves batches alone."""
    if not _has_started():
        return None
    from fleetx import roles

    return roles.device()


def neighbours() -> int:
    """How many workers of the job share this machine, this one included."""
    if not _has_started():
        return 1
    from fleetx.roles.session import identity

    return max(1, identity().local_size)


def _team_of(group: dist.ProcessGroup) -> Team:
    size = dist.get_world_size(group)
    if size < 1:  # torch's answer to a process that is not in the group
        raise ValueError(
            "distributed_loader(group=...) has no place for this process, which is no member of "
            "the group. Pass the group that this process belongs to."
        )
    return Team(dist.get_rank(group), size, group if size > 1 else None)


def _team_of_job() -> Team | None:
    if not _has_started():
        return None
    from fleetx.roles.session import world

    if (sharers := _data_group()) is not None:
        return _team_of(sharers)

    here = world("distributed_loader")
    if here.group is not None:
        return _team_of(here.group)
    return Team(here.identity.index, here.identity.worker_num)


def _data_group() -> dist.ProcessGroup | None:
    """The data axis, where some workers see the same samples."""
    if "fleetx.api.session" not in sys.modules:
        return None
    from fleetx.api.layout import data_group

    return data_group()


def _has_started() -> bool:
    # A job that was started has loaded that module; loading it only to hear "no" would cost time.
    if "fleetx.roles.session" not in sys.modules:
        return False
    from fleetx.roles.session import NotInitializedError, identity

    try:
        identity()
    except NotInitializedError:
        return False
    return True
