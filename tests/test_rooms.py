"""The structure holds: rooms import only from their left, the environment stays in two rooms."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "fleetx"
ROOMS = [
    *("roles", "launch", "comm", "optim", "graph", "ps", "nn"),
    "plan",
    "strategies",
    *("config", "auto", "engine", "api"),
    "checking",
    *("static", "io"),
    *("data", "metrics", "applications", "evaluate"),
    "compat",
]
FREE = {"testing"}  # the pool for tests stands beside all rooms
DOORS = {PACKAGE / "optim" / "lars.py", PACKAGE / "optim" / "lamb.py"}
"""Public names of what lives further right; these files hold nothing but an import."""
SOURCES = sorted(path for path in PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_folder_is_a_known_room() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert folders <= {*ROOMS, *FREE}


def test_a_room_imports_only_from_its_left() -> None:
    for path in SOURCES:
        if path.parent == PACKAGE or room(path) in FREE or path in DOORS:
            continue
        allowed = {*ROOMS[: ROOMS.index(room(path)) + 1]}
        for name in imported(path):
            parts = name.split(".")
            if parts[0] == "fleetx" and len(parts) > 1 and (PACKAGE / parts[1]).is_dir():
                assert parts[1] in allowed, f"{path} must not import {name}"


def test_doors_only_import() -> None:
    for path in DOORS:
        docstring, *rest = ast.parse(path.read_text()).body
        assert isinstance(docstring, ast.Expr)
        assert [type(node) for node in rest] == [ast.ImportFrom, ast.Assign], path


def test_no_strategy_imports_another() -> None:
    for path in (PACKAGE / "strategies").glob("[!_]*/**/*.py"):
        own = f"fleetx.strategies.{path.relative_to(PACKAGE / 'strategies').parts[0]}"
        names = [name for name in imported(path) if name.startswith("fleetx.strategies")]
        others = [name for name in names if f"{name}.".removeprefix(f"{own}.") == f"{name}."]
        assert not others, f"{path} must not import {others}"
    for path in (PACKAGE / "strategies").glob("[!_]*.py"):
        others = [name for name in imported(path) if name.startswith("fleetx.strategies")]
        assert not others, f"{path} must not import {others}"


def test_nobody_else_looks_into_a_strategy() -> None:
    for path in SOURCES:
        if room(path) in {"strategies", *FREE} or path in DOORS:
            continue
        inside = [name for name in imported(path) if name.startswith("fleetx.strategies.")]
        assert not inside, f"{path} must not import {inside}"


def test_the_environment_is_read_in_launch_and_roles_alone() -> None:
    for path in SOURCES:
        if room(path) not in {"launch", "roles", *FREE}:
            assert not re.search(r"os\.environ|getenv", path.read_text()), path


def test_importing_fleetx_loads_no_room_and_not_even_torch() -> None:
    code = (
        "import sys, fleetx; print([m for m in sys.modules if m.startswith(('torch', 'fleetx.'))])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_every_public_name_loads() -> None:
    import fleetx

    for name in fleetx.__all__:
        assert getattr(fleetx, name) is not None
        assert name in dir(fleetx)
    with pytest.raises(AttributeError, match="module 'fleetx' has no attribute 'nonsense'"):
        _ = fleetx.nonsense
