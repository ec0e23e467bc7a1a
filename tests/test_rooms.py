"""The structure holds: rooms import only from their left, the environment stays in two rooms."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "fleetx"
ROOMS = [
    *("torch_internals", "pages"),
    *("roles", "launch", "comm", "graph", "ps", "nn"),
    "spread",
    *("plan", "record"),
    *("strategies", "optim"),
    *("config", "auto", "engine", "tracking", "api"),
    *("checking", "planning", "watch", "doctor", "chaos"),
    *("static", "io", "profiling"),
    *("data", "metrics", "applications", "evaluate"),
    "compat",
]
FREE = {"testing"}  # the pool for tests stands beside all rooms
SOURCES = sorted(path for path in PACKAGE.rglob("*.py"))
STATIC = {
    "record": set[str](),
    "lower": {"record"},
    "layers": {"record"},
    "run": {"record", "lower", "layers"},
}
"""Package of ``fleetx.static`` -> the others that it may import."""


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
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
        if path.parent == PACKAGE or room(path) in FREE:
            continue
        allowed = {*ROOMS[: ROOMS.index(room(path)) + 1]}
        for name in imported(path):
            parts = name.split(".")
            if parts[0] == "fleetx" and len(parts) > 1 and (PACKAGE / parts[1]).is_dir():
                assert parts[1] in allowed, f"{path} must not import {name}"


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_imported(path: Path, modules: Collection[str]) -> Iterator[str]:
    """Modules that a file names, wherever it does: in functions and for type checkers too."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and (package := node.module or "") in modules:
            inner = [f"{package}.{alias.name}" for alias in node.names]
            yield from (name if name in modules else package for name in inner)


def test_no_module_imports_itself_in_a_circle() -> None:
    modules = {module_name(path): path for path in SOURCES}
    graph = {name: set(modules_imported(path, modules)) for name, path in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other: {' <- '.join(error.args[1])}")


def test_packages_of_static_import_in_one_direction() -> None:
    for path in (PACKAGE / "static").glob("*/**/*.py"):
        package = path.relative_to(PACKAGE / "static").parts[0]
        for name in imported(path):
            _, _, inner = name.partition("fleetx.static.")
            other = inner.partition(".")[0]
            allowed = other not in STATIC or other in {package, *STATIC[package]}
            assert allowed, f"{path} must not import {name}"


def test_nothing_inside_of_static_imports_its_public_names() -> None:
    for path in (PACKAGE / "static").glob("*/**/*.py"):
        modules = {module_name(source) for source in SOURCES}
        assert "fleetx.static" not in set(modules_imported(path, modules)), path


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
        if room(path) in {"strategies", "optim", *FREE}:
            continue
        inside = [name for name in imported(path) if name.startswith("fleetx.strategies.")]
        assert not inside, f"{path} must not import {inside}"


STARTS_SCRIPTS = {PACKAGE / "compat" / "imports.py", PACKAGE / "compat" / "scripts.py"}
"""What old scripts start finds ``paddle`` through variables that these set."""


def test_the_environment_is_read_in_launch_and_roles_alone() -> None:
    for path in SOURCES:
        if room(path) not in {"launch", "roles", *FREE} and path not in STARTS_SCRIPTS:
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
