"""The examples run as the README says, and do what they claim."""

import re
import subprocess
import sys
from pathlib import Path

import torch

from tests.programs import fleetrun, python
from tests.rotation import by_turns

ROOT = Path(__file__).parent.parent.parent
QUICKSTART = ROOT / "examples" / "quickstart"
# In processes that nobody prepared, as those of a newcomer are.
FLEETRUN = [sys.executable, "-m", "fleetx.launch", "--nproc_per_node", "2"]


def run(command: list[str], folder: Path) -> str:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def losses(output: str) -> list[float]:
    return [float(found) for found in re.findall(r"epoch \d+: loss ([\d.]+)", output)]


def test_the_quick_start_differs_by_a_few_lines() -> None:
    before = (QUICKSTART / "train_torch.py").read_text().splitlines()
    after = (QUICKSTART / "train_fleet.py").read_text().splitlines()
    gone = [line.strip() for line in before[1:] if line not in after]
    assert gone == [
        "optimizer = torch.optim.Adam(model.parameters(), lr=0.01)",
        "loader = DataLoader(dataset(), batch_size=64, shuffle=True)",
        "loss.backward()",
        "optimizer.step()",
        "optimizer.zero_grad()",
        'print(f"epoch {epoch}: loss {loss:.3f}")',
    ]


@by_turns(0, of=2)
def test_the_quick_start_learns_the_same_in_one_process(tmp_path: Path) -> None:
    plain = losses(run([python(), str(QUICKSTART / "train_torch.py")], tmp_path))
    ours = losses(run([python(), str(QUICKSTART / "train_fleet.py")], tmp_path))
    assert len(plain) == 5
    assert plain[-1] < plain[0] / 2
    assert ours == plain


def test_the_quick_start_learns_on_two_workers(tmp_path: Path) -> None:
    found = losses(run([*FLEETRUN, str(QUICKSTART / "train_fleet.py")], tmp_path))
    assert len(found) == 5, "only the first worker prints"
    assert found[-1] < found[0] / 2


def test_the_transformer_goes_on_under_another_layout(tmp_path: Path) -> None:
    script = str(ROOT / "examples" / "transformer" / "train.py")
    common = [script, "--batch", "64", "--epochs", "1", "--output", "out", "--save_steps", "10"]
    run([*fleetrun("--nproc_per_node", "2"), *common, "--sharding", "2"], tmp_path)
    assert [path.name for path in (tmp_path / "out").glob("c*")] == ["checkpoint-30"]
    said = run([*fleetrun("--nproc_per_node", "2"), *common, "--pp", "2", "--resume"], tmp_path)
    assert "resumed from update 30" in said
    assert len(re.findall(r"loss on new sentences: [\d.]+", said)) == 1


AMONG_LIBRARIES = """
import runpy
import sys

sys.path.insert(0, {root!r})
import tests.libraries  # the build of torchvision at hand may need help

sys.path.pop(0)
runpy.run_path({script!r}, run_name="__main__")
"""


@by_turns(1, of=4)
def test_a_model_of_transformers_is_fine_tuned_from_a_folder(tmp_path: Path) -> None:
    script = str(ROOT / "examples" / "transformers" / "train.py")
    (tmp_path / "run.py").write_text(AMONG_LIBRARIES.format(root=str(ROOT), script=script))
    said = run([*fleetrun("--nproc_per_node", "2", "--gpus", "none"), "run.py"], tmp_path)
    scores = [float(found) for found in re.findall(r"accuracy ([\d.]+)", said)]
    assert len(scores) == 3, "only the first worker prints"
    assert scores[-1] > 0.9

    from tests.libraries import transformers

    folder = tmp_path / "fine-tuned"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    with_it = torch.tensor([[9, 7, 12, 40, 33, 21, 50, 8, 9, 60, 61, 17, 18, 19, 20, 22]])
    without = with_it.where(with_it != 7, 11)
    found = model.eval()(input_ids=torch.cat([with_it, without])).logits.argmax(1)
    assert found.tolist() == [1, 0]
