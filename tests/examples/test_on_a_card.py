"""Examples run on a card: here on a stand-in that refuses what a GPU refuses."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.programs import fleetrun, python

ROOT = Path(__file__).parents[2]
CARD = str(ROOT / "tests" / "card.py")


def run(folder: Path, *line: str) -> str:
    environ = dict(os.environ) | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        line, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_stand_in_has_the_rules_of_a_card(tmp_path: Path) -> None:
    rules = str(Path(__file__).with_name("rules_of_the_card.py"))
    text = run(tmp_path, python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", rules)
    assert "3 passed" in text


def test_batches_rows_feeds_and_metrics_are_on_the_card(tmp_path: Path) -> None:
    script = str(Path(__file__).with_name("on_a_card.py"))
    text = run(tmp_path, python(), CARD, script)
    checks = re.findall(r"(\w+) is where it should be", text)
    assert checks == ["data_sets", "loaders", "metrics", "rows", "programs", "strategies"]


@pytest.mark.parametrize(
    "line",
    [
        ["fleetrun", "--gpus", "none", "--nproc_per_node", "2", CARD, "quickstart/train_fleet.py"],
        ["python", CARD, "static/static_mlp_fleet.py"],
        ["python", CARD, "transformer/train.py", "--epochs", "1", "--batch", "1024"],
    ],
    ids=["quickstart", "static", "transformer"],
)
def test_an_example_runs_on_the_card(tmp_path: Path, line: list[str]) -> None:
    """Those with servers do in test_servers.py."""
    paths = [
        str(ROOT / "examples" / part) if ".py" in part and part != CARD else part for part in line
    ]
    command = fleetrun(*paths[1:]) if paths[0] == "fleetrun" else [python(), *paths[1:]]
    assert "device card:0" in run(tmp_path, *command)


def test_the_resnet_example_runs_on_the_card(tmp_path: Path) -> None:
    """Without float16, whose convolutions take seconds on a processor; on_a_card.py has amp."""
    made = ["--classes", "4", "--train_images", "4", "--val_images", "2", "--size", "36"]
    run(tmp_path, python(), "-m", "fleetx", "data", "make", "flowers", *made)
    script = str(ROOT / "examples" / "resnet" / "train_with_fleet.py")
    small = ["--model=ResNet18", "--width=8", "--image_shape=3,32,32", "--batch_size=8"]
    data = ["--data_dir=flowers", "--reader_thread=0", "--num_epochs=1", "--export_format=none"]
    strategies = ["--use_recompute=True", "--use_lars=True", "--warm_up_epochs=0.5"]
    text = run(tmp_path, python(), CARD, script, *small, *data, *strategies)
    assert "device card:0" in text
    assert "[Epoch 1] loss: " in text
