"""Role makers for processes that `mpirun` started."""

import functools
from dataclasses import dataclass

from typing_extensions import override

from fleetx.roles.addresses import host_address, join_endpoint, open_port, port_of
from fleetx.roles.environment import Environment
from fleetx.roles.launched import LaunchedRoleMaker
from fleetx.roles.role import Identity, Role, RoleMaker


@dataclass(frozen=True, kw_only=True)
class MPIWorld:
    """What the ranks told each other: one machine name and one free endpoint per rank."""

    rank: int
    machines: tuple[str, ...]
    endpoints: tuple[str, ...]


@functools.cache
def mpi_world() -> MPIWorld:
    """Meet all ranks through mpi4py, once per process: a second answer would have new ports."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ValueError(
            f"the workers were started by mpirun, but mpi4py cannot be used ({error}); "
            "pip install 'fleetx[mpi]', or set MASTER_ADDR and MASTER_PORT to the machine of "
            "rank 0 and a port that is free there"
        ) from error
    comm = MPI.COMM_WORLD
    machines = tuple(comm.allgather(MPI.Get_processor_name()))
    host = "127.0.0.1" if len(set(machines)) == 1 else host_address()
    # Every rank holds its port until all have one; two ranks of a machine never get the same.
    with open_port() as holder:
        endpoints = tuple(comm.allgather(join_endpoint(host, port_of(holder))))
    return MPIWorld(rank=comm.Get_rank(), machines=machines, endpoints=endpoints)


class MPIWorkers(LaunchedRoleMaker):
    """Every rank of `mpirun` is a worker of a collective job."""

    @staticmethod
    @override
    def found_in(env: Environment) -> bool:
        # srun may speak PMI too, and then SLURM knows better; mpirun's own proxies set the third.
        pmi = env.any("PMI_RANK", "PMI_SIZE")
        by_mpirun = env.has("MPI_LOCALRANKID") or not env.has("SLURM_PROCID")
        return env.any("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE") or (pmi and by_mpirun)

    @override
    def workers(self) -> Identity:
        rank, size = _rank(self.env)
        self.env.agrees("WORLD_SIZE", size, "the number of MPI ranks")
        place, endpoints = self._meeting_place(size)
        return Identity(
            source=_source(self.env),
            is_collective=True,
            index=rank,
            worker_num=size,
            worker_endpoints=endpoints,
            local_rank=self.env.first_number(
                "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", default=0
            ),
            local_size=self.env.first_number(
                "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", default=0
            ),
            device_index=self.env.device(),
            rendezvous=place,
        )

    def _meeting_place(self, size: int) -> tuple[str, tuple[str, ...]]:
        place = self.env.master()
        if place or size == 1:
            return place, ()
        world = mpi_world()
        if len(world.endpoints) != size:
            raise ValueError(
                f"mpirun started {size} ranks, but mpi4py sees {len(world.endpoints)}: it was "
                "built for another MPI; reinstall mpi4py for this one, or set MASTER_ADDR and "
                "MASTER_PORT"
            )
        return world.endpoints[0], world.endpoints


class MPISymetricRoleMaker(RoleMaker):
    """Servers and workers in pairs: even ranks of `mpirun` serve, odd ranks train."""

    @override
    def identity(self) -> Identity:
        return pair_up(mpi_world())


def pair_up(world: MPIWorld) -> Identity:
    """Split the ranks into servers and workers."""
    size = len(world.endpoints)
    if size % 2:
        raise ValueError(
            f"MPISymetricRoleMaker makes pairs of a server and a worker, which {size} ranks cannot "
            f"form; start the script with mpirun -n {size + 1}"
        )
    role = Role.WORKER if world.rank % 2 else Role.SERVER
    of_role = world.machines[world.rank % 2 :: 2]
    index = world.rank // 2
    workers = world.endpoints[1::2]
    return Identity(
        source="MPI, a server and a worker in turn",
        is_collective=False,
        role=role,
        index=index,
        worker_num=size // 2,
        worker_endpoints=workers,
        server_endpoints=world.endpoints[::2],
        local_rank=of_role[:index].count(of_role[index]),
        local_size=of_role.count(of_role[index]),
        node_num=len(set(world.machines)),
        rendezvous=workers[0],
    )


def _rank(env: Environment) -> tuple[int, int]:
    if env.any("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"):
        return env.rank("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    return env.rank("PMI_RANK", "PMI_SIZE")


def _source(env: Environment) -> str:
    return "OpenMPI" if env.has("OMPI_COMM_WORLD_SIZE") else "MPI"


def started_several(env: Environment) -> bool:
    """Whether mpirun started more than one rank."""
    return MPIWorkers.found_in(env) and _rank(env)[1] > 1
