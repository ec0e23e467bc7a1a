"""What a process knows about itself and its peers."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum


class Role(IntEnum):
    """What a process does in a job; only the first two exist here."""

    WORKER = 1
    SERVER = 2
    HETER_WORKER = 3
    """Known to old scripts, refused where it is used."""
    ALL = 4
    """Known to old scripts, refused where it is used."""
    COORDINATOR = 5
    """Known to old scripts, refused where it is used."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One process's place in its job, as plain values."""

    source: str
    """Who said so, as a phrase: "fleetrun", "SLURM job 123", "one process"."""
    is_collective: bool
    """True: every process is a worker. False: a parameter-server job."""
    role: Role = Role.WORKER
    """Worker or server."""
    index: int = 0
    """Position among the processes of the same role, from 0."""
    worker_num: int = 1
    """How many workers the whole job has."""
    worker_endpoints: tuple[str, ...] = ()
    """host:port of each worker; empty until known."""
    server_endpoints: tuple[str, ...] = ()
    """host:port of each server; empty in a collective job."""
    local_rank: int = 0
    """Position among the processes of this machine."""
    local_size: int = 0
    """Processes on this machine; 0 means not told, and the start of the job counts them."""
    node_num: int = 0
    """Machines in the job; 0 means not told, and the start of the job counts them."""
    device_index: int | None = None
    """The CUDA device of this process; None means not chosen, or no CUDA."""
    local_device_ids: tuple[int, ...] = ()
    """Every device given to this process."""
    world_device_ids: tuple[tuple[int, ...], ...] = ()
    """The devices of each worker, in the order of the workers."""
    rendezvous: str = ""
    """Where workers meet: "env" (torch's variables), "host:port", or "" when nobody said."""

    def __post_init__(self) -> None:
        """Refuse an identity that contradicts itself."""
        if self.role not in (Role.WORKER, Role.SERVER):
            raise ValueError(refusal(self.role))
        peers = self.worker_num if self.is_worker else len(self.server_endpoints)
        if not 0 <= self.index < peers:
            raise ValueError(
                f"{self.source}: {self.noun} {self.index} of {peers} cannot be; "
                f"indices run from 0 to {peers - 1}"
            )
        if self.worker_endpoints and len(self.worker_endpoints) != self.worker_num:
            raise ValueError(
                f"{self.source}: {self.worker_num} workers but {len(self.worker_endpoints)} worker "
                "endpoints; list one endpoint for each worker"
            )
        if self.is_collective and self.server_endpoints:
            raise ValueError(
                f"{self.source}: a collective job has no servers, yet {len(self.server_endpoints)} "
                "are listed; drop them or use is_collective=False"
            )

    @property
    def is_worker(self) -> bool:
        """Whether this process trains."""
        return self.role is Role.WORKER

    @property
    def noun(self) -> str:
        """The role as a word."""
        return self.role.name.lower()


class RoleMaker(ABC):
    """Says who this process is; subclass it for a cluster that fleetx does not know."""

    @abstractmethod
    def identity(self) -> Identity:
        """Return the same identity at every call."""


def refusal(role: Role) -> str:
    """The sentence for a role that old scripts may name and that fleetx does not have."""
    return (
        f"role {role.name} does not exist in fleetx: a process is a worker or a server; "
        "use Role.WORKER or Role.SERVER"
    )
