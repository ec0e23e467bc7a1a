"""A picture of a run, from what it wrote for TensorBoard."""

import sys
from pathlib import Path

import cv2
import pytest
from torch.utils.tensorboard import SummaryWriter

from fleetx.applications import save_curves


def written(folder: Path, losses: list[float], **options: int) -> Path:
    with SummaryWriter(folder, **options) as board:
        for step, loss in enumerate(losses):
            board.add_scalar("loss", loss, step)
            board.add_scalar("acc1", 1 - loss, step)
    return folder


def test_curves_are_drawn_and_missing_ones_left_out(tmp_path: Path) -> None:
    falling = save_curves(written(tmp_path / "a", [0.9, 0.5, 0.1]), tmp_path / "new" / "a.png")
    rising = save_curves(written(tmp_path / "b", [0.1, 0.5, 0.9]), tmp_path / "b.png")
    one, other = cv2.imread(str(falling)), cv2.imread(str(rising))
    assert one is not None
    assert other is not None
    assert one.shape == other.shape == (432, 1440, 3)
    differs = (one != other).any(axis=(0, 2))
    assert differs[:480].any(), "the loss"
    assert differs[480:960].any(), "accuracy"
    assert not differs[960:].any(), "nobody has measured the throughput"


@pytest.mark.rare
def test_points_that_a_new_run_took_back_are_gone(tmp_path: Path) -> None:
    """As the script does it: a run that begins anew says from where on earlier points are void."""
    again = tmp_path / "again"
    written(again, [5.0, 5.0, 5.0])
    written(again, [0.9, 0.5, 0.1], purge_step=0)
    plain = save_curves(written(tmp_path / "plain", [0.9, 0.5, 0.1]), tmp_path / "plain.png")
    assert save_curves(again, tmp_path / "again.png").read_bytes() == plain.read_bytes()


@pytest.mark.parametrize("missing", ["matplotlib", "tensorboard"])
def test_a_missing_package_is_named(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib.figure", "tensorboard.backend.event_processing.event_accumulator"):
        if name.startswith(missing):
            monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError) as error:
        save_curves(written(tmp_path / "a", [1.0]), tmp_path / "a.png")
    assert error.value.name is not None
    assert error.value.name.startswith(missing)
