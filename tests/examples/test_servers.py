"""The examples and the page on parameter servers run as they stand, as whole jobs."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.programs import fleetrun
from tests.rotation import rotating

ROOT = Path(__file__).parents[2]
CLICKS, WORDS = (str(ROOT / "examples" / name / "train.py") for name in ("ctr", "word2vec"))
CARD = str(ROOT / "tests" / "card.py")
"""Before a script: its workers compute on a stand-in for a GPU, which refuses mixed places."""


def run(folder: Path, *line: str) -> str:
    """Run a job and return what its first worker and the launcher printed."""
    environ = dict(os.environ) | {"CUDA_VISIBLE_DEVICES": ""}
    command = fleetrun("--worker_num=2", *line)
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_page_trains_and_saves(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "parameter_server.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 1
    (tmp_path / "train.py").write_text(blocks[0])
    run(tmp_path, "--server_num=2", "train.py")
    assert (tmp_path / "model" / "manifest.json").exists()
    assert len(list((tmp_path / "model" / "words").glob("server-*/rows-*.safetensors"))) == 2


@pytest.mark.parametrize(("mode", "margin"), [("sync", 0.06), ("async", 0.2)])
def test_clicks_come_near_the_best_there_is(tmp_path: Path, mode: str, margin: float) -> None:
    """Synchronous workers always learn the same; what others learn depends on the machine's load.

    So the margin of the latter only says that they learn: 0.5 is what guessing reaches.
    """
    small = ["--files", "2", "--lines", "10000", "--epochs", "1", "--batch_size", "128"]
    text = run(tmp_path, "--server_num=2", CLICKS, "--mode", mode, *small, "--save", "model")
    found = re.search(r"epoch 1/1: AUC (\S+) of (\S+)", text)
    assert found is not None, text
    reached, best = float(found[1]), float(found[2])
    assert 0.85 < best < 0.89
    assert best - reached < margin
    assert len(list((tmp_path / "model" / "deep").glob("server-*/rows-*.safetensors"))) == 2


@pytest.mark.parametrize("mode", rotating(["sync", "async", "geo"], 3))
def test_rows_and_batches_of_clicks_are_where_the_worker_computes(
    tmp_path: Path, mode: str
) -> None:
    few = ["--files", "2", "--lines", "400", "--epochs", "1", "--batch_size", "128"]
    text = run(tmp_path, "--server_num=1", CARD, CLICKS, "--mode", mode, *few)
    assert "device card:0" in text
    assert "epoch 1/1: AUC " in text


def test_words_of_a_topic_become_neighbours(tmp_path: Path) -> None:
    text = run(tmp_path, "--server_num=1", WORDS, "--batches", "200")
    found = re.search(r"same topic: (\S+)%", text)
    assert found is not None, text
    assert float(found[1]) > 80


def test_rows_of_words_are_where_the_worker_computes(tmp_path: Path) -> None:
    text = run(tmp_path, "--server_num=1", CARD, WORDS, "--batches", "5")
    assert "device card:0" in text
    assert "same topic: " in text
