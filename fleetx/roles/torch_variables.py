"""Role makers for torch's own variables: torchrun, Kubeflow's PyTorchJob, or set by hand."""

from typing_extensions import override

from fleetx.roles.environment import Environment
from fleetx.roles.launched import LaunchedRoleMaker
from fleetx.roles.role import Identity


class TorchVariables(LaunchedRoleMaker):
    """RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, whoever set them."""

    source = "RANK and WORLD_SIZE"

    @staticmethod
    @override
    def found_in(env: Environment) -> bool:
        return env.has("RANK")

    @override
    def workers(self) -> Identity:
        rank, size = self.env.rank("RANK", "WORLD_SIZE")
        if size > 1:
            self.env.need("MASTER_ADDR", f"WORLD_SIZE={size} workers must meet somewhere")
        local_size = self.env.number("LOCAL_WORLD_SIZE", 0)
        if local_size:
            self.env.rank("LOCAL_RANK", "LOCAL_WORLD_SIZE")
        return Identity(
            source=self.source,
            is_collective=True,
            index=rank,
            worker_num=size,
            local_rank=self.env.number("LOCAL_RANK", 0),
            local_size=local_size,
            node_num=self.env.number("GROUP_WORLD_SIZE", 0),
            device_index=self.env.device(),
            rendezvous=self._rendezvous(),
        )

    def _rendezvous(self) -> str:
        # Only an elastic agent may already hold the store, and only torch's "env" looks for it.
        return "env" if self.env.has("TORCHELASTIC_RUN_ID") else self.env.master()


class Torchrun(TorchVariables):
    """Started by `torchrun` or `python -m torch.distributed.run`."""

    source = "torchrun"

    @staticmethod
    @override
    def found_in(env: Environment) -> bool:
        return env.has("TORCHELASTIC_RUN_ID") and env.any("RANK", "WORLD_SIZE")


class HalfSetTorchVariables(TorchVariables):
    """WORLD_SIZE without RANK, and no scheduler that knows the rank: always a complaint."""

    @staticmethod
    @override
    def found_in(env: Environment) -> bool:
        return env.has("WORLD_SIZE") and env.text("WORLD_SIZE") != "1"


class PyTorchJob(TorchVariables):
    """A pod of Kubeflow's PyTorchJob, which sets torch's variables."""

    source = "Kubernetes PyTorchJob"

    @staticmethod
    @override
    def found_in(env: Environment) -> bool:
        return env.has("KUBERNETES_SERVICE_HOST", "RANK")
