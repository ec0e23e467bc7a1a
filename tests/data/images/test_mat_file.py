"""Our reader and writer of MATLAB files against scipy's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from fleetx.data.images.mat_file import read_mat, write_mat

ARRAYS: dict[str, Any] = {
    "labels": np.arange(1, 8190, dtype=np.uint16).reshape(1, -1),
    "x": np.array([[3]], np.uint8),
    "matrix": np.arange(12, dtype=np.float64).reshape(3, 4),
    "signed": np.array([[-1, 2, -300]], np.int32),
}


@pytest.mark.parametrize("compressed", [True, False])
def test_what_scipy_wrote_is_read(compressed: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    savemat(path, ARRAYS, do_compression=compressed)
    found = read_mat(path)
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)


def test_scipy_reads_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    write_mat(path, ARRAYS)
    found, ours = loadmat(path), read_mat(path)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        np.testing.assert_array_equal(ours[name], array)
        assert found[name].dtype == array.dtype


def test_damage_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    path.write_bytes(b"hello")
    with pytest.raises(ValueError, match="is no MATLAB file"):
        read_mat(path)
    savemat(path, ARRAYS, do_compression=True)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ValueError, match="is damaged"):
        read_mat(path)
