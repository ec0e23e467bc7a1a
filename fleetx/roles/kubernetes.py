"""Role makers for pods that get an index but not torch's variables: Indexed Job and Volcano."""

from typing_extensions import override

from fleetx.roles.addresses import join_endpoint
from fleetx.roles.environment import Environment
from fleetx.roles.launched import LaunchedRoleMaker
from fleetx.roles.role import Identity

DEFAULT_PORT = 29500
"""Pods have a network of their own, so one fixed port is free in each."""


class IndexedJob(LaunchedRoleMaker):
    """A pod of a Kubernetes Job with `completionMode: Indexed`."""

    @staticmethod
    @override
    def found_in(env: Environment) -> bool:
        return env.has("JOB_COMPLETION_INDEX")

    @override
    def workers(self) -> Identity:
        if not self.env.has("WORLD_SIZE"):
            raise ValueError(
                "JOB_COMPLETION_INDEX is set, but a pod cannot see how many pods its Job has; set "
                "WORLD_SIZE, MASTER_ADDR (the first pod, <job>-0.<service>) and MASTER_PORT in the "
                "pod template, or WORLD_SIZE=1 if every pod works alone"
            )
        rank, size = self._place()
        return Identity(
            source="Kubernetes Indexed Job",
            is_collective=True,
            index=rank,
            worker_num=size,
            device_index=self.env.device(),
            rendezvous=self.env.master(),
        )

    def _place(self) -> tuple[int, int]:
        if self.env.number("WORLD_SIZE") == 1:
            return 0, 1
        rank, size = self.env.rank("JOB_COMPLETION_INDEX", "WORLD_SIZE")
        self.env.need("MASTER_ADDR", f"the {size} pods of an Indexed Job must meet somewhere")
        return rank, size


class Volcano(LaunchedRoleMaker):
    """A pod of a Volcano job with the `svc` and `env` plugins."""

    @staticmethod
    @override
    def found_in(env: Environment) -> bool:
        return env.has("VC_WORKER_HOSTS") and env.any("VC_TASK_INDEX", "VK_TASK_INDEX")

    @override
    def workers(self) -> Identity:
        if self.env.has("VC_MASTER_HOSTS"):
            raise ValueError(
                "VC_MASTER_HOSTS and VC_WORKER_HOSTS are both set, and VC_TASK_INDEX counts each "
                "task from 0; add Volcano's pytorch plugin (it sets RANK), or use one task named "
                "worker"
            )
        hosts = [host.strip() for host in self.env.text("VC_WORKER_HOSTS").split(",")]
        index = self.env.first_number("VC_TASK_INDEX", "VK_TASK_INDEX", default=0)
        if index >= len(hosts):
            raise ValueError(
                f"VC_TASK_INDEX={index} does not fit the {len(hosts)} hosts of VC_WORKER_HOSTS; "
                "make the task's replicas equal to the number of hosts"
            )
        port = self.env.number("MASTER_PORT", DEFAULT_PORT)
        return Identity(
            source="Volcano job on Kubernetes",
            is_collective=True,
            index=index,
            worker_num=len(hosts),
            device_index=self.env.device(),
            rendezvous=join_endpoint(self.env.text("MASTER_ADDR", hosts[0]), port),
        )
