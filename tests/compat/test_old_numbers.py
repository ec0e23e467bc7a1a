"""Scripts run with numbers of numpy 1, and what they feed beside their inputs."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fleetx.compat import old_numbers

SCRIPT = """
import numpy as np
import beside
from folder import deeper
one = np.exp([0.0])
print("%s %.1f" % ("one", one), float(one), int(one), "%(a)d" % {"a": one})
print(float("2.5"), int("ff", 16))
print(beside.text(one), deeper.text(one), __name__, __file__)
try:
    float(np.zeros(2))
except TypeError as error:
    print("refused")
"""


def test_a_script_and_its_modules_take_arrays_of_one_element_for_numbers(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "folder").mkdir()
    for module in ("beside.py", "folder/__init__.py", "folder/deeper.py"):
        (tmp_path / module).write_text("def text(x):\n    return '%.2f' % x\n")
    done = subprocess.run(
        [sys.executable, "-m", "fleetx.compat", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "one 1.0 1.0 1 1",
        "2.5 255",
        "1.00 1.00 __main__ train.py",
        "refused",
    ], done.stderr
    assert not [*tmp_path.rglob("*.pyc")]  # Python itself would run such code wrongly


def test_an_error_of_the_script_stays_its_own() -> None:
    with pytest.raises(TypeError, match="not enough arguments"):
        old_numbers.formatted("%d %d", 1)
    assert old_numbers.formatted("%d", 3) == "3"


def test_parameters_that_are_fed_keep_what_they_were_fed() -> None:
    from paddle import fluid

    x = fluid.layers.data("x", [2])
    table = fluid.layers.create_parameter([2], "float32", name="table")
    found = fluid.layers.reduce_sum(x * table)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    row = {"x": np.ones((1, 2), "float32")}
    both = {**row, "table": np.array([2, 3], "float32")}
    for feed in (both, row):
        assert float(exe.run(feed=feed, fetch_list=[found])[0]) == 5


def test_padded_words_that_are_declared_as_nested_records() -> None:
    """Columns come as many as a batch needs; sequence operators name what they do not know."""
    from paddle import fluid

    layers = fluid.layers
    words = layers.data("words", [-1, 16, 1], dtype="int64", lod_level=2, append_batch_size=False)
    mask = layers.data("mask", [-1, 4, 16, 16], append_batch_size=False)
    rows = layers.reshape(layers.embedding(words, [9, 8]), [0, 0, 4, 2])
    heads = layers.transpose(rows, [0, 2, 1, 3])
    found = layers.matmul(heads, heads, transpose_y=True) + mask
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    for columns in (3, 5):
        feed = {
            "words": np.ones((2, columns, 1), "int64"),
            "mask": np.zeros((2, 4, columns, columns), "float32"),
        }
        assert exe.run(feed=feed, fetch_list=[found])[0].shape == (2, 4, columns, columns)
    with pytest.raises(ValueError, match=r"sequence_pool\(\) meets data\('words', lod_level=2\)"):
        layers.sequence_pool(rows, "sum")
