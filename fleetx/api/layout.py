"""Questions about the layout of a job: whose data, whole weights and back."""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.distributed import ProcessGroup

from fleetx import roles
from fleetx.api import session
from fleetx.api.weights import load_whole_state, whole_state
from fleetx.engine.engine import Engine
from fleetx.expected import MAPPING, takes
from fleetx.plan.error import PlanError
from fleetx.plan.mesh import data_place
from fleetx.roles import subgroups


def data_index() -> int:
    """Which share of the data this worker works on; workers of one pipeline have the same."""
    session.current("data_index")
    return data_place(session.plan().mesh, roles.worker_index())[0]


def data_num() -> int:
    """How many shares the data is dealt into: the axes dp and sharding."""
    session.current("data_num")
    return session.sharers(session.plan())


def data_group() -> ProcessGroup | None:
    """The workers that share the data, where some of them see the same samples; None elsewhere.

    Ranks of one pipeline, and of one tensor-parallel group, see the same samples.
    """
    if not session.begun() or not roles.identity().is_collective:
        return None
    here, plan = session.current("distributed_loader"), session.plan()
    here.dealt = session.sharers(plan)
    if plan.mesh["pp"] * plan.mesh["tp"] == 1:
        return None
    return subgroups.data_group(session.mesh(plan))


def full_state_dict(model: nn.Module, *, everywhere: bool = False) -> dict[str, Tensor]:
    """Every parameter and buffer of a distributed model, complete and on the host.

    The names are those of the plain model, whatever the layout. All workers must call it; worker 0
    gets the state and can save it, the others an empty dict.

    Args:
        model: what ``distributed_model`` returned.
        everywhere: every worker gets the state.
    """
    return whole_state(_engine_of(model, "full_state_dict"), everywhere=everywhere)


@takes("fleet.load_full_state_dict", state=MAPPING.such_as("a dict of tensors by name"))
def load_full_state_dict(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give a distributed model the weights of the plain one; each worker keeps its part.

    Args:
        model: what ``distributed_model`` returned.
        state: that of the plain model, or what ``full_state_dict`` returned, on all workers.
    """
    load_whole_state(_engine_of(model, "load_full_state_dict"), state)


def _engine_of(model: nn.Module, call: str) -> Engine:
    for engine in session.current(call).engines:
        if engine.job.model is model:
            return engine
    raise PlanError(
        f"fleet.{call}() got a module that is not distributed; pass what "
        "fleet.distributed_model() returned."
    )
