"""`fleetrun --watch`, where its packages are missing."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from fleetx.launch.arguments import parse
from fleetx.launch.errors import LaunchError
from fleetx.launch.page import page


def test_missing_packages_are_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found: Any = importlib.util.find_spec
    without = {"uvicorn"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in without else found(name)
    )
    with (
        pytest.raises(LaunchError, match=r"needs uvicorn, not installed here; pip install 'fleetx"),
        page(parse(["--watch", "train.py"]), tmp_path),
    ):
        pytest.fail("nothing starts")
    with page(parse(["train.py"]), tmp_path):
        pass
