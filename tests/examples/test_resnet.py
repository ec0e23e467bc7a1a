"""The reference application trains from one command, resumes, and exports what it learnt."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fleetx.data.images import View, val_loader
from fleetx.metrics import Accuracy
from tests.programs import fleetrun, python

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "resnet"
SMALL = [
    *("--model=ResNet18", "--width=8", "--image_shape=3,32,32", "--lower_scale=0.5"),
    *(
        "--log_steps=2",
        "--batch_size=8",
        "--warm_up_epochs=0.5",
        "--data_dir=flowers",
        "--reader_thread=0",
    ),
]


def run(command: list[str], folder: Path) -> str:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resnet")
    options = ["--classes", "4", "--train_images", "16", "--val_images", "5", "--size", "36"]
    made = run([python(), "-m", "fleetx", "data", "make", "flowers", *options], folder)
    assert "84 images of 4 kinds" in made
    return folder


def test_it_trains_with_the_documents_strategies_and_resumes(place: Path) -> None:
    switches = ["--fp16=True", "--use_recompute=True", "--use_lars=True", "--lars_coeff=0.02"]
    line = fleetrun("--gpus", "none", "--nproc_per_node", "2")
    line += [str(FOLDER / "train_with_fleet.py"), *SMALL, *switches, "--lr=1"]
    output = run([*line, "--num_epochs=1", "--export_format=none"], place)
    assert re.search(r"\[Epoch 1\] loss: \d.*images/s, acc1: 0\.\d+, acc5: 1\.00000", output)
    assert [path.name for path in (place / "output").glob("checkpoint-*")] == ["checkpoint-4"]
    assert not (place / "output" / "model").exists()
    output = run([*line, "--num_epochs=4", "--resume=True"], place)
    assert "resumed from step 4" in output
    assert "saved output/curves.png" in output
    assert (place / "output" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "[Epoch 1]" not in output
    assert "[Epoch 2]" in output
    said = re.findall(r"acc1: ([\d.]+)", output)
    assert len(said) == 3
    curves = EventAccumulator(str(place / "output" / "tensorboard")).Reload()
    assert {"loss", "lr", "images_per_second", "acc1", "acc5"} <= set(curves.Tags()["scalars"])
    assert [f"{point.value:.5f}" for point in curves.Scalars("acc1")][-3:] == said
    assert [point.step for point in curves.Scalars("acc1")] == [4, 8, 12, 16]
    # The exported model is as good, in plain torch and without the script.
    model = torch.export.load(place / "output" / "model" / "model.pt2").module()
    accuracy = Accuracy()
    view = View(image_shape=(3, 32, 32), resize_short_size=36)
    for images, labels in val_loader(place / "flowers", 4, view, num_workers=0):
        accuracy.update(model(images)[0], labels)
    assert accuracy.counts[1] == 20
    assert accuracy.local() == pytest.approx(float(said[-1]), abs=0.051), "one image in 20"


def test_a_second_run_in_the_same_folder_begins_anew(place: Path) -> None:
    merging = place / "merging.prototxt"
    merging.write_text(
        "gradient_merge: true\ngradient_merge_configs {\n  k_steps: 4\n}\n"
        'compile: true\ncompile_configs {\n  backend: "eager"\n}\n'
    )
    line = [python(), str(FOLDER / "train_with_fleet.py"), *SMALL, "--export_format=none"]
    line += ["--output=twice", "--lr=0.5", f"--strategy={merging}"]
    output = run([*line, "--num_epochs=2", "--resume=True"], place)
    assert "twice has no checkpoint to resume from: training begins anew" in output
    assert (place / "twice" / "checkpoint-4").is_dir(), "four updates of four batches"
    told = re.findall(r"compiling took \d+ s; torch keeps the code.*", output)
    assert len(told) == 1, "once, and not in every epoch"
    output = run([*line, "--num_epochs=1"], place)
    assert "resume=True would have gone on from them" in output
    assert [path.name for path in (place / "twice").glob("checkpoint-*")] == ["checkpoint-2"]
    assert (place / "twice" / "earlier-1" / "checkpoint-4").is_dir()
    curves = EventAccumulator(str(place / "twice" / "tensorboard")).Reload()
    assert [point.step for point in curves.Scalars("acc1")] == [8], "of the second run alone"
    # Two updates of four batches: half an epoch is warm, and then the rate falls to nothing.
    rates = [(point.step, point.value) for point in curves.Scalars("lr")]
    assert rates == [(2, 0.25), (4, 0.5), (6, 0.5), (8, 0.0)]


def script(**settings: str) -> tuple[int, str]:
    """The exit code of the shell script and what it would start."""
    environment = {"PATH": os.environ["PATH"], "PYTHON": "echo", **settings}
    command = ["sh", str(FOLDER / "scripts" / "train_gpu.sh"), "--lr=1"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("settings", "cards"),
    [
        ({}, "0"),
        ({"NUM_CARDS": "1"}, "0"),
        ({"NUM_CARDS": "4"}, "0,1,2,3"),
        ({"NUM_CARDS": "0"}, "none"),
        ({"NUM_CARDS": "2", "CUDA_VISIBLE_DEVICES": "3,5,7"}, "3,5"),
        ({"NUM_CARDS": "3", "CUDA_VISIBLE_DEVICES": "3,5"}, "0,1,2"),  # the launcher refuses
    ],
)
def test_the_shell_script_counts_cards(settings: dict[str, str], cards: str) -> None:
    code, said = script(**settings)
    assert code == 0
    assert said.startswith(f"-m fleetx.launch --gpus {cards} --log_dir log train_with_fleet.py")
    assert said.endswith("--model=ResNet50 --data_dir=./ImageNet --fp16=True --lr=1\n")


@pytest.mark.parametrize("cards", ["all", "-1", "1,2"])
def test_the_shell_script_wants_a_number(cards: str) -> None:
    code, said = script(NUM_CARDS=cards)
    assert code == 2
    assert f"NUM_CARDS={cards} is no number of cards; set it to 1, 2, ... or to 0" in said


def test_the_shell_script_runs_a_single_worker_with_a_strategy_file(place: Path) -> None:
    strategy = f"--strategy={FOLDER / 'amp_recompute_lars.prototxt'}"
    data = f"--data_dir={place / 'flowers'}"
    options = [*SMALL, data, strategy, "--fp16=False", f"--output={place / 'alone'}"]
    once = ["--num_epochs=1", "--export_format=none"]
    command = ["env", "NUM_CARDS=0", f"PYTHON={python()}", "sh"]
    log = f"LOG_DIR={place / 'log'}"
    script = str(FOLDER / "scripts" / "train_gpu.sh")
    output = run([*command[:2], log, *command[2:], script, *options, *once], ROOT)
    assert "[Epoch 1] loss:" in output
    assert (place / "alone" / "checkpoint-8").is_dir()
