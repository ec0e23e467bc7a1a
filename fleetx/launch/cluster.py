"""Who runs where: the job as the launcher of one machine knows it, before anything starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fleetx.roles.addresses import join_endpoint

Role = Literal["TRAINER", "PSERVER"]


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process of this machine."""

    role: Role
    rank: int
    """Position among all processes of its role."""
    local_rank: int
    """Position among the processes of its role on this machine."""
    endpoint: str

    @property
    def log_name(self) -> str:
        """File name of its log; by global rank, so that machines may share a folder."""
        return f"{'workerlog' if self.role == 'TRAINER' else 'serverlog'}.{self.rank}"

    @property
    def title(self) -> str:
        """How it is called in messages."""
        return f"rank {self.rank}" if self.role == "TRAINER" else f"server {self.rank}"


@dataclass(frozen=True, kw_only=True)
class World:
    """All processes of all machines, complete once the machines have met."""

    workers: tuple[str, ...]
    servers: tuple[str, ...] = ()
    local: tuple[Process, ...]
    node_rank: int = 0
    nnodes: int = 1

    @property
    def local_workers(self) -> int:
        """Number of workers on this machine."""
        return sum(process.role == "TRAINER" for process in self.local)


@dataclass(frozen=True, kw_only=True)
class Job:
    """This machine's view of the job."""

    host: str
    """Address under which the other machines know this one."""
    endpoints: tuple[str, ...]
    """Endpoints of this machine's workers."""
    world: World | None
    """Everything, where it is known before the machines meet; else None."""
    cards: tuple[str, ...] = ()
    """Cards of this machine in the spelling of CUDA_VISIBLE_DEVICES; none on CPU."""
    hide_cards: bool = False
    """True when the user wants no card, even where there are some."""
    master: tuple[str, int] | None = None
    """Where the launchers meet; None for a job of one machine."""
    master_flag: str = "--master"
    """The flag that moves the meeting point, for messages."""
    node_rank: int | None = 0
    """Place of this machine; None when it is decided at the rendezvous."""
    min_nodes: int = 1
    max_nodes: int = 1
    metrics_port: int | None = None
    """Where the first server of this machine serves its figures; the others have the next ports."""

    @property
    def size(self) -> int:
        """Number of processes on this machine."""
        return len(self.world.local) if self.world else len(self.endpoints)

    @property
    def is_parameter_server(self) -> bool:
        """True when the job has servers."""
        return self.world is not None and bool(self.world.servers)

    def view(self) -> dict[str, list[str]]:
        """All processes by role, as far as flags told them; machines of one job must agree."""
        if self.world is None:
            return {}
        return {"workers": list(self.world.workers), "servers": list(self.world.servers)}

    @property
    def flags_of_view(self) -> str:
        """Which flags that view comes from, for messages."""
        if self.is_parameter_server:
            return "--servers, --workers"
        return "--ips, --started_port, --nproc_per_node, --gpus"

    def meet(self, tables: Sequence[Sequence[str]], node_rank: int) -> World:
        """The world that the machines form, given each one's worker endpoints in rank order."""
        return self.world or collective_world(tables, node_rank)


def collective_world(tables: Sequence[Sequence[str]], node_rank: int) -> World:
    """Numbers the workers of all machines in order."""
    before = sum(len(table) for table in tables[:node_rank])
    local = tuple(
        Process(role="TRAINER", rank=before + index, local_rank=index, endpoint=endpoint)
        for index, endpoint in enumerate(tables[node_rank])
    )
    return World(
        workers=tuple(endpoint for table in tables for endpoint in table),
        local=local,
        node_rank=node_rank,
        nnodes=len(tables),
    )


def consecutive(host: str, port: int, number: int) -> tuple[str, ...]:
    """Endpoints of one host on consecutive ports."""
    return tuple(join_endpoint(host, port + index) for index in range(number))
