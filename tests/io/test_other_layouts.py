"""Checkpoints of one layout under another; states of optimizers fit their own layout alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx.comm.local import local
from fleetx.io import checkpoint_weights, load_checkpoint, save_checkpoint
from fleetx.io.old_checkpoints import STATE, WEIGHTS
from fleetx.io.random_state import random_state
from fleetx.io.training_state import MARK, leaves, to_tensors
from fleetx.testing import world

LAYOUTS: dict[str, dict[str, Any]] = {
    "replicas": {},
    "local": {"localsgd": True, "localsgd_configs": {"k_steps": 3}},
    "stage1": {"sharding": True, "sharding_configs": {"stage": 1}},
    "stage2": {"sharding": True, "sharding_configs": {"stage": 2}},
    "stage3": {"sharding": True, "sharding_configs": {"stage": 3}},
    "tensors": {
        "tensor_parallel": True,
        "tensor_parallel_configs": {
            "tensor_parallel_degree": 2,
            "column": ["0"],
            "row": ["2"],
        },
    },
    "stages": {
        "pipeline": True,
        "pipeline_configs": {"split": ["2"], "accumulate_steps": 2},
        "hybrid_configs": {"pp_degree": 2},
    },
}
Saved = tuple[Path, dict[str, list[Tensor]]]
"""A folder with checkpoints of all layouts, and the weights that each worker had later on."""
SHARDED = {"stage1", "stage2", "stage3"}
"""They spread the same numbers in the same way, and differ in when they gather them."""


def begun(options: dict[str, Any], model: nn.Module | None = None, rule: Any = None) -> Any:
    strategy = fleet.DistributedStrategy()
    for name, value in options.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    torch.manual_seed(0)
    model = model or nn.Sequential(
        nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)
    )
    made: Any = fleet.distributed_model(model, criterion=F.cross_entropy)
    rule = rule or torch.optim.Adam
    return made, fleet.distributed_optimizer(rule(made.parameters(), lr=0.05))


def train(model: Any, first: int, last: int) -> Tensor:
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(8, 6, generator=generator)
        y = torch.randint(0, 4, (8,), generator=generator)
        mine = slice(fleet.data_index(), None, fleet.data_num())
        model.train_batch((x[mine], y[mine]))
    return whole(model)


def whole(model: Any) -> Tensor:
    state = fleet.full_state_dict(model, everywhere=True)
    return torch.cat([value.flatten() for value in state.values()])


def saved(name: str, folder: Path) -> Tensor:
    """Three batches, a checkpoint, and what two more lead to."""
    model, optimizer = begun(LAYOUTS[name])
    train(model, 0, 3)
    save_checkpoint(folder / name, model, optimizer, step=3)
    torch.save(optimizer.state_dict(), folder / f"{name}-{fleet.worker_index()}.pt")
    return train(model, 3, 5)


def loaded(name: str, folder: Path) -> dict[str, tuple[str, str, Tensor]]:
    """What this layout says to the checkpoints of all of them, or what two batches lead to."""
    model, optimizer = begun(LAYOUTS[name])
    found = {}
    for other in LAYOUTS:
        before = whole(model)
        try:
            load_checkpoint(folder / other, model, optimizer)
            said, after = "", train(model, 3, 5)
        except ValueError as error:
            said, after = str(error), before - whole(model)
        state = torch.load(folder / f"{other}-{fleet.worker_index()}.pt", weights_only=False)
        try:
            optimizer.load_state_dict(state)
            heard = ""
        except ValueError as error:
            heard = str(error)
        found[other] = (said, heard, after)
    return found


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("layouts")
    return folder, {name: world(2).run(saved, name, folder) for name in LAYOUTS}


@pytest.mark.parametrize("here", LAYOUTS)
def test_every_pair_of_layouts(here: str, checkpoints: Saved) -> None:
    folder, straight = checkpoints
    for rank, answers in enumerate(world(2).run(loaded, here, folder)):
        for there, (said, heard, after) in answers.items():
            same = here == there or {here, there} <= SHARDED
            if "local" in {here, there} and not same:
                assert "state of localsgd" in said, there
                assert not after.any(), f"{there} was refused, and the weights changed"
            else:
                assert not said, there
                torch.testing.assert_close(after, straight[there][rank], rtol=0, atol=1e-5)
            if same:
                assert not heard, there
            elif {here, there} == {"replicas", "local"}:
                assert "state of localsgd" in heard, there
            else:
                assert "cannot be dealt anew. Load it under the strategy that saved it" in heard


def cut_elsewhere(folder: Path) -> list[str]:
    options = {**LAYOUTS["stages"], "pipeline_configs": {"split": ["3"], "accumulate_steps": 2}}
    model, optimizer = begun(options)
    load_checkpoint(folder / "stages", model, optimizer)
    state = torch.load(folder / f"stages-{fleet.worker_index()}.pt", weights_only=False)
    return [_refused(lambda: optimizer.load_state_dict(state))]


def another_model(folder: Path) -> list[str]:
    model, optimizer = begun({}, nn.Sequential(nn.Linear(6, 4)))
    wide, moved = begun({}, nn.Sequential(*(nn.Linear(6, 6) for _ in range(5))))
    found = [_refused(lambda: load_checkpoint(folder / "stages", model, optimizer))]
    return [*found, _refused(lambda: load_checkpoint(folder / "stages", wide, moved))]


def other_rules(folder: Path) -> list[str]:
    model, optimizer = begun({}, rule=torch.optim.SGD)
    said = [_refused(lambda: load_checkpoint(folder / "replicas", model, optimizer))]
    state = torch.load(folder / "replicas-0.pt", weights_only=True)
    return [*said, _refused(lambda: optimizer.load_state_dict(state))]


def more_options(folder: Path) -> list[str]:
    model, optimizer = begun(
        {}, rule=lambda parameters, lr: torch.optim.Adam(parameters, lr=lr, amsgrad=True)
    )
    return [_refused(lambda: load_checkpoint(folder / "replicas", model, optimizer))]


def added_and_taken_away(folder: Path) -> list[str]:
    model, optimizer = begun({"amp": True, "recompute": False})
    said = [_refused(lambda: load_checkpoint(folder / "replicas", model, optimizer))]
    state = optimizer.state_dict()
    plain = {key: state[key] for key in ("state", "param_groups")}
    optimizer.load_state_dict(plain)  # of a run without fleetx: strategies begin anew
    del state["strategies"]
    return [*said, _refused(lambda: optimizer.load_state_dict(state))]


def another_workers(folder: Path) -> list[str]:
    _, optimizer = begun(LAYOUTS["stage3"])
    other = folder / f"stage3-{1 - fleet.worker_index()}.pt"
    state = torch.load(other, weights_only=False)
    return [_refused(lambda: optimizer.load_state_dict(state))]


def _refused(deed: Any) -> str:
    try:
        deed()
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("deed", "sentence"),
    [
        (cut_elsewhere, "it lacks"),
        (another_model, "the checkpoint is not that of this model: it lacks"),
        (other_rules, "saved by Adam, and the optimizer that runs here is SGD"),
        (more_options, "and this one has ['amsgrad']"),
        (added_and_taken_away, "has no state of amp, which was not in force"),
        (another_workers, "the state is that of another worker"),
    ],
)
def test_what_is_missing_or_left_over(deed: Any, sentence: str, checkpoints: Saved) -> None:
    for said in world(2).run(deed, checkpoints[0]):
        assert said, "every worker stops"
        assert all(sentence in each for each in said)


def added_stateless(folder: Path) -> Tensor:
    options = {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 2}, "clip": True}
    model, optimizer = begun({**options, "clip_configs": {"limit": 1e9}})
    load_checkpoint(folder / "replicas", model, optimizer)
    return train(model, 3, 5)


def test_strategies_without_a_state_may_come_and_go(
    checkpoints: Saved,
) -> None:
    first, second = world(2).run(added_stateless, checkpoints[0])
    assert torch.equal(first, second)
    assert first.isfinite().all()


def foreign_folder(folder: Path) -> str:
    model, optimizer = begun({})
    return _refused(lambda: load_checkpoint(folder, model, optimizer))


def test_weights_of_another_library_are_no_checkpoint(tmp_path: Path, checkpoints: Saved) -> None:
    save_file(checkpoint_weights(checkpoints[0] / "replicas"), tmp_path / WEIGHTS)
    for said in world(2).run(foreign_folder, tmp_path):
        assert "is no checkpoint of fleetx: it has a model.safetensors" in said
        assert "fleet.load_full_state_dict(model, safetensors.torch.load_file(" in said


def written_before(folder: Path, batches: int) -> str:
    """A checkpoint in the first format, which nobody writes any more."""
    merge = {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 2}}
    scaled = {"amp": True, "amp_configs": {"dtype": "float16", "init_loss_scaling": 8.0}}
    model, optimizer = begun({**LAYOUTS["stage1"], **merge, **scaled})
    train(model, 0, batches)
    weights, state = fleet.full_state_dict(model, everywhere=True), optimizer.state_dict()
    at = folder / "checkpoint-1"
    at.mkdir(exist_ok=True)
    extra = {"layout": json.dumps(state["layout"]), "parts": {}, "numbers": {"step": 1}}
    mine = to_tensors(state, [name for name, _ in model.named_parameters()])
    mine |= dict(leaves(f"{MARK}run", {**extra, "random": random_state(torch.device("cpu"))}))
    mine = {name: local(value).contiguous() for name, value in mine.items()}
    save_file(mine, at / STATE.format(fleet.worker_index()))
    save_file(weights, at / WEIGHTS)
    fleet.util.barrier()
    return _refused(lambda: load_checkpoint(folder, model, optimizer))


@pytest.mark.rare
def test_gradients_of_an_unknown_scale_are_refused(tmp_path: Path) -> None:
    for said in world(2).run(written_before, tmp_path, 1):
        assert "sharding kept gradients at the scale of amp's loss without saying which" in said
    assert world(2).run(written_before, tmp_path, 2) == ["", ""], "at the end of a group none wait"


def beside(folder: Path) -> Any:
    model, optimizer = begun({})
    return load_checkpoint(folder, model, optimizer)


def test_weights_beside_checkpoints_do_not_hide_them(
    checkpoints: Saved,
) -> None:
    folder = checkpoints[0] / "replicas"
    (folder / WEIGHTS).write_bytes(b"of another library")
    assert world(2).run(beside, folder) == [{"step": 3, "workers": 2}] * 2
