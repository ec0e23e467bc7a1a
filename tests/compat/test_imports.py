"""Old modules are served where they are asked for, and unknown names are told."""

import os
import subprocess
import sys
from typing import Any

import pytest

import fleetx.compat.imports


def test_modules_are_those_of_this_package() -> None:
    import paddle
    from paddle import fluid

    assert fluid is paddle.fluid
    assert fluid.__name__ == "fleetx.compat.paddle.fluid"


def test_an_unknown_name_says_the_nearest_and_the_line() -> None:
    import paddle

    with pytest.raises(
        AttributeError, match=r"test_imports.py:\d+: paddle has no 'enable_statik'.*'enable_static'"
    ):
        paddle.enable_statik  # noqa: B018


def test_an_unknown_name_of_a_from_import_says_it_too() -> None:
    with pytest.raises(ImportError, match=r"paddle has no 'enable_statik'.*'enable_static'"):
        from paddle import enable_statik  # noqa: F401


def test_an_unknown_module_says_the_nearest() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"'paddle.fluid.unique_nam'.*unique_name'"):
        import paddle.fluid.unique_nam  # noqa: F401


def test_processes_that_a_script_starts_find_them_too() -> None:
    line = "import paddle.fluid as fluid; print(fluid.__name__)"
    found = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "fleetx.compat.paddle.fluid"


def test_nobody_else_finds_them() -> None:
    fleetx.compat.imports.uninstall()
    with pytest.raises(ModuleNotFoundError):
        import paddle  # noqa: F401


def test_processes_started_afterwards_do_not_either(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "import paddle.fluid"
    for before in (None, "somewhere"):
        fleetx.compat.imports.uninstall()
        if before is None:
            monkeypatch.delenv("PYTHONPATH", raising=False)
        else:
            monkeypatch.setenv("PYTHONPATH", before)
        fleetx.compat.imports.install()
        assert str(fleetx.compat.imports.ENTRY) in os.environ["PYTHONPATH"]
        fleetx.compat.imports.uninstall()
        assert os.environ.get("PYTHONPATH") == before
    command = [sys.executable, "-c", line]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "No module named 'paddle'" in found.stderr


def test_a_path_that_a_script_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "mine")
    fleetx.compat.imports.uninstall()
    assert os.environ["PYTHONPATH"] == "mine"


def test_names_of_older_python_and_numpy_are_there_for_the_run() -> None:
    import collections
    import time

    import numpy as np

    old: Any = np
    assert np.zeros(2).astype(old.float).dtype == np.float64
    assert old.int is int
    assert time.clock() <= time.clock()  # type: ignore[attr-defined]
    assert isinstance([], collections.Iterable)  # type: ignore[attr-defined]
    fleetx.compat.imports.uninstall()
    assert not hasattr(time, "clock")
    assert "float" not in vars(np)
