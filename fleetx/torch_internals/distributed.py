"""Process groups, meshes, DDP, FSDP2, and the meetings of torch's elastic launcher."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
    from torch.distributed.tensor import DTensor, Placement

__all__ = [
    "FsdpRecord",
    "answer_numbers",
    "answer_operator",
    "backward_of_weights",
    "begin_fsdp",
    "check_reduced",
    "exchanges_made",
    "exposed_exchange",
    "flattened",
    "forget_sharding_plans",
    "fsdp_gathers_before",
    "fsdp_gathers_behind",
    "fsdp_kept",
    "fsdp_owner",
    "fsdp_records",
    "fsdp_whole",
    "group_members",
    "groups_made",
    "is_fsdp",
    "last_collectives",
    "measures",
    "part_from_meeting",
    "part_held",
    "process_groups",
    "seed_spread_tensors",
    "spread_where_it_lies",
    "weights_share_nodes",
]


def flattened(mesh: "DeviceMesh", name: str) -> "DeviceMesh":
    """All axes of a mesh as one; torch keeps it under its name, so all callers share its group."""
    return mesh._flatten(name)


def backward_of_weights(
    weights: Sequence[nn.Parameter], groups: list[dict[str, Any]], *, keep: bool
) -> None:
    """The second half of a backward of torch's pipelines, which was split.

    Args:
        weights: of the stage.
        groups: what torch has left of the first half.
        keep: whether to keep the graph, and all that it has saved. By itself torch lets go of it
            after the first group of weights, although another one may be behind the same nodes.
    """
    from torch.distributed.pipelining._backward import stage_backward_weight  # heavy

    # Copies, for torch empties them, and whoever keeps a graph may come again.
    stage_backward_weight(iter(weights), [dict(group) for group in groups], retain_graph=keep)


def weights_share_nodes(weights: Sequence[nn.Parameter], groups: list[dict[str, Any]]) -> bool:
    """Whether groups of weights are behind the same nodes of a graph that was kept.

    Such as those of a T5, whose layers all read one bias for places. Lets go of the graph.
    """
    gradients = [weight.grad for weight in weights]
    try:
        for weight in weights:
            weight.grad = None
        backward_of_weights(weights, groups, keep=False)
    except RuntimeError:  # a node was let go with an earlier group
        return True
    finally:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
    return False


def answer_numbers(answer: "Callable[[DTensor], int | float | bool | complex]") -> None:
    """Let this answer, in this process, when DTensors are asked for a number, as by ``item()``."""

    def run(operator: object, args: tuple[Any, ...], kwargs: object) -> Any:
        return answer(args[0])

    answer_operator(torch.ops.aten._local_scalar_dense.default, run, unless=lambda: False)


def answer_operator(
    operator: Any,
    answer: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any],
    unless: Callable[[], bool],
) -> None:
    """Let this answer, in this process, when an operator is called with DTensors.

    Args:
        operator: one of ``torch.ops.aten``.
        answer: is given it, its arguments and its arguments by name.
        unless: whether torch's own answer is wanted here.
    """
    from torch.distributed import tensor  # heavy, and rarely needed

    dispatcher: Any = tensor.DTensor._op_dispatcher
    answers = dispatcher._custom_op_handlers

    def run(called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not unless():
            return answer(called, args, kwargs)
        answers.pop(operator, None)
        try:
            return called(*args, **kwargs)
        finally:
            answers[operator] = run

    answers[operator] = run


def seed_spread_tensors(seed: int, mesh: "DeviceMesh") -> None:
    """Seed the numbers that DTensors draw."""
    from torch.distributed.tensor._random import manual_seed  # heavy, and rarely needed

    manual_seed(seed, mesh)


def check_reduced(replica: nn.parallel.DistributedDataParallel) -> None:
    """Raise if DDP still waits for gradients of the last backward."""
    replica._check_reducer_finalized()


def exposed_exchange(replica: nn.parallel.DistributedDataParallel) -> float:
    """Seconds for which a backward of DDP waited for exchanges after its own work.

    That of the last batch that DDP has measured: the first ten and every hundredth, on a GPU with
    events.
    """
    told = replica._get_ddp_logging_data()
    names = ("backward_comm_time", "backward_compute_comm_overlap_time")
    exchanging, meanwhile = (int(told.get(name) or 0) for name in names)
    return max(0, exchanging - meanwhile) / 1e9


def measures(forward: int) -> bool:
    """Whether DDP asks the device for times in a forward that it exchanges after, or before it.

    Args:
        forward: its number, the first one being 1. DDP measures the first ten and every hundredth,
            and reads what it measured when the next one begins.
    """
    return forward <= 11 or forward % 100 in {0, 1}


FsdpRecord: TypeAlias = Any
"""What FSDP2 knows of one parameter: ``sharded_param``, ``unsharded_accumulated_grad``, …"""


def is_fsdp(module: nn.Module) -> bool:
    """Whether FSDP2 has spread the module; asks without loading FSDP."""
    return hasattr(module, "_get_fsdp_state")


def begin_fsdp(model: Any) -> None:
    """Let FSDP know that this is the whole model, whatever part of it runs first."""
    model._get_fsdp_state()._lazy_init()


def fsdp_records(module: Any) -> list[FsdpRecord]:
    """The records of the parameters that an FSDP module spreads as one unit."""
    group = module._get_fsdp_state()._fsdp_param_group
    return [] if group is None else list(group.fsdp_params)


def fsdp_gathers_before(module: Any, outputs: list[Tensor]) -> None:
    """Let an FSDP module gather its unit as soon as one of these has a gradient."""
    module._get_fsdp_state()._register_pre_backward_hook(outputs)


def fsdp_gathers_behind(module: Any, outputs: Iterable[Tensor], given: Iterable[Tensor]) -> None:
    """The same for views that a module returned, also if they are written to afterwards.

    What autograd makes of a view that was written to forgets hooks of the view, by which FSDP
    gathers. What the view was taken of, it passes.

    Args:
        module: that returned them.
        outputs: what it returned.
        given: what it was given: FSDP hands it views of these, which come from others.
    """
    state = module._get_fsdp_state()
    before = {id(tensor._base) for tensor in given}

    def gather(gradients: tuple[Tensor | None, ...]) -> None:
        state._pre_backward(None)

    for view in outputs:
        base = view._base if view.requires_grad else None
        if base is not None and base.grad_fn is not None and id(base) not in before:
            base.grad_fn.register_prehook(gather)


def fsdp_owner(record: FsdpRecord) -> tuple[nn.Module, str]:
    """The module that has the parameter of a record, and the name there."""
    return record._module_info.module, record._module_info.param_name


def fsdp_kept(record: FsdpRecord) -> Tensor:
    """The part of the parameter of a record that this rank keeps, and the optimizer moves."""
    kept: Tensor = record.sharded_param
    return kept


def fsdp_whole(record: FsdpRecord) -> Tensor | None:
    """The whole parameter of a record; None before it was gathered for the first time."""
    return getattr(record, "_unsharded_param", None)


def part_held(spread: Any) -> Tensor:
    """The tensor of this rank inside of a DTensor: itself, and no view of it."""
    held: Tensor = spread._local_tensor
    return held


def spread_where_it_lies(
    part: Tensor, mesh: "DeviceMesh", placements: "Sequence[Placement]", shape: torch.Size
) -> "DTensor":
    """Make a DTensor of this rank's part, which stays where it is.

    The public function moves it to the device of the mesh. Autograd does not follow this one.

    Args:
        part: this rank's, a contiguous tensor.
        mesh: the ranks.
        placements: what each axis of the mesh has of it.
        shape: of the whole.
    """
    from torch.distributed.tensor import DTensor  # heavy, and rarely needed
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    whole = torch.empty(shape, dtype=part.dtype, device="meta")
    meta = TensorMeta(whole.shape, whole.stride(), whole.dtype)
    spec = DTensorSpec(mesh, tuple(placements), tensor_meta=meta)
    made: DTensor = DTensor(part, spec, requires_grad=False)
    return made


def process_groups() -> list[Any]:
    """All process groups that exist, the default one included."""
    from torch.distributed import distributed_c10d

    return list(distributed_c10d._world.pg_map)


def groups_made() -> int:
    """How many process groups this process has made; names of new ones are counted by it."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._world.group_count


def exchanges_made() -> dict[str, int]:
    """Process groups by their names -> how many exchanges this rank has begun in each."""
    return {str(g.group_name): g._get_sequence_number_for_group() for g in process_groups()}


def group_members() -> dict[str, tuple[str, list[int]]]:
    """Process groups by their names -> what torch calls them, and their ranks."""
    from torch.distributed import get_process_group_ranks

    every = process_groups()
    return {str(g.group_name): (str(g.group_desc), get_process_group_ranks(g)) for g in every}


def last_collectives() -> list[dict[str, Any]]:
    """Torch's flight record: collectives of this rank, the latest last, and if they are over.

    Each has ``process_group`` (name and description), ``collective_seq_id`` (its place in the
    group), ``profiling_name``, ``input_sizes`` and ``retired``. Exchanges of two ranks are not
    among those of gloo. Empty where ``TORCH_FR_BUFFER_SIZE=0`` switches the record off.
    """
    from torch._C import _distributed_c10d as c10d

    dump: Any = vars(c10d)["_dump_fr_trace_json"]
    return list(json.loads(dump(True, False)).get("entries", []))


def part_from_meeting(handler: "DynamicRendezvousHandler") -> None:
    """Take this machine out of a meeting that goes on: shutdown() would close it for all."""
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _RendezvousExitOp

    handler._stop_heartbeats()
    deadline = handler._get_deadline(handler.settings.timeout.close)
    handler._op_executor.run(_RendezvousExitOp(), deadline)


def forget_sharding_plans() -> None:
    """Empty DTensor's caches of sharding decisions, which hold meshes."""
    from torch.distributed.tensor import _redistribute, debug

    clear: Any = debug._clear_sharding_prop_cache
    clear()
    # Not in every release.
    getattr(_redistribute, "clear_redistribute_planner_cache", lambda: None)()
