"""The layers of the parameter servers: wire, then tables, then server and worker side by side.

Observers keep what they copy in tables of a server.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PS = Path(__file__).parents[2] / "fleetx" / "ps"
ALLOWED = {
    "wire": {"wire"},
    "tables": {"wire", "tables"},
    "server": {"wire", "tables", "server"},
    "worker": {"wire", "tables", "worker"},
    "observers": {"wire", "tables", "server", "observers"},
}
"""Layer -> the layers that it may import."""


def imported(path: Path) -> Iterator[str]:
    """The layers that a file imports, within functions and for type checks as well."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{path} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("fleetx.ps."):
                yield name.split(".")[2]


def test_every_file_is_in_a_layer() -> None:
    assert [path.name for path in PS.glob("*.py")] == ["__init__.py"]
    assert {path.name for path in PS.iterdir() if (path / "__init__.py").exists()} == {*ALLOWED}


@pytest.mark.parametrize("layer", ALLOWED)
def test_a_layer_imports_only_those_below_it(layer: str) -> None:
    for path in (PS / layer).rglob("*.py"):
        others = {*imported(path)} - ALLOWED[layer]
        assert not others, f"{path} must not import {others}"


def test_layers_of_a_model_depend_on_the_protocol_and_not_on_carriers() -> None:
    for path in (PS.parent / "nn").glob("*.py"):
        text = path.read_text()
        assert "fleetx.ps.server" not in text, path
        assert "carrier" not in text, path
