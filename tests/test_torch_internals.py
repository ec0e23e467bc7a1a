"""Private names of torch stand in one folder, and each still means what fleetx takes it for."""

import ast
import importlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import fx, nn
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from fleetx import torch_internals as internals
from fleetx.testing import world

HOME = Path(internals.__file__).parent
PACKAGE = HOME.parent
OF_TORCH = {"torch", "nn", "F", "dist"}
OF_OBJECTS = {
    *("_parameters", "_buffers", "_modules", "_version", "_is_view", "_is_param", "_base"),
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_post_accumulate_grad_hooks", "_flat_weights", "_check_input_dim", "_get_fsdp_state"),
    *(
        "_check_reducer_finalized",
        "_get_ddp_logging_data",
        "_module_info",
        "_unsharded_param",
        "_local_tensor",
        "_new_shared",
        "_values",
    ),
}
"""Attributes of torch's objects that would be missed by looking at imports."""


def private(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in names if name.startswith("torch.") and "._" in name)
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from (name for name in names if name.startswith("torch.") and "._" in name)
        elif isinstance(node, ast.Attribute) and is_private(node.attr, ast.unparse(node.value)):
            yield ast.unparse(node)


def is_private(name: str, owner: str) -> bool:
    if not name.startswith("_") or name.startswith("__") or owner in {"self", "super()"}:
        return False
    return owner.split(".", maxsplit=1)[0] in OF_TORCH or name in OF_OBJECTS


def test_private_names_of_torch_stand_in_one_folder() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if path.parent != HOME]
    found = {str(path.relative_to(PACKAGE)): sorted(set(private(path))) for path in files}
    assert {name: names for name, names in found.items() if names} == {}


def test_every_file_of_the_folder_is_imported_from_its_door() -> None:
    files = [
        importlib.import_module(f"{internals.__name__}.{each.stem}")
        for each in HOME.glob("[!_]*.py")
    ]
    listed = [name for file in files for name in file.__all__]
    assert len(set(listed)) == len(listed), "no name stands in two files"
    for file in files:
        assert all(getattr(internals, name) is getattr(file, name) for name in file.__all__)


def test_nothing_else_is_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tree_mop'"):
        internals.tree_mop  # noqa: B018


def test_what_subclasses_override_is_there() -> None:
    from torch.distributed.pipelining import PipelineStage
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    owners = {
        "torch.nn.Module": nn.Module,
        "torch.distributed.pipelining.PipelineStage": PipelineStage,
        "torch.fx.experimental.symbolic_shapes.ShapeEnv": ShapeEnv,
    }
    for full in internals.OVERRIDDEN:
        owner, _, name = full.rpartition(".")
        assert callable(getattr(owners[owner], name))


def test_dictionaries_of_a_module_are_live() -> None:
    module = nn.Sequential(nn.BatchNorm1d(3))
    layer = internals.children_of(module)["0"]
    assert layer is module[0]
    internals.parameters_of(layer)["weight"] = nn.Parameter(torch.full((3,), 7.0))
    internals.buffers_of(layer)["running_mean"] = torch.full((3,), 5.0)
    state = module.state_dict()
    assert (float(state["0.weight"][0]), float(state["0.running_mean"][0])) == (7.0, 5.0)


def test_modules_share_what_others_hold() -> None:
    module, twin = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    module.register_buffer("hidden", torch.zeros(1), persistent=False)
    internals.use_tensors(twin, module)
    internals.share_persistence(twin, module)
    internals.use_children(twin, {"below": nn.Linear(1, 1)})
    assert twin.weight is module.weight
    assert "hidden" not in twin.state_dict()
    assert "below.weight" in twin.state_dict()
    lazy = nn.LazyLinear(2)
    internals.infer_parameters(lazy, (torch.ones(4, 3),), {})
    assert lazy.weight.shape == (2, 3)


def test_graphs_tell_of_their_nodes() -> None:
    graph = fx.Graph()
    first = graph.placeholder("x")
    with graph.inserting_before(internals.graph_root(graph).next):
        assert next(iter(graph.nodes)) is first
        before = graph.placeholder("before")
    assert next(iter(graph.nodes)) is before
    assert not internals.is_erased(before)
    graph.erase_node(before)
    assert internals.is_erased(before)
    assert isinstance(torch.ops.aten.add.Tensor, internals.OpOverload)


def test_switches_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    # An earlier test may have multiplied what oneDNN cannot here, after which torch leaves it off.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    internals.set_grad_enabled(False)
    assert not torch.is_grad_enabled()
    internals.set_grad_enabled(True)
    assert torch.is_grad_enabled()
    with internals.as_if_compiling():
        assert torch.compiler.is_compiling()
        assert torch.compiler.is_exporting()
    assert not torch.compiler.is_compiling()
    with internals.without_mkldnn():
        assert not torch._C._get_mkldnn_enabled()
    assert torch._C._get_mkldnn_enabled()
    first, second = internals.without_mkldnn(), internals.without_mkldnn()  # of two threads
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not torch._C._get_mkldnn_enabled()
    second.__exit__(None, None, None)
    assert torch._C._get_mkldnn_enabled()
    token = internals.enter_autocast("cpu", torch.bfloat16, True, True)
    assert torch.is_autocast_enabled("cpu")
    internals.exit_autocast(token)
    assert not torch.is_autocast_enabled("cpu")


def test_functions_of_torch_come_down_to_one_that_can_be_replaced() -> None:
    calls: list[str] = []

    def counted(name: str, function: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return function(*args, **kwargs)

        return run

    internals.replace_functional_call(counted("functional", internals.functional_call))
    internals.replace_checkpoint_generator(counted("checkpoint", internals.checkpoint_generator))
    try:
        layer = nn.Linear(2, 2)
        torch.func.functional_call(layer, {"bias": torch.zeros(2)}, (torch.ones(1, 2),))
        checkpoint(layer, torch.ones(1, 2, requires_grad=True), use_reentrant=False)
    finally:
        internals.replace_functional_call(internals.functional_call)
        internals.replace_checkpoint_generator(internals.checkpoint_generator)
    assert calls == ["functional", "checkpoint"]
    assert not internals.compiler_works()
    assert not internals.is_transformed()
    assert torch.func.vmap(lambda x: x * internals.is_transformed())(torch.ones(2)).all()


def test_fake_tensors_have_sizes_and_no_memory() -> None:
    with internals.FakeTensorMode() as mode, internals.enable_python_dispatcher():
        fake = torch.ones(3) + 1
    assert isinstance(fake, internals.FakeTensor)
    assert internals.storage_number(fake) == internals.storage_number(fake[1:])
    assert internals.storage_number(fake) != internals.storage_number(
        mode.from_tensor(torch.ones(3))
    )
    assert callable(internals.decompositions().one_layer_lstm)
    with pytest.raises(internals.DataDependentOutputException):
        fake.sum().item()
    with internals.FakeTensorMode(), pytest.raises(internals.DynamicOutputShapeException):
        torch.ones(3).nonzero()
    with internals.without_torch_function():
        assert torch.ones(2).sum() == 2


def test_operators_are_told_apart() -> None:
    assert internals.is_mutable(torch.ops.aten.add_.Tensor)
    assert not internals.is_mutable(torch.ops.aten.add.Tensor)
    seen: list[object] = []

    class Seen(internals.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func.overloadpacket)
            return func(*args, **(kwargs or {}))

    words = torch.ones(1, 2, 4, 8)
    with Seen():  # type: ignore[no-untyped-call]
        torch.nn.functional.scaled_dot_product_attention(words, words, words)
    assert internals.attention_on_cpu() in seen


def test_free_sizes_are_expressions() -> None:
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    env, source = ShapeEnv(), internals.ConstantSource("x_0")
    symbol = env.create_symbol(17, source, DimDynamic.DYNAMIC, constraint_dim=None)
    size = env.create_symintnode(symbol, hint=17, source=source)
    assert isinstance(size, torch.SymInt)
    assert internals.symbolic_expression(size * 2) == 2 * symbol
    found = internals.sympy_interp(internals.PythonReferenceAnalysis, {symbol: 5}, 2 * symbol)
    assert found == 10


def test_hooks_are_seen() -> None:
    layer, weight = nn.Linear(2, 2), nn.Parameter(torch.ones(2))
    assert not internals.has_forward_hooks(layer)
    assert not internals.has_backward_hooks(layer)
    assert not internals.has_gradient_hooks(weight)
    assert internals.hooks_of(weight) == ([], [])
    layer.register_forward_pre_hook(lambda *_: None)
    layer.register_full_backward_hook(lambda *_: None)
    weight.register_post_accumulate_grad_hook(lambda _: None)
    assert internals.has_forward_hooks(layer)
    assert internals.has_backward_hooks(layer)
    assert len(internals.before_forward(layer)) == 1
    assert internals.has_gradient_hooks(weight)
    weight.register_hook(torch.neg)
    assert internals.hooks_of(weight)[0] == [torch.neg]
    assert len(internals.hooks_of(weight)[1]) == 1


def test_a_hook_knows_its_backward_and_the_end_of_it() -> None:
    seen: list[Any] = []

    def reach(leaf: torch.Tensor) -> None:
        seen.append(internals.current_backward())
        internals.after_backward(lambda: seen.append("end"))

    leaves = [torch.ones(2, requires_grad=True) for _ in range(2)]
    for leaf in leaves:
        leaf.register_post_accumulate_grad_hook(reach)
    for _ in range(2):
        (leaves[0] * leaves[1]).sum().backward()
    first, _, _, _, second, *_ = seen
    assert first != second
    assert seen == [first, first, "end", "end", second, second, "end", "end"]


def test_tensors_tell_of_writes_views_and_values() -> None:
    tensor = torch.zeros(4)
    before = internals.version_of(tensor)
    tensor.add_(1)
    assert internals.version_of(tensor) == before + 1
    assert internals.is_view(tensor[:2])
    assert not internals.is_view(tensor)
    assert internals.viewed(tensor[:2][:1]) is tensor
    assert internals.viewed(tensor) is None
    sparse = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([2.0, 3.0]), (4,))
    assert internals.values_of(sparse).tolist() == [2.0, 3.0]
    leaf = torch.zeros(4, requires_grad=True)
    shaped = internals.unsafe_view(leaf, (2, 2))
    shaped.add_(1)  # torch would refuse it on a view of a leaf
    assert shaped.shape == (2, 2)
    assert not internals.is_view(internals.unsafe_view(tensor, (2, 2)))
    assert internals.shared_storage(16).is_shared()
    internals.mark_parameter(tensor)
    assert isinstance(tensor, nn.Parameter)


def test_layers() -> None:
    assert issubclass(nn.BatchNorm2d, internals.BatchNormBase)
    assert issubclass(nn.BatchNorm2d, internals.NormBase)
    assert issubclass(nn.InstanceNorm1d, internals.InstanceNormBase)
    assert issubclass(nn.Conv3d, internals.ConvBase)
    assert issubclass(nn.Dropout2d, internals.DropoutBase)
    with pytest.raises(ValueError, match="expected 4D"):
        internals.check_input_dim(nn.BatchNorm2d(3), torch.zeros(2, 3))
    recurrent, weight = nn.LSTM(2, 2), nn.Parameter(torch.zeros(8, 2))
    internals.put_flat_weight(recurrent, "weight_ih_l0", weight)
    assert recurrent.all_weights[0][0] is not weight  # until it is a parameter, too
    internals.parameters_of(recurrent)["weight_ih_l0"] = weight
    assert recurrent.all_weights[0][0] is weight


def test_lists_of_tensors_are_computed_as_one_by_one() -> None:
    def pair() -> list[torch.Tensor]:
        return [torch.tensor([1.0, -4.0]), torch.tensor([9.0])]

    other = [torch.tensor([2.0, 2.0]), torch.tensor([3.0])]
    cases: list[tuple[Any, Any, Any]] = [
        (internals.foreach_add, (other,), lambda x, y: x + y),
        (internals.foreach_add_, (other,), lambda x, y: x + y),
        (internals.foreach_sub_, (other,), lambda x, y: x - y),
        (internals.foreach_mul, (other,), lambda x, y: x * y),
        (internals.foreach_mul_, (other,), lambda x, y: x * y),
        (internals.foreach_div, (other,), lambda x, y: x / y),
        (internals.foreach_div_, (other,), lambda x, y: x / y),
        (internals.foreach_lerp_, (other, 0.25), lambda x, y: torch.lerp(x, y, 0.25)),
        (internals.foreach_addcmul_, (other, other), lambda x, y: x + y * y),
        (internals.foreach_clamp_min_, (0.0,), lambda x, _: x.clamp_min(0)),
        (internals.foreach_clamp_max_, (0.0,), lambda x, _: x.clamp_max(0)),
        (internals.foreach_neg, (), lambda x, _: -x),
        (internals.foreach_norm, (), lambda x, _: x.norm()),
    ]
    for operator, args, alone in cases:
        given = pair()
        found = operator(given, *args)
        found = given if found is None else found
        for ours, x, y in zip(found, pair(), other, strict=True):
            assert torch.allclose(ours, alone(x, y)), operator
    assert [float(x) for x in internals.foreach_sqrt([torch.tensor(9.0)])] == [3.0]


@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.Adam])
def test_torch_still_updates_by_the_fused_kernels(cls: Any) -> None:
    """Their arguments are those that torch passes: fleetx passes the same."""
    name = {torch.optim.SGD: "_fused_sgd_", torch.optim.Adam: "_fused_adam_"}[cls]
    called: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, name, lambda *args, **kwargs: called.append(kwargs))
        parameter = nn.Parameter(torch.ones(2))
        parameter.grad = torch.ones(2)
        optimizer: Optimizer = cls([parameter], lr=0.1, fused=True)
        optimizer.step()
    wanted = {"lr", "weight_decay", "maximize", "grad_scale", "found_inf"}
    assert wanted <= called[0].keys()


def test_gradients_are_unscaled_and_infinity_is_found() -> None:
    gradients, found = [torch.tensor([4.0]), torch.tensor([8.0])], torch.zeros(1)
    internals.unscale_and_find_inf_(gradients, found, torch.tensor([0.5]))
    assert ([float(g) for g in gradients], float(found)) == ([2.0, 4.0], 0.0)
    internals.unscale_and_find_inf_([torch.tensor([torch.inf])], found, torch.tensor([0.5]))
    assert float(found) == 1.0


def test_hooks_of_saved_tensors_are_seen() -> None:
    assert not internals.saved_tensor_hooks()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        assert internals.saved_tensor_hooks()


@world(2)
def test_groups_meshes_and_spread_parameters() -> None:
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    made = internals.groups_made()
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("a", "b"))
    assert internals.groups_made() > made
    assert dist.group.WORLD in internals.process_groups()
    assert internals.flattened(mesh["a", "b"], "both").size() == 2
    internals.seed_spread_tensors(0, mesh["b"])
    internals.forget_sharding_plans()
    model: Any = nn.Sequential(nn.Linear(4, 4))
    assert not internals.is_fsdp(model)
    fully_shard(model, mesh=mesh["b"])
    assert internals.is_fsdp(model)
    internals.begin_fsdp(model)
    records = internals.fsdp_records(model)
    owners = [internals.fsdp_owner(record) for record in records]
    assert owners == [(model[0], "weight"), (model[0], "bias")]
    F.mse_loss(model(torch.ones(2, 4)), torch.zeros(2, 4)).backward()
    assert all(record.sharded_param.grad is not None for record in records)
    whole = internals.fsdp_whole(records[0])
    assert whole is not None
    assert whole.shape == (4, 4)
    assert records[0].unsharded_accumulated_grad is None
    kept: Any = internals.fsdp_kept(records[0])
    held, number = internals.part_held(kept), internals.storage_number(kept)
    assert held is internals.part_held(kept)
    assert held.data_ptr() == kept.to_local().data_ptr()
    torch_sets: Any = torch.Tensor.data  # past what takes assigned numbers, once it is in force
    torch_sets.__set__(kept, kept.data * 2)
    assert internals.storage_number(kept) != number
    again = internals.spread_where_it_lies(held, mesh["b"], kept.placements, kept.shape)
    torch.testing.assert_close(again.full_tensor(), kept.full_tensor())
    assert internals.part_held(again) is held
    assert internals.part_held(kept) is held, "assigning moves what is around the numbers alone"
    model.unshard()
    found = model[0](torch.ones(2, 4))  # FSDP does not see what the layer alone returns
    model.reshard()
    internals.fsdp_gathers_before(model, [found])
    assert trained(records, found)
    view = model(torch.ones(1, 2, 4))
    internals.fsdp_gathers_behind(model, [view], [])
    view += 1
    assert trained(records, view)


def trained(records: list[Any], outputs: torch.Tensor) -> bool:
    before = [record.sharded_param.grad.to_local().clone() for record in records]
    outputs.sum().backward()
    after = [record.sharded_param.grad.to_local() for record in records]
    return all((new != old).any() for new, old in zip(after, before, strict=True))


def test_a_replay_that_has_all_is_ended_by_an_exception() -> None:
    ended = []

    def replayed(x: torch.Tensor) -> torch.Tensor:
        try:
            return x.sin().exp() + 1
        except internals.ReplayIsDone as error:
            ended.append(error)
            raise

    x = torch.ones(2, requires_grad=True)
    checkpoint(replayed, x, use_reentrant=False).sum().backward()
    assert len(ended) == 1


@world(2)
def test_ddp_says_when_it_waits() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.used(x)
            return found

    replica = nn.parallel.DistributedDataParallel(Half())
    replica(torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError):
        internals.check_reduced(replica)


@world(2)
def test_ddp_measures_how_long_it_waits_for_exchanges() -> None:
    replica = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    assert internals.exposed_exchange(replica) == 0
    for _ in range(5):  # in the second one they meet before, to agree on buckets
        if dist.get_rank() == 1:
            time.sleep(0.05)  # not a race: rank 0 has waited at least about that long
        replica(torch.ones(1, 2)).sum().backward()
    waited = internals.exposed_exchange(replica)
    assert 0.01 < waited < 10 if dist.get_rank() == 0 else 0 <= waited < 10


def exchanged() -> tuple[dict[str, int], list[int], list[Any]]:
    import torch.distributed as dist

    (name,) = (str(group.group_name) for group in internals.process_groups())
    before = internals.exchanges_made()[name]
    dist.all_reduce(torch.ones(3))
    dist.broadcast(torch.ones(5), 0)
    made = {"exchanges": internals.exchanges_made()[name] - before}
    for _ in range(1000):
        # A thread of torch writes that an exchange is over, a little later than it is.
        mine = [c for c in internals.last_collectives() if c["process_group"][0] == name]
        if all(entry["retired"] for entry in mine[-2:]):
            break
        time.sleep(0.01)
    last = mine[-2:]
    names = ("profiling_name", "input_sizes", "retired")
    told = [[entry[key] for key in names] for entry in last]
    numbers = [entry["collective_seq_id"] for entry in last]
    return made | {"apart": numbers[1] - numbers[0]}, internals.group_members()[name][1], told


def test_torch_counts_and_records_exchanges() -> None:
    for made, ranks, told in world(2).run(in_a_group):
        assert made == {"exchanges": 2, "apart": 1}
        assert ranks == [0, 1]
        assert told == [["gloo:all_reduce", [[3]], True], ["gloo:broadcast", [[5]], True]]


def in_a_group() -> tuple[dict[str, int], list[int], list[Any]]:
    import fleetx as fleet

    fleet.init(is_collective=True)
    return exchanged()


def test_what_is_without_numbers_gets_memory_and_stays_tied() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))
        model[1].weight = model[0].weight
    model.register_buffer("here", torch.ones(1))
    before = list(model.parameters())
    internals.moved_or_empty(model, torch.device("cpu"))
    assert all(now is then for now, then in zip(model.parameters(), before, strict=True))
    assert model[1].weight is model[0].weight
    assert not any(t.is_meta for t in (*model.parameters(), *model.buffers()))
    assert model.get_buffer("here").tolist() == [1.0]


def test_operators_say_what_they_write_to() -> None:
    first, second = torch.ones(1), torch.ones(1)
    assert list(internals.written(torch.ops.aten.copy_.default, (first, second))) == [first]
    assert list(internals.written(torch.ops.aten.add.Tensor, (first, second))) == []


def test_a_flag_that_is_not_set_is_noticed() -> None:
    internals.assert_soon(torch.tensor(True), "all is well")
    with pytest.raises(RuntimeError, match="these words"):
        internals.assert_soon(torch.tensor(False), "these words")


def test_a_machine_that_parts_leaves_its_place_to_another() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]  # public, but not marked so
    parameters = RendezvousParameters("c10d", "", "job", 1, 1, last_call_timeout=1, join_timeout=20)
    first, second = (
        create_handler(store, C10dRendezvousBackend(store, "job"), parameters) for _ in range(2)
    )
    first.next_rendezvous()
    internals.part_from_meeting(first)
    assert second.next_rendezvous().world_size == 1, "it would wait for a free place"
    assert not second.is_closed()
    internals.part_from_meeting(second)


@pytest.mark.skipif(torch.__version__ < "2.13", reason="older torch runs a backward in one piece")
def test_the_second_half_of_a_backward_goes_through_nodes_that_groups_share() -> None:
    from torch.distributed.pipelining._backward import stage_backward_input

    def ran() -> tuple[torch.Tensor, list[nn.Parameter], torch.Tensor]:
        torch.manual_seed(0)
        table, first, second = (nn.Parameter(torch.randn(4, 4)) for _ in range(3))
        received = torch.randn(2, 4, requires_grad=True)
        bias = table.square().sin()[:2]  # which two layers read, as the bias for places of a T5
        return ((received @ first * bias) @ second * bias).sum(), [table, first, second], received

    loss, weights, received = ran()
    loss.backward()
    expected = [parameter.grad for parameter in weights]
    loss, weights, received = ran()
    _, groups = stage_backward_input([loss], None, [received], iter(weights))
    internals.backward_of_weights(weights, groups, keep=True)
    assert internals.weights_share_nodes(weights, groups)
    torch.testing.assert_close([parameter.grad for parameter in weights], expected)


@pytest.mark.skipif(torch.__version__ < "2.13", reason="older torch runs a backward in one piece")
def test_weights_of_a_chain_share_no_nodes() -> None:
    from torch.distributed.pipelining._backward import stage_backward_input

    chain = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    received, weights = torch.randn(2, 4, requires_grad=True), [*chain.parameters()]
    _, groups = stage_backward_input([chain(received).sum()], None, [received], iter(weights))
    internals.backward_of_weights(weights, groups, keep=True)
    gradients = [weight.grad for weight in weights]
    assert not internals.weights_share_nodes(weights, groups)
    assert all(weight.grad is before for weight, before in zip(weights, gradients, strict=True))


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_matrices_are_multiplied_with_their_scales(kind: torch.dtype, by_row: bool) -> None:
    first, second = (torch.randint(-4, 5, (32, 16)).float() for _ in range(2))
    of_first = torch.rand(32, 1) + 1 if by_row else torch.tensor(2.0)
    of_second = torch.rand(1, 32) + 1 if by_row else torch.tensor(0.5)
    found = internals.scaled_mm(
        first.to(kind),
        second.to(torch.float8_e4m3fn).t(),
        scale_a=of_first,
        scale_b=of_second,
        out_dtype=torch.float32,
        use_fast_accum=True,
    )
    torch.testing.assert_close(found, first @ second.t() * of_first * of_second)
