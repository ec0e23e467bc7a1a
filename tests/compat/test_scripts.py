"""Whole scripts in the spelling of Paddle, on two workers, until their loss has fallen.

They stand in ``scripts/`` and import nothing of fleetx.
"""

import os
import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from tests.programs import fleetrun, python

SCRIPTS = Path(__file__).parent / "scripts"
COST = re.compile(r"worker_index: (\d+), step(\d+) cost = ([\d.einf+-]+)")
TABLE = (
    *("amp+recompute", "dgc+recompute", "lars+recompute", "lamb+recompute", "amp+localsgd"),
    *("amp+adaptive_localsgd", "amp+lars", "amp+lamb", "amp+recompute+lars"),
    *("amp+recompute+lamb", "auto"),
)
"""The compositions that document 000 lists, and its automatic one."""
WORKERS = ("--gpus", "none", "--nproc_per_node", "2")
SERVERS = ("--server_num", "1", "--worker_num", "2")


def job(
    folder: Path, flags: tuple[str, ...], script: str, *arguments: str
) -> dict[int, list[float]]:
    """Run a script; returns the losses of each worker."""
    command = ["--paddle", *flags, "--log_dir", str(folder / "log"), str(SCRIPTS / script)]
    done = subprocess.run(
        [*fleetrun(*command), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": f"{Path(python()).parent}:{os.environ['PATH']}"},
    )
    logs = "\n".join(path.read_text() for path in sorted((folder / "log").glob("*log.*")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    losses: dict[int, dict[int, float]] = defaultdict(dict)
    for worker, step, cost in COST.findall(logs):
        losses[int(worker)][int(step)] = float(cost)
    return {worker: [*costs.values()] for worker, costs in losses.items()}


def falls(losses: dict[int, list[float]]) -> None:
    """Both workers told their losses, and the last quarter is well below the first values."""
    assert {*losses} == {0, 1}
    for costs in losses.values():
        few = max(1, len(costs) // 4)
        assert sum(costs[-few:]) < 0.9 * sum(costs[:few]), costs


def test_resnet_with_three_strategies(tmp_path: Path) -> None:
    falls(job(tmp_path, WORKERS, "resnet_static.py", "--strategies", "amp+recompute+lars"))


@pytest.mark.rare
@pytest.mark.parametrize("strategies", ["", *TABLE])
def test_resnet_with_each_strategy_of_the_table(tmp_path: Path, strategies: str) -> None:
    falls(job(tmp_path, WORKERS, "resnet_static.py", "--strategies", strategies))


@pytest.mark.parametrize("sync", ["1", pytest.param("0", marks=pytest.mark.rare)])
def test_clicks_from_a_feeder_on_servers(tmp_path: Path, sync: str) -> None:
    falls(job(tmp_path, SERVERS, "ctr_feeder.py", "--sync", sync))


@pytest.mark.rare
def test_clicks_from_files_through_a_generator(tmp_path: Path) -> None:
    falls(job(tmp_path, SERVERS, "ctr_dataset.py", str(tmp_path)))


@pytest.mark.rare
def test_clicks_from_a_py_reader(tmp_path: Path) -> None:
    falls(job(tmp_path, SERVERS, "ctr_pyreader.py"))


@pytest.mark.rare
def test_servers_by_the_transpiler(tmp_path: Path) -> None:
    falls(job(tmp_path, SERVERS, "transpiled.py"))


@pytest.mark.rare
def test_workers_meet_their_servers_at_the_first_batch(tmp_path: Path) -> None:
    falls(job(tmp_path, SERVERS, "first_batch.py"))


@pytest.mark.rare
def test_clicks_by_days_and_passes(tmp_path: Path) -> None:
    falls(job(tmp_path, SERVERS, "clicks_pslib.py", str(tmp_path)))
    assert any((tmp_path / "saved" / "20200101" / "1").iterdir())


@pytest.mark.rare
def test_words_with_geo(tmp_path: Path) -> None:
    falls(job(tmp_path, SERVERS, "word2vec_geo.py"))


@pytest.mark.parametrize("flags", [["--adaptive"], pytest.param([], marks=pytest.mark.rare)])
def test_local_sgd_by_hand(tmp_path: Path, flags: list[str]) -> None:
    falls(job(tmp_path, WORKERS, "local_sgd.py", *flags))


@pytest.mark.rare
def test_deep_gradient_compression(tmp_path: Path) -> None:
    falls(job(tmp_path, WORKERS, "dgc.py"))


def test_a_detector_of_two_workers_is_that_of_one(tmp_path: Path) -> None:
    many, one = tmp_path / "many", tmp_path / "one"
    for folder in (many, one):
        folder.mkdir()
    losses = job(many, WORKERS, "ssd.py")
    falls(losses)
    alone = job(one, ("--gpus", "none", "--nproc_per_node", "1"), "ssd.py", "--merge")
    assert {*alone} == {0, 1}
    for worker, costs in losses.items():
        assert costs == pytest.approx(alone[worker], rel=1e-3)


@pytest.mark.rare
def test_bert_with_recompute_amp_and_lamb(tmp_path: Path) -> None:
    falls(job(tmp_path, WORKERS, "bert.py"))


@pytest.mark.rare
def test_gpt_with_hybrid_degrees(tmp_path: Path) -> None:
    falls(job(tmp_path, WORKERS, "gpt_hybrid.py"))


@pytest.mark.rare
def test_training_and_offline_evaluation_with_py_reader(tmp_path: Path) -> None:
    falls(job(tmp_path, WORKERS, "evaluate_py_reader.py", str(tmp_path / "model")))
