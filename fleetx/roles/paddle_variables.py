"""Role maker for PaddleCloud's variables, which fleetrun sets as well."""

from typing_extensions import override

from fleetx.roles.addresses import hosts_of, join_endpoint
from fleetx.roles.environment import Environment
from fleetx.roles.launched import LaunchedRoleMaker
from fleetx.roles.role import Identity, Role

_ROLES = {"TRAINER": Role.WORKER, "PSERVER": Role.SERVER}
_REFUSED = ("HETER_TRAINER", "COORDINATOR")
_SERVERS = "PADDLE_PSERVERS_IP_PORT_LIST"
_WORKERS = "PADDLE_TRAINER_ENDPOINTS"


class PaddleVariables(LaunchedRoleMaker):
    """PADDLE_TRAINER_ID and its relatives, for collective and parameter-server jobs."""

    source = "PaddleCloud"
    agent_may_hold_store = False

    @staticmethod
    @override
    def found_in(env: Environment) -> bool:
        # TRAINING_ROLE=TRAINER alone says nothing; a server must not take itself for a worker.
        names = (_WORKERS, _SERVERS, "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM")
        return env.any(*names) or env.text("TRAINING_ROLE") == "PSERVER"

    @override
    def identity(self) -> Identity:
        has_servers = self.env.has(_SERVERS) or self._role() is Role.SERVER
        if has_servers and self.is_collective:
            raise ValueError(
                f"is_collective=True asks for workers only, but {self.source} started parameter "
                f"servers ({_SERVERS}={self.env.text(_SERVERS)}); call "
                "fleet.init(is_collective=False), or start the job without servers"
            )
        return self._with_servers() if has_servers else super().identity()

    def _role(self) -> Role:
        name = self.env.text("TRAINING_ROLE") or self.env.text("PADDLE_TRAINING_ROLE", "TRAINER")
        if name not in _ROLES:
            why = "is not supported here" if name in _REFUSED else "is no role"
            raise ValueError(f"TRAINING_ROLE={name!r} {why}; set it to TRAINER or PSERVER")
        return _ROLES[name]

    @override
    def workers(self) -> Identity:
        endpoints = self.env.endpoints(_WORKERS)
        size = self.env.number("PADDLE_TRAINERS_NUM", len(endpoints) or 1)
        rank = self._trainer(size, endpoints)
        local_rank, local_size, node_num = self._locality(rank, endpoints)
        return Identity(
            source=self.source,
            is_collective=True,
            index=rank,
            worker_num=size,
            worker_endpoints=endpoints,
            local_rank=local_rank,
            local_size=local_size,
            node_num=node_num,
            device_index=self.env.device(),
            local_device_ids=self._devices(),
            rendezvous=self._meeting_place(size, endpoints),
        )

    def _trainer(self, size: int, endpoints: tuple[str, ...]) -> int:
        """The worker's index, checked against everything else that speaks of it."""
        if endpoints and size != len(endpoints):
            raise ValueError(
                f"PADDLE_TRAINERS_NUM={size} contradicts the {len(endpoints)} endpoints of "
                f"{_WORKERS}; make them equal, or unset PADDLE_TRAINERS_NUM"
            )
        rank = self.env.number(
            "PADDLE_TRAINER_ID", 0 if size == 1 else None, why=f"there are {size} workers"
        )
        if rank >= size:
            raise ValueError(
                f"PADDLE_TRAINER_ID={rank} does not fit {size} workers; "
                f"set it to a number from 0 to {max(size - 1, 0)}"
            )
        own = self.env.text("PADDLE_CURRENT_ENDPOINT")
        if own and endpoints and endpoints[rank] != own:
            raise ValueError(
                f"PADDLE_CURRENT_ENDPOINT={own} is not entry {rank} (PADDLE_TRAINER_ID) of "
                f"{_WORKERS}={','.join(endpoints)}; make the three agree"
            )
        return rank

    def _locality(self, rank: int, endpoints: tuple[str, ...]) -> tuple[int, int, int]:
        """Local rank, workers on this machine and number of machines; 0 where unknown."""
        hosts = hosts_of(endpoints)
        here = [i for i, host in enumerate(hosts) if host == hosts[rank]]
        counted = here.index(rank) if here else 0
        local_rank = self.env.first_number(
            "PADDLE_RANK_IN_NODE", "PADDLE_LOCAL_RANK", "LOCAL_RANK", default=counted
        )
        local_size = self.env.first_number(
            "LOCAL_WORLD_SIZE", "PADDLE_LOCAL_SIZE", default=len(here)
        )
        nodes = self.env.first_number(
            "GROUP_WORLD_SIZE", "PADDLE_NNODES", default=len(dict.fromkeys(hosts))
        )
        return local_rank, local_size, nodes

    def _meeting_place(self, size: int, endpoints: tuple[str, ...]) -> str:
        torch_ready = self.env.has("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        if torch_ready and self.agent_may_hold_store:
            self.env.agrees("WORLD_SIZE", size, "PADDLE_TRAINERS_NUM")
            return "env"
        place = self.env.master() or (endpoints[0] if endpoints else self.env.text("PADDLE_MASTER"))
        if not place and size > 1 and self.is_collective:
            raise ValueError(
                f"PADDLE_TRAINERS_NUM={size} workers must meet somewhere, but {_WORKERS} is not "
                "set; set it to the host:port of every worker, or set MASTER_ADDR and MASTER_PORT"
            )
        return place

    def _with_servers(self) -> Identity:
        """The identity in a parameter-server job."""
        why = "this is a parameter-server job"
        self.env.need("TRAINING_ROLE", why)
        self.env.need(_SERVERS, why)
        size = self.env.number("PADDLE_TRAINERS_NUM", why=why)
        workers, role = self.env.endpoints(_WORKERS), self._role()
        index = self._server() if role is Role.SERVER else self._worker(size, workers)
        return Identity(
            source=self.source,
            is_collective=False,
            role=role,
            index=index,
            worker_num=size,
            worker_endpoints=workers,
            server_endpoints=self.env.endpoints(_SERVERS),
            device_index=self.env.device() if role is Role.WORKER else None,
            local_device_ids=self._devices() if role is Role.WORKER else (),
            rendezvous=self._place_beside_servers(index, size, workers),
        )

    def _place_beside_servers(self, index: int, size: int, workers: tuple[str, ...]) -> str:
        ranks = (self.env.text("RANK"), self.env.text("WORLD_SIZE"))
        if self.agent_may_hold_store and ranks == (str(index), str(size)):
            return "env"
        return workers[0] if workers else self.env.master()

    def _devices(self) -> tuple[int, ...]:
        names = ("PADDLE_LOCAL_DEVICE_IDS", "FLAGS_selected_gpus")
        return next((self.env.numbers(name) for name in names if self.env.has(name)), ())

    def _worker(self, size: int, workers: tuple[str, ...]) -> int:
        self.env.need("PADDLE_TRAINER_ID", "TRAINING_ROLE is TRAINER")
        return self._trainer(size, workers)

    def _server(self) -> int:
        """A server finds its index by its own endpoint."""
        why = "TRAINING_ROLE is PSERVER"
        host = self.env.need("POD_IP", why)
        own = join_endpoint(host, self.env.number("PADDLE_PORT", why=why))
        servers = self.env.endpoints(_SERVERS)
        if own not in servers:
            raise ValueError(
                f"POD_IP and PADDLE_PORT make {own}, which is not in {_SERVERS}="
                f"{','.join(servers)}; add it there or correct the two"
            )
        return servers.index(own)


class Fleetrun(PaddleVariables):
    """Started by fleetrun, which sets torch's variables next to PaddleCloud's."""

    source = "fleetrun"
    agent_may_hold_store = True

    @staticmethod
    @override
    def found_in(env: Environment) -> bool:
        return env.text("FLEETX_LAUNCHER") == "fleetrun"
