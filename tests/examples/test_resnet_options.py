"""The command line of the reference application: what becomes of it, and what it refuses."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

import fleetx as fleet
from fleetx import applications
from fleetx.testing import world

SCRIPT = Path(__file__).parent.parent.parent / "examples" / "resnet" / "train_with_fleet.py"
NET = applications.build("ResNet18", class_dim=2, width=2)


def load() -> Any:
    spec = importlib.util.spec_from_file_location("train_with_fleet", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


APP = load()


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Any:
    def parse(*line: str) -> Any:
        monkeypatch.setattr("sys.argv", ["train_with_fleet.py", *line])
        return APP.arguments()

    return parse


@pytest.fixture
def merging(tmp_path: Path) -> str:
    path = tmp_path / "merge.prototxt"
    path.write_text("gradient_merge: true\ngradient_merge_configs {\n  k_steps: 4\n}\n")
    return f"--strategy={path}"


def test_updates_are_counted_by_the_finished_strategy(parsed: Any, merging: str) -> None:
    for line, expected in (
        ([], 1),
        (["--gradient_merge_steps=2"], 2),
        ([merging], 4),
        ([merging, "--gradient_merge_steps=3"], 3),
        ([merging, "--gradient_merge_steps=1"], 1),
    ):
        strategy = APP.strategy_of(parsed(*line), NET)
        assert APP.batches_of_an_update(strategy) == expected, line
    with pytest.raises(ValueError, match=r"\['k_steps'\] must be at least 1, got 0"):
        APP.strategy_of(parsed("--gradient_merge_steps=0"), NET)


def test_switches_that_save_time_are_off_unless_they_are_set(parsed: Any) -> None:
    strategy = APP.strategy_of(parsed(), NET)
    assert not strategy.compile
    assert not strategy.cuda_graph
    strategy = APP.strategy_of(parsed("--use_compile=True", "--use_cuda_graph=True"), NET)
    assert strategy.compile
    assert strategy.cuda_graph
    assert parsed().decoder == "auto"


def test_the_rate_rises_and_falls_within_the_updates_of_the_run(parsed: Any) -> None:
    share = APP.warm_then_cosine(parsed("--num_epochs=4", "--warm_up_epochs=1"), 10)
    rates = [share(update) for update in range(41)]
    assert rates[:10] == sorted(rates[:10])
    assert rates[10] == 1
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[40] == pytest.approx(0)


def trained_by_lars(name: str) -> list[list[str]]:
    """The names that have no rate of their own."""
    net: Any = applications.build(name, class_dim=2, width=1)
    strategy = fleet.DistributedStrategy()
    strategy.lars = True
    strategy.lars_configs = {"exclude_from_weight_decay": APP.spared(net)}
    fleet.init(is_collective=True, strategy=strategy)
    model = fleet.distributed_model(net)
    sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer = fleet.distributed_optimizer(sgd)
    names = [name for name, _ in model.named_parameters()]
    return [[names[at] for at in group["excluded"]] for group in optimizer.param_groups]


@pytest.mark.parametrize(("name", "norms"), [("VGG16", False), ("ResNet18", True)])
def test_lars_spares_what_the_network_has(name: str, norms: bool) -> None:
    (((*spared,),),) = world(1).run(trained_by_lars, name)
    assert all(name.endswith("bias") for name in spared) is not norms
    assert [name for name in spared if name.endswith("bias")]


def test_local_sgd_has_the_options_of_the_document(parsed: Any) -> None:
    args = parsed("--use_local_sgd=True", "--warm_up_epochs=2")
    assert APP.strategy_of(args, NET).localsgd_configs["k_steps"] == 4
    assert APP.begin_step(args, 12.5) == 25, "until the learning rate begins to fall"
    args = parsed("--use_local_sgd=True", "--local_sgd_steps=2", "--local_sgd_is_warm_steps=30")
    strategy = APP.strategy_of(args, NET)
    assert strategy.localsgd
    assert strategy.localsgd_configs["k_steps"] == 2
    assert APP.begin_step(args, 12.5) == 375, "the document counts epochs"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--lars_coeff=0.1", "--lars_coeff does nothing without --use_lars=True"),
        ("--local_sgd_steps=2", "--local_sgd_steps does nothing without --use_local_sgd=True"),
        ("--local_sgd_is_warm_steps=2", "_warm_steps does nothing without --use_local_sgd=True"),
        ("--use_local_sgd=True --local_sgd_steps=0", "0 is not at least 1"),
        ("--export_format=pickle", "invalid choice: 'pickle'"),
        ("--decoder=nvjpeg", "invalid choice: 'nvjpeg'"),
        ("--fp16=yes", "'yes' is neither True nor False"),
    ],
)
def test_what_would_be_ignored_is_refused(
    parsed: Any, capsys: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(*line.split())
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_decay_beside_a_file_with_lars_is_refused(parsed: Any) -> None:
    file = f"--strategy={SCRIPT.with_name('amp_recompute_lars.prototxt')}"
    assert APP.strategy_of(parsed(file), NET).lars
    with pytest.raises(ValueError, match=r"has lars with a decay of its own; set lars_weight"):
        APP.strategy_of(parsed(file, "--l2_decay=0.1"), NET)
    strategy = APP.strategy_of(parsed(file, "--l2_decay=0.1", "--use_lars=True"), NET)
    assert strategy.lars_configs["lars_weight_decay"] == 0.1


def test_a_format_that_cannot_be_written_stops_before_anything_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = ["train_with_fleet.py", "--export_format=onnx", "--data_dir=nowhere"]
    monkeypatch.setattr("sys.argv", line)
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(ImportError, match="needs onnx and onnxscript"):
        APP.main()
