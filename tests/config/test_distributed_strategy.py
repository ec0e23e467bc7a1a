"""The object users fill in: names, checks, spellings, copies, files."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fleetx as fleet
from fleetx import BuildStrategy, ExecutionStrategy, PlanError
from fleetx.config import stub
from fleetx.config.switchboard import blocks, names, switches

GOLDEN = Path(__file__).parent.parent / "golden"
PROTOTXT = json.loads((GOLDEN / "strategy_prototxt.json").read_text())["cases"]
DEFAULTS = json.loads((GOLDEN / "strategy_defaults.json").read_text())["defaults"]

# Every attribute and key of the manual of Fleet's strategies.
DOCUMENT = {
    "amp_configs": [
        "init_loss_scaling",
        "use_dynamic_loss_scaling",
        "incr_every_n_steps",
        "decr_every_n_nan_or_inf",
        "incr_ratio",
        "decr_ratio",
        "custom_white_list",
        "custom_black_list",
    ],
    "recompute_configs": ["checkpoints", "enable_offload", "checkpoint_shape"],
    "pipeline_configs": ["micro_batch_size"],
    "gradient_merge_configs": ["k_steps", "avg"],
    "lars_configs": [
        "lars_coeff",
        "lars_weight_decay",
        "epsilon",
        "exclude_from_weight_decay",
    ],
    "lamb_configs": ["lamb_weight_decay", "exclude_from_weight_decay"],
    "localsgd_configs": ["k_steps", "begin_step"],
    "adaptive_localsgd_configs": ["init_k_steps", "begin_step"],
    "dgc_configs": ["rampup_begin_step", "rampup_step", "sparsity"],
    "sharding_configs": [
        "sharding_segment_strategy",
        "segment_broadcast_MB",
        "segment_anchors",
        "sharding_degree",
        "gradient_merge_acc_step",
        "optimize_offload",
        "dp_degree",
        "mp_degree",
        "pp_degree",
        "pp_allreduce_in_optimize",
    ],
}
SWITCHES = [*(name.removesuffix("_configs") for name in DOCUMENT), "fp16_allreduce"]

# Where fleetx decided otherwise than Paddle 2.6; the reasons are in docs/strategy.md.
DECIDED = {
    ("amp_configs", "decr_ratio"): 0.5,
    ("dgc_configs", "sparsity"): (0.999,),
    ("sharding_configs", "sharding_degree"): -1,
    ("sharding_configs", "stage"): 3,
}


def normal(value: Any) -> Any:
    """Paddle holds floats in 32 bits and lists; we hold 64 bits and tuples."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    return tuple(value) if isinstance(value, list) else value


def filled(settings: dict[str, Any]) -> fleet.DistributedStrategy:
    strategy = fleet.DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    return strategy


@pytest.mark.parametrize("name", [*SWITCHES, "auto"])
def test_every_switch_of_the_document_is_there_and_off(name: str) -> None:
    strategy = fleet.DistributedStrategy()
    assert getattr(strategy, name) is False
    setattr(strategy, name, True)
    assert getattr(strategy, name) is True
    with pytest.raises(TypeError, match=f"^{name} must be True or False, got 1$"):
        setattr(strategy, name, 1)


@pytest.mark.parametrize("block", DOCUMENT)
def test_every_key_of_the_document_has_the_default_of_paddle_or_of_our_decision(
    block: str,
) -> None:
    ours = getattr(fleet.DistributedStrategy(), block)
    for key in DOCUMENT[block]:
        theirs = DEFAULTS[block][key]
        expected = DECIDED.get((block, key), normal(theirs))
        assert ours[key] == expected, key


def test_every_default_of_paddle_is_ours_or_decided() -> None:
    strategy = fleet.DistributedStrategy()
    for block in blocks():
        for key, value in getattr(strategy, block).items():
            theirs = DEFAULTS.get(block)
            ours = {*DECIDED, ("build_strategy", "reduce_strategy")}  # the latter is an enum there
            if isinstance(theirs, dict) and key in theirs and (block, key) not in ours:
                assert value == normal(theirs[key]), (block, key)


@pytest.mark.parametrize(
    ("settings", "workers", "words"),
    [
        (
            {"hybrid_configs": {"mp_degree": 2}},
            4,
            "hybrid_configs['mp_degree'] = 2 spreads the job over the axis tp, and no strategy of "
            "this plan uses it. Set strategy.tensor_parallel = True, or the degree to 1.",
        ),
        (
            {"sharding_configs": {"pp_degree": 2}},
            4,
            "Set strategy.pipeline = True, or the degree to 1.",
        ),
        (
            {"sharding_configs": {"dp_degree": 3}},
            4,
            "sharding_configs['dp_degree'] = 3 gives 3, which is not the 4 workers; set "
            "sharding_configs['dp_degree'] to 4.",
        ),
        (
            {"sharding_configs": {"dp_degree": 2}, "hybrid_configs": {"dp_degree": 4}},
            4,
            "sharding_configs['dp_degree'] = 2 and hybrid_configs['dp_degree'] = 4 contradict",
        ),
    ],
)
def test_degrees_that_cannot_be_are_refused(
    settings: dict[str, Any], workers: int, words: str
) -> None:
    with pytest.raises(PlanError) as caught:
        filled(settings).explain(workers=workers)
    assert words in str(caught.value)


def test_degrees_that_fit_are_planned_and_those_of_a_strategy_that_is_off_rest() -> None:
    fitting = filled({"hybrid_configs": {"dp_degree": 4}})
    assert "dp 4 x" in fitting.explain(workers=4)
    resting = filled({"sharding_configs": {"sharding_degree": 8}})
    assert "dp 2 x" in resting.explain(workers=2)


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        ("ampp", True, AttributeError, "DistributedStrategy has no 'ampp'; did you mean 'amp'?"),
        ("amp", "x", TypeError, "amp must be True or False, got 'x'"),
        ("nccl_comm_num", "x", TypeError, "nccl_comm_num must be a whole number, got 'x'"),
        ("nccl_comm_num", 0, ValueError, "nccl_comm_num must be at least 1, got 0"),
        ("amp_configs", ["x"], TypeError, "amp_configs must be a dict of options, got ['x']"),
        (
            "gradient_merge_configs",
            {"k_step": 4},
            ValueError,
            "gradient_merge_configs has no option 'k_step'; did you mean 'k_steps'?",
        ),
        (
            "gradient_merge_configs",
            {"k_steps": -3},
            ValueError,
            "gradient_merge_configs['k_steps'] must be at least 1, got -3",
        ),
        ("recompute_configs", {"checkpoints": "xyz"}, TypeError, "must be a list of strings"),
        ("dgc_configs", {"sparsity": [1.0]}, ValueError, "must be below 1, got [1.0]"),
        (
            "sharding_configs",
            {"sharding_segment_strategy": "xx"},
            ValueError,
            "must be one of 'segment_broadcast_MB', 'segment_anchors', got 'xx'",
        ),
        (
            "amp_configs",
            {"custom_white_list": ["conv2d"], "custom_black_list": ["conv2d"]},
            ValueError,
            "names ['conv2d'] in custom_white_list and in custom_black_list",
        ),
        ("mode", "magic", ValueError, "mode must be one of 'collective', 'ps', got 'magic'"),
    ],
)
def test_mistakes_are_refused_at_the_assignment(
    name: str, value: Any, error: type[Exception], words: str
) -> None:
    strategy = fleet.DistributedStrategy()
    with pytest.raises(error) as caught:
        setattr(strategy, name, value)
    assert words in str(caught.value)
    assert strategy == fleet.DistributedStrategy(), "a refused value must leave no trace"


def test_reading_an_unknown_name_says_so() -> None:
    with pytest.raises(AttributeError, match="did you mean 'recompute'"):
        _ = fleet.DistributedStrategy().recmpute  # type: ignore[attr-defined]
    with pytest.raises(KeyError, match="did you mean 'k_steps'"):
        _ = fleet.DistributedStrategy().localsgd_configs["ksteps"]  # type: ignore[typeddict-item]


def test_assigning_a_block_merges_keys_and_replaces_lists() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.dgc_configs = {"rampup_begin_step": 5, "sparsity": [0.9]}
    strategy.dgc_configs = {"sparsity": [0.99]}
    found = {key: strategy.dgc_configs[key] for key in ("rampup_begin_step", "rampup_step")}
    assert found == {"rampup_begin_step": 5, "rampup_step": 1}
    assert strategy.dgc_configs["sparsity"] == (0.99,)


def test_a_block_is_live() -> None:
    strategy = fleet.DistributedStrategy()
    block: Any = strategy.localsgd_configs
    block["k_steps"] = 4
    assert strategy.localsgd_configs["k_steps"] == 4
    del block["k_steps"]
    assert strategy.localsgd_configs["k_steps"] == 1
    with pytest.raises(ValueError, match="at least 1"):
        block["k_steps"] = 0


def test_execution_and_build_strategy_are_objects_with_attributes() -> None:
    execution = ExecutionStrategy()
    execution.num_threads = 10
    execution.num_iteration_per_run = 10
    build = BuildStrategy()
    build.fuse_all_optimizer_ops = True
    strategy = filled({"execution_strategy": execution, "build_strategy": build})
    assert strategy.execution_strategy.num_threads == 10
    assert strategy.execution_strategy.num_iteration_per_drop_scope == 10
    assert strategy.build_strategy.fuse_all_optimizer_ops is True
    strategy.execution_strategy.num_threads = 2
    assert strategy.execution_strategy.num_threads == 2
    assert execution.num_threads == 10, "assigning copies"
    with pytest.raises(AttributeError, match="ExecutionStrategy has no 'num_thread'"):
        execution.num_thread = 3
    with pytest.raises(TypeError, match="must be True or False"):
        build.enable_inplace = "yes"


@pytest.mark.parametrize(
    ("old", "value", "name", "key", "expected"),
    [
        ("use_local_sgd", True, "localsgd", None, True),
        ("local_sgd_steps", 4, "localsgd_configs", "k_steps", 4),
        ("collective_mode", "local_sgd", "localsgd", None, True),
        ("collective_mode", "grad_allreduce", "localsgd", None, False),
        ("mode", "nccl2", "mode", None, "collective"),
        ("mode", "collective", "mode", None, "collective"),
        ("nccl_comm_num", 2, "nccl_comm_num", None, 2),
        ("use_hierarchical_allreduce", True, "use_hierarchical_allreduce", None, True),
        ("forward_recompute", True, "recompute", None, True),
        ("recompute_checkpoints", ["x"], "recompute_configs", "checkpoints", ("x",)),
        ("use_amp", True, "amp", None, True),
        ("amp_loss_scaling", 128, "amp_configs", "init_loss_scaling", 128.0),
    ],
)
def test_old_spellings_set_and_read_todays_names(
    old: str, value: Any, name: str, key: str | None, expected: Any
) -> None:
    strategy = filled({old: value})
    found = getattr(strategy, name)
    assert (found if key is None else found[key]) == expected
    assert getattr(strategy, old) in (value, expected)


def test_the_old_exec_strategy_is_todays_execution_strategy() -> None:
    execution = ExecutionStrategy()
    execution.num_threads = 3
    assert filled({"exec_strategy": execution}).execution_strategy.num_threads == 3


def test_an_old_spelling_with_another_unit_warns() -> None:
    with pytest.warns(UserWarning, match="counted epochs in scripts of Fleet 1.x"):
        strategy = filled({"local_sgd_is_warm_steps": 30})
    assert strategy.localsgd_configs["begin_step"] == 30


def test_keys_of_fleet_2_0_have_todays_names() -> None:
    strategy = filled({"sharding_configs": {"fuse_broadcast_MB": 64.0, "sharding_group_size": 4}})
    assert strategy.sharding_configs["segment_broadcast_MB"] == 64.0
    assert strategy.sharding_configs["sharding_degree"] == 4


@pytest.mark.parametrize("case", PROTOTXT)
def test_files_are_those_of_paddle(case: str, tmp_path: Path) -> None:
    theirs, path = PROTOTXT[case]["prototxt"], tmp_path / "strategy.prototxt"
    strategy = filled(PROTOTXT[case]["set"])
    strategy.save_to_prototxt(path)
    assert path.read_text() == theirs
    path.write_text(theirs)
    loaded = fleet.DistributedStrategy()
    loaded.load_from_prototxt(str(path))
    assert loaded == strategy
    for name, value in PROTOTXT[case]["set"].items():
        if isinstance(value, dict):
            expected = {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}
            assert {key: getattr(loaded, name)[key] for key in value} == expected
        else:
            assert getattr(loaded, name) == value


def test_every_option_survives_a_file(tmp_path: Path) -> None:
    strategy, path = fleet.DistributedStrategy(), tmp_path / "all.prototxt"
    for name in names():
        value = getattr(strategy, name)
        setattr(strategy, name, dict(value) if name in blocks() else value)
    strategy.save_to_prototxt(path)
    loaded = fleet.DistributedStrategy()
    loaded.load_from_prototxt(path)
    assert loaded == strategy
    for switch in switches():
        assert f"{switch}: false" in path.read_text()
    assert "mode: COLLECTIVE" in path.read_text()


def test_loading_keeps_what_the_file_does_not_name(tmp_path: Path) -> None:
    path = tmp_path / "strategy.prototxt"
    path.write_text('recompute_configs { checkpoints: "b" }')
    strategy = filled({"amp": True, "recompute_configs": {"checkpoints": ["a"]}})
    strategy.load_from_prototxt(path)
    assert strategy.amp is True
    assert strategy.recompute_configs["checkpoints"] == ("b",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ammp: true", "line 1: DistributedStrategy has no field 'ammp'; did you mean 'amp'?"),
        (
            "lars: true\nlars_configs {\n  lars_coef: 1\n}",
            "line 3: lars_configs has no field 'lars_coef'; did you mean 'lars_coeff'?",
        ),
        ("amp: maybe", "is not a strategy that fleetx can read"),
        ("localsgd_configs { k_steps: 0 }", "localsgd_configs['k_steps'] must be at least 1"),
        ("mode: PIPELINE", "mode must be one of 'collective', 'ps', got 'PIPELINE'"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.prototxt"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        fleet.DistributedStrategy().load_from_prototxt(path)
    assert words in str(caught.value)


def test_copies_and_pickles_are_equal_and_independent() -> None:
    strategy = filled(PROTOTXT["many"]["set"])
    for twin in (
        copy.copy(strategy),
        copy.deepcopy(strategy),
        pickle.loads(pickle.dumps(strategy)),
    ):
        assert twin == strategy
        twin.amp_configs = {"incr_ratio": 4.0}
        assert twin != strategy
    with pytest.raises(TypeError, match="unhashable"):
        hash(strategy)


def test_a_strategy_in_force_cannot_change() -> None:
    strategy = filled({"fuse_grad_size_in_MB": 16})
    strategy.lock()
    for name, value in (("amp", True), ("amp_configs", {"incr_ratio": 3.0})):
        with pytest.raises(ValueError, match="in force already"):
            setattr(strategy, name, value)
    with pytest.raises(ValueError, match="in force already"):
        strategy.execution_strategy.num_threads = 4
    free = copy.deepcopy(strategy)
    free.amp = True
    assert free.amp is True


def test_repr_is_a_table_of_what_is_on() -> None:
    text = repr(filled(PROTOTXT["amp_recompute_lars"]["set"] | {"nccl_comm_num": 2}))
    for row in (
        "amp                                 on",
        "  checkpoints                       x, y   (default -)",
        "  lars_coeff                        0.001",
        "nccl_comm_num                       2   (default 1)",
    ):
        assert row in text.splitlines()
    assert "off: a_sync, adaptive_localsgd, clip" in text
    assert "plain data parallel" in repr(fleet.DistributedStrategy())


def test_editors_see_every_name() -> None:
    assert stub.STUB.read_text(encoding="utf-8") == stub.text(), (
        "run `python -m fleetx.config.stub`"
    )
    assert set(names()) <= set(dir(fleet.DistributedStrategy()))


def test_a_block_can_be_cleared_and_keeps_making_sense() -> None:
    strategy = filled({"localsgd_configs": {"k_steps": 4, "begin_step": 3}})
    block: Any = strategy.localsgd_configs
    block.clear()
    assert dict(strategy.localsgd_configs) == {"k_steps": 1, "begin_step": 1}
    with pytest.raises(TypeError, match="use del or clear"):
        block.popitem()
    clip = filled({"clip_configs": {"by": "value", "lowest": -1.0}})
    with pytest.raises(ValueError, match="limits values"):
        del clip.clip_configs["by"]  # type: ignore[misc]


def test_a_file_is_loaded_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "half.prototxt"
    path.write_text('amp: true\nlars: true\namp_configs { dtype: "int8" }')
    strategy = fleet.DistributedStrategy()
    with pytest.raises(ValueError, match="must be one of 'float16', 'bfloat16'"):
        strategy.load_from_prototxt(path)
    assert strategy == fleet.DistributedStrategy()


@pytest.mark.parametrize("workers", [0, -2, "4", True])
def test_explain_wants_a_number_of_workers(workers: Any) -> None:
    with pytest.raises(ValueError, match="a whole number of workers"):
        fleet.DistributedStrategy().explain(workers=workers)


def test_options_of_a_strategy_that_is_off_are_shown_as_resting() -> None:
    text = repr(filled({"amp_configs": {"dtype": "bfloat16"}}))
    assert text.endswith("resting until their switch is on: amp_configs")


def test_numbers_of_numpy_are_numbers() -> None:
    strategy = filled({"localsgd_configs": {"k_steps": np.int64(4)}})
    assert type(strategy.localsgd_configs["k_steps"]) is int
    with pytest.raises(ValueError, match="must be finite, got inf"):
        strategy.amp_configs = {"init_loss_scaling": float("inf")}


@pytest.mark.parametrize(
    ("text", "block", "key", "value"),
    [
        (
            "sharding_configs { fuse_broadcast_MB: 16 }",
            "sharding_configs",
            "segment_broadcast_MB",
            16,
        ),
        ("sharding_configs { sharding_group_size: 4 }", "sharding_configs", "sharding_degree", 4),
        ("pipeline_configs { micro_batch: 2 }", "pipeline_configs", "accumulate_steps", 2),
    ],
)
def test_files_of_older_releases_are_read(
    tmp_path: Path, text: str, block: str, key: str, value: int
) -> None:
    file = tmp_path / "old.prototxt"
    file.write_text(text)
    strategy = fleet.DistributedStrategy()
    strategy.load_from_prototxt(file)
    assert strategy.explicit() == {block: {key: value}}
    strategy.save_to_prototxt(file)
    assert key in file.read_text(), "written under the name of today"


def test_an_old_name_that_contradicts_the_new_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "both.prototxt"
    file.write_text("pipeline_configs { micro_batch: 2 accumulate_steps: 4 }")
    with pytest.raises(ValueError, match="the old name of the second; keep 'accumulate_steps'"):
        fleet.DistributedStrategy().load_from_prototxt(file)


def test_what_paddle_writes_into_every_file_is_accepted_at_its_default(tmp_path: Path) -> None:
    file = tmp_path / "paddle.prototxt"
    file.write_text(
        "calc_comm_same_stream: false\nwith_coordinator: false\nfuse_grad_size_in_TFLOPS: 50.0\n"
        "a_sync_configs { k_steps: -1 use_ps_gpu: 0 use_gpu_graph: 0 }\n"
    )
    strategy = fleet.DistributedStrategy()
    strategy.load_from_prototxt(file)
    assert strategy == fleet.DistributedStrategy()
    strategy.explain(workers=2)
    file.write_text("a_sync_configs { use_gpu_graph: 1 }")
    with pytest.raises(ValueError, match=r"use_gpu_graph.*leave it at 0"):
        strategy.load_from_prototxt(file)
    for line in ("calc_comm_same_stream: true", "with_coordinator: true"):
        file.write_text(line)
        changed = fleet.DistributedStrategy()
        changed.load_from_prototxt(file)
        with pytest.raises(PlanError, match=line.split(":")[0]):
            changed.explain(workers=2)
